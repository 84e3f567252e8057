"""Header blocks: what callers may set, how a block is written and read, what a hop copies.

Three rules, each the answer to something that goes wrong elsewhere:

* **A value cannot become a header** (PC-058). Callers' values with CR, LF or any control character
  are refused; `encode_headers` counts the lines of the block it made, so no path can write more
  headers than it was given; control characters in foreign values become spaces when copied.
* **Callers cannot speak for us or for the server** (PC-062, SW-11). `Nats-*` and `Shove-*` are
  reserved in any case, and `Nats-*` is left behind when a message is copied: the server would obey
  a copied rollup, expected sequence or TTL a second time.
* **A message cannot pose as a status** (PC-059). Pull consumers take `Status` for a word of the
  server: reserved as well, and a foreign message's own is copied as `Shove-Foreign-Status`.

NATS headers are bytes and we write UTF-8. Bytes of foreign headers that are not UTF-8 pass
through `surrogateescape`, so a copy carries exactly the bytes that came. A repeated name keeps
its first value, which is the one the server acts on; header names with several values are not
supported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote_to_bytes

from shove_actors._errors import HeaderError

from ._header_names import (
    DEFER_COUNT,
    DESCRIPTION,
    DUE_AFTER,
    EXPECTED_STREAM,
    FIRST_FAILED_AT,
    FOREIGN_DESCRIPTION,
    FOREIGN_STATUS,
    KEY,
    MESSAGE_ID,
    MSG_ID,
    ORIGIN,
    ORIGINAL_QUEUE,
    ORIGINAL_SEQUENCE,
    ORIGINAL_SUBJECT,
    PUBLISHED_AT,
    RETRY_COUNT,
    STATUS,
)
from ._names import shown
from ._times import rfc3339

_VERSION = b"NATS/1.0"

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_RESERVED = re.compile(r"(?:nats-.*|shove-.*|status|description)", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

# What a whole block may look like. C0 control characters nowhere; no space at either end of a
# name or a value, because readers trim it. Looser than what callers may set (foreign names need
# not be tokens), strict about everything that could change the number of lines.
_NAME = r"[^\x00-\x20\x7f:](?:[^\x00-\x1f\x7f:]*[^\x00-\x20\x7f:])?"
_VALUE = r"(?:[^\x00-\x20\x7f](?:[^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?)?"
_BLOCK = re.compile(rf"(?:{_NAME}: {_VALUE}\r\n)*")

# Readers trim blanks around a name, so this has to look past them as well (`decode_headers`).
_OURS = re.compile(rb"\n[ \t]*Shove-")

#: The longest header block, in bytes, that a JetStream stream stores (beyond: error 10097).
MAX_HEADER_BLOCK = 65_535

# A counter beyond nine digits is nobody's retry count.
_COUNTER = re.compile(r"[0-9]{1,9}")


def validate_user_headers(headers: Mapping[str, str]) -> None:
    """Refuses headers that a caller of publish may not set; returns nothing.

    Names are RFC 7230 tokens. Reserved in any case: `Nats-*`, `Shove-*`, `Status` and
    `Description` (the de-duplication id is the `message_id=` argument). Values are text without
    control characters, and without white space at either end, which readers would trim.

    Raises `HeaderError` naming the header, never its value (yours to fix).
    """
    for name, value in headers.items():
        if not isinstance(name, str):
            raise HeaderError(f"a header name must be a str, not {type(name).__name__}")
        if _TOKEN.fullmatch(name) is None:
            raise HeaderError(
                f"header name {shown(name)} must be one or more of the letters, digits and "
                "!#$%&'*+-.^_`|~"
            )
        if _RESERVED.fullmatch(name) is not None:
            raise HeaderError(
                f"header {shown(name)} is reserved (Nats-*, Shove-*, Status and Description, in "
                "any case): rename it; a de-duplication id is the message_id= argument"
            )
        if not isinstance(value, str):
            raise HeaderError(
                f"the value of header {shown(name)} must be a str, not {type(value).__name__}"
            )
        problem = _value_problem(value)
        if problem is not None:
            raise HeaderError(f"the value of header {shown(name)} {problem}")


def validate_message_id(message_id: str) -> None:
    """Refuses a caller's `message_id=` that cannot travel as a header value; `HeaderError`."""
    if not isinstance(message_id, str):
        raise HeaderError(f"message_id must be a str, not {type(message_id).__name__}")
    if not message_id:
        raise HeaderError("message_id is empty: leave it out for a fresh unique one")
    problem = _value_problem(message_id)
    if problem is not None:
        raise HeaderError(f"message_id {problem}")


