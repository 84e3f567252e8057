"""Takes credentials out of text that came from elsewhere.

Two rules, and both err on the side of removing too much:

* every URL loses its userinfo, counted up to the *last* `@` before the next white space, because a
  password typed raw may contain `@`, `:`, `/` and quotes. A comma ends a URL only where another
  one with a known scheme begins;
* every given secret goes wherever it stands, also percent-encoded (as in a URL), escaped (as in a
  `repr` or in JSON).

Every occurrence of every form is marked first and what is marked is replaced afterwards, so that
secrets which contain or overlap each other leave no rest.
Tests: `test_pc131_text`, the properties in `tests/jetstream/test_config.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

MASK = "***"

# A word that contains `://`; what follows the first one is looked at by hand.
_WORD_WITH_URL = re.compile(r"\S*://\S*")
# A list of URLs is split only where the next one clearly begins.
_NEXT_URL = re.compile(r"(?<=[,;|])(?=(?:nats|tls|nats\+tls|wss?|https?)://)", re.IGNORECASE)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Returns `text` without the userinfo of any URL in it and without any of `secrets`.

        redact("no route to nats://me:pw@host:4222")   # "no route to nats://***@host:4222"

    Empty secrets are ignored. Never raises.
    """
    if "://" in text:
        text = _WORD_WITH_URL.sub(lambda match: _redact_word(match.group()), text)
    marked = sorted(
        span for secret in set(secrets) if secret for span in _occurrences(secret, text)
    )
    if not marked:
        return text
    pieces: list[str] = []
    kept_from, end = 0, -1
    for start, stop in marked:
        if start > end:
            pieces += (text[kept_from:start], MASK)
        end = max(end, stop)
        kept_from = end
    pieces.append(text[kept_from:])
    return "".join(pieces)


def _occurrences(secret: str, text: str) -> Iterator[tuple[int, int]]:
    escaped = (repr(secret)[1:-1], json.dumps(secret)[1:-1])
    forms = ["".join(map(_plain_or_encoded, secret)), *map(re.escape, escaped)]
    for form in forms:
        # The look-ahead finds occurrences that overlap each other, too.
        for match in re.finditer(f"(?=({form}))", text):
            yield match.span(1)


@lru_cache(maxsize=512)
def _plain_or_encoded(character: str) -> str:
    """A pattern for one character, as it is or as a URL may carry it, in either letter case."""
    # Lone surrogates have no UTF-8 form; they must not make redaction itself fail.
    octets = character.encode("utf-8", "replace")
    encoded = "".join(f"%{_hex(octet >> 4)}{_hex(octet & 15)}" for octet in octets)
    form_space = r"|\+" if character == " " else ""
    return f"(?:{re.escape(character)}|{encoded}{form_space})"


def _hex(digit: int) -> str:
    lower = f"{digit:x}"
    return lower if lower.isdigit() else f"[{lower}{lower.upper()}]"


def _redact_word(word: str) -> str:
    return "".join(_redact_url(part) for part in _NEXT_URL.split(word))


def _redact_url(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    _, at, host = rest.rpartition("@")
    return f"{scheme}{separator}{MASK}@{host}" if at else url
