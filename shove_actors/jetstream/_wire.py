"""The few pieces of the NATS wire protocol that pass per message: building and reading bytes.

Everything else of the protocol (handshake, INFO, authentication, PING, errors) is nats-py's.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from shove_actors._errors import InvalidName

CRLF = b"\r\n"
#: Bytes. A server's `max_control_line` is 4096 by default, for both subjects and two numbers.
MAX_SUBJECT = 3072
#: Halves of surrogate pairs are no text: nothing can be sent of them.
_NOT_IN_SUBJECT = re.compile(r"[\x00-\x20\x7f\ud800-\udfff]")
_NOT_IN_NAME = re.compile(r"[\x00-\x20\x7f.*>/\\\ud800-\udfff]")


def check_subject(subject: str) -> None:
    """Raises `InvalidName`: a blank or a line end in a subject would be protocol (PC-057)."""
    if not isinstance(subject, str):
        raise InvalidName(f"a subject is a str, not {type(subject).__name__}")
    if not subject or _NOT_IN_SUBJECT.search(subject):
        raise InvalidName(
            f"subject {subject!r} is empty or contains white space, control characters or half of "
            "a surrogate pair; a subject is words separated by dots"
        )
    if len(subject) > MAX_SUBJECT // 4 and len(subject.encode()) > MAX_SUBJECT:
        raise InvalidName(
            f"the subject that begins with {subject[:60]!r} has {len(subject.encode())} bytes; at "
            f"most {MAX_SUBJECT} are sent, because a server ends the connection of whoever sends "
            "a longer protocol line"
        )


def not_in_subject(text: str) -> bool:
    """Whether `text` cannot be a part of a subject that is published to."""
    return not text or re.search(r"[\x00-\x20\x7f*>\ud800-\udfff]", text) is not None


def check_name(name: str, what: str) -> None:
    """Raises `InvalidName` for what no stream or consumer can be called."""
    if not isinstance(name, str) or not name or _NOT_IN_NAME.search(name):
        raise InvalidName(
            f"{what} {name!r}: a name must not be empty nor contain white space, control "
            "characters or any of . * > / \\"
        )


def pub(subject: bytes, reply: bytes, payload: bytes) -> bytes:
    """A `PUB` with a reply subject (or b"")."""
    if reply:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)
    return b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload)


def hpub(subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> bytes:
    """An `HPUB`; `header_block` is a complete `NATS/1.0 ... CRLF CRLF` block."""
    head = len(header_block)
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
        subject,
        reply,
        head,
        head + len(payload),
        header_block,
        payload,
    )


def sub(subject: bytes, sid: int, queue: bytes = b"") -> bytes:
    if queue:
        return b"SUB %b %b %d\r\n" % (subject, queue, sid)
    return b"SUB %b %d\r\n" % (subject, sid)


def unsub(sid: int) -> bytes:
    return b"UNSUB %d\r\n" % sid


class AckParts(NamedTuple):
    """What an acknowledgement subject tells about a delivery."""

    stream: str
    consumer: str
    num_delivered: int
    stream_sequence: int
    consumer_sequence: int
    timestamp_ns: int
    pending: int
    domain: str | None


def parse_ack(reply: bytes) -> AckParts:
    """Read `$JS.ACK...` in both forms: 9 tokens, or 11 and more with domain and account (T3).

    Raises `ValueError` for anything else.
    """
    tokens = reply.split(b".")
    count = len(tokens)
    if count < 9 or tokens[0] != b"$JS" or tokens[1] != b"ACK":
        raise ValueError("not an acknowledgement subject")
    domain: str | None = None
    if count == 9:
        body = tokens[2:]
    elif count >= 11:
        domain = None if tokens[2] == b"_" else tokens[2].decode()
        body = tokens[4:11]
    else:
        raise ValueError("not an acknowledgement subject")
    return AckParts(
        body[0].decode(),
        body[1].decode(),
        int(body[2]),
        int(body[3]),
        int(body[4]),
        int(body[5]),
        int(body[6]),
        domain,
    )


def ack_numbers(reply: bytes) -> tuple[int, int, int]:
    """`(num_delivered, stream_sequence, timestamp_ns)` only: the per-message path."""
    tokens = reply.split(b".")
    if len(tokens) == 9:
        return int(tokens[4]), int(tokens[5]), int(tokens[7])
    if len(tokens) >= 11:
        return int(tokens[6]), int(tokens[7]), int(tokens[9])
    raise ValueError("not an acknowledgement subject")


def status_of(header_block: bytes | None) -> tuple[int, str] | None:
    """`(code, description)` of a status message, None for an ordinary header block.

    Only the status *line* counts. A user's header that happens to be called `Status` does not
    make a message a control message (PC-059).
    """
    if header_block is None or not header_block.startswith(b"NATS/1.0 "):
        return None
    line = header_block[9 : header_block.find(CRLF)]
    code, _, text = line.partition(b" ")
    if not code.isdigit():
        return None
    return int(code), text.decode("utf-8", "replace").strip()


def header_value(header_block: bytes, name: bytes) -> bytes | None:
    """One header of a raw block, compared without case."""
    wanted = name.lower()
    for line in header_block.split(CRLF)[1:]:
        key, colon, value = line.partition(b":")
        if colon and key.strip().lower() == wanted:
            return value.strip()
    return None