def _value_problem(value: str) -> str | None:
    if _CONTROL.search(value) is not None:
        return "holds a control character (CR, LF, NUL, tab ...): encode it, for example as JSON"
    if value != value.strip(" "):
        return "begins or ends with a space, which readers trim: strip it or quote the value"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return "holds a lone surrogate, which UTF-8 cannot express: remove it"
    return None


def encode_headers(headers: Mapping[str, str], *, into: str | None = None) -> bytes:
    r"""The block `NATS/1.0\r\n...\r\n\r\n`; `b""` for no headers.

    `into`: the stream that is to store it. Another one that binds the subject then refuses it,
    where it would have answered as if all were well, and no consumer of the topic would see it.

    Raises `HeaderError` when a name or a value would break the block. That check is exact about
    lines and lenient about names, since foreign headers are copied; what callers set passes
    `validate_user_headers` first.
    """
    if into is not None:
        headers = {**headers, EXPECTED_STREAM: into}
    if not headers:
        return b""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    # The count is what makes injection impossible: "a\r\nB: c" as a value is a block of two
    # perfectly good lines made from one header.
    if lines.count("\n") == len(headers) and _BLOCK.fullmatch(lines) is not None:
        try:
            return b"NATS/1.0\r\n" + lines.encode("utf-8", "surrogateescape") + b"\r\n"
        except UnicodeEncodeError:
            pass
    bad = next((name for name, value in headers.items() if not _writable(name, value)), "")
    raise HeaderError(
        f"header {shown(str(bad))} cannot be written: control characters, lone surrogates and "
        "white space at the ends of a name or value would not survive"
    )


def _writable(name: str, value: str) -> bool:
    line = f"{name}: {value}\r\n"
    try:
        line.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return line.count("\n") == 1 and _BLOCK.fullmatch(line) is not None


def decode_headers(raw: bytes) -> dict[str, str]:
    """The headers of a block; the exact inverse of `encode_headers`, and tolerant of foreign ones.

    Never raises. A status on the first line (`NATS/1.0 404 No Messages`) becomes `Status` and
    `Description`; anything else on the first line is no header. Blanks (space, tab) around a name
    are not part of it. A repeated name keeps its first value. Lines may end in LF alone; lines
    without a name are ignored; bytes that are not UTF-8 become surrogate escapes.
    """
    # What counts as a name here is what the scans of raw blocks look for: after an LF and blanks.
    # A header that only one of them sees would be believed in one place and ignored in another.
    headers: dict[str, str] = {}
    first = raw.partition(b"\n")[0].strip()
    if first[:8].upper() == _VERSION:
        status = first[8:].strip().decode("utf-8", "surrogateescape")
        if status:
            code, _, description = status.partition(" ")
            headers[STATUS] = code
            if description.strip(" \t"):
                headers[DESCRIPTION] = description.strip(" \t")
    # Decoded at once: no byte of a longer UTF-8 sequence is a line feed, a colon or a blank, so it
    # is the same as piece by piece, in a fifth less time.
    for line in raw.decode("utf-8", "surrogateescape").split("\n")[1:]:
        name, colon, value = line.partition(":")
        key = name.strip(" \t")
        if colon and key and key not in headers:
            headers[key] = value.strip(" \t\r")
    return headers


def has_shove_headers(raw: bytes) -> bool:
    """Whether a raw block holds a header of ours: one scan, no decoding, for the hot path.

    True exactly when `decode_headers` finds a name that begins with `Shove-`, or a line without a
    colon does.
    """
    return _OURS.search(raw) is not None


