"""Takes credentials out of text that came from elsewhere.

Two rules, and both err on the side of removing too much:

* every URL loses its userinfo, counted up to the *last* `@` before the next white space, because a
  password typed raw may contain `@`, `:`, `/` and quotes. A comma ends a URL only where another
  one with a known scheme begins;
* every given secret goes wherever it stands, also percent-encoded (as in a URL), escaped (as in a
  `repr` or in JSON).

Everything to remove is marked in the original text first and replaced afterwards, so that secrets
which contain or overlap each other, or a URL, leave no rest.
Tests: `test_pc131_text`, the properties in `tests/jetstream/test_redact.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

MASK = "***"

_WORD = re.compile(r"\S+")
# A list of URLs is split only where the next one clearly begins.
_NEXT_URL = re.compile(r"(?<=[,;|])(?=(?:nats|tls|nats\+tls|wss?|https?)://)", re.IGNORECASE)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Returns `text` without the userinfo of any URL in it and without any of `secrets`.

        redact("no route to nats://me:pw@host:4222")   # "no route to nats://***@host:4222"

    Empty secrets are ignored. Never raises.
    """
    marked = list(_userinfo(text)) if "://" in text else []
    for secret in set(secrets):
        if secret:
            marked += _occurrences(secret, text)
    if not marked:
        return text
    pieces: list[str] = []
    kept_from, end = 0, -1
    for start, stop in sorted(marked):
        if start > end:
            pieces += (text[kept_from:start], MASK)
        end = max(end, stop)
        kept_from = end
    pieces.append(text[kept_from:])
    return "".join(pieces)


def _userinfo(text: str) -> Iterator[tuple[int, int]]:
    for word in _WORD.finditer(text):
        begin = word.start()
        for part in _NEXT_URL.split(word.group()):
            scheme, last_at = part.find("://"), part.rfind("@")
            if 0 <= scheme < last_at:
                yield begin + scheme + 3, begin + last_at
            begin += len(part)


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