def has_status_header(headers: Mapping[str, str]) -> bool:
    """Whether a stored message poses as one of the server's own status messages (PC-059)."""
    return STATUS in headers


def read_counter(headers: Mapping[str, str], name: str) -> int:
    """A counter header as a number; 0 when it is absent.

    Raises `HeaderError` when it is there and unreadable: taking it for 0 would give whoever wrote
    it a fresh retry budget (SW-11). The fault is the producer's.
    """
    text = headers.get(name)
    if text is None:
        return 0
    if _COUNTER.fullmatch(text) is None:
        raise HeaderError(f"header {name} is not a number of up to nine digits")
    return int(text)


def encode_key(key: str) -> str:
    """A sequence key as a header value: plain ASCII as it is, everything else percent-encoded."""
    if key.isascii() and key.isprintable() and "%" not in key and key == key.strip(" "):
        return key
    return quote(key, safe="", encoding="utf-8", errors="surrogatepass")


def decode_key(value: str) -> str:
    """The inverse of `encode_key`; never raises, whatever a foreign producer wrote."""
    raw = unquote_to_bytes(value.encode("utf-8", "surrogateescape"))
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


def copy_headers(original: Mapping[str, str]) -> dict[str, str]:
    """What a copy of a message takes over: all headers but the server's control headers.

    `Status` and `Description` are renamed so that the copy can be consumed; control characters in
    foreign names and values become spaces so that the copy can be written.
    """
    copied: dict[str, str] = {}
    for name, value in original.items():
        folded = name.casefold()
        if folded.startswith("nats-"):
            continue
        if folded == "status":
            name = FOREIGN_STATUS
        elif folded == "description":
            name = FOREIGN_DESCRIPTION
        if _CONTROL.search(name) is not None or _CONTROL.search(value) is not None:
            name = _CONTROL.sub(" ", name).strip(" ")
            value = _CONTROL.sub(" ", value).strip(" ")
        if name and name not in copied:
            copied[name] = value
    return copied


def hop_headers(
    original: Mapping[str, str],
    *,
    msg_id: str,
    message_id: str,
    origin: str,
    retry_count: int,
    defer_count: int,
    due_after_s: float | None = None,
    queue: str | None = None,
    subject: str | None = None,
    sequence: int | None = None,
    key: str | None = None,
    published_at_ns: int | None = None,
    failed_at_ns: int | None = None,
) -> dict[str, str]:
    """Headers of the copy of a message that waits in a hold queue, or returns from one.

    User headers are copied; ids, counters and the delay are set anew. `queue`, `subject`,
    `sequence`, `key`, `published_at_ns` and `failed_at_ns` (nanoseconds since 1970) tell where the
    message first was: the first hop writes them, later hops keep what the first one wrote.
    """
    headers = copy_headers(original)
    headers[MSG_ID] = msg_id
    headers[MESSAGE_ID] = message_id
    headers[ORIGIN] = origin
    headers[RETRY_COUNT] = str(retry_count)
    headers[DEFER_COUNT] = str(defer_count)
    if due_after_s is None:
        headers.pop(DUE_AFTER, None)
    else:
        headers[DUE_AFTER] = str(max(1, round(due_after_s * 1000)))
    keep_first(
        headers,
        {
            ORIGINAL_QUEUE: queue,
            ORIGINAL_SUBJECT: subject,
            ORIGINAL_SEQUENCE: None if sequence is None else str(sequence),
            KEY: None if key is None else encode_key(key),
            PUBLISHED_AT: None if published_at_ns is None else rfc3339(published_at_ns),
            FIRST_FAILED_AT: None if failed_at_ns is None else rfc3339(failed_at_ns),
        },
    )
    return headers


def keep_first(headers: dict[str, str], values: Mapping[str, str | None]) -> None:
    """Adds each value that is there, unless an earlier hop has already written that header."""
    for name, value in values.items():
        if value is not None:
            # A foreign subject may hold control characters: the server takes them.
            headers.setdefault(name, _CONTROL.sub(" ", value).strip(" "))
