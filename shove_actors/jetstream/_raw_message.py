"""A stored message, read without consuming it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shove_actors._errors import ApiError, MessageNotFound

from ._clock import parse_time_ns
from ._headers import Headers, parse_headers
from ._request import Reply
from ._times import datetime_of_ns

#: What a direct get adds behind the message's own headers.
_DIRECT = (b"Nats-Stream", b"Nats-Subject", b"Nats-Sequence", b"Nats-Time-Stamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawMessage:
    """A stored message. `data` is always bytes; `time_ns` is when it was stored, since 1970."""

    subject: str
    sequence: int
    data: bytes
    header_block: bytes | None
    time_ns: int

    @property
    def headers(self) -> Headers:
        """Empty without headers."""
        return parse_headers(self.header_block)

    @property
    def time(self) -> datetime:
        """When it was stored, to the microsecond, in UTC."""
        return datetime_of_ns(self.time_ns)

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> RawMessage:
        """From the answer of `STREAM.MSG.GET`."""
        message = answer["message"]
        block = message.get("hdrs")
        return cls(
            subject=message["subject"],
            sequence=message["seq"],
            data=base64.b64decode(message.get("data") or ""),
            header_block=base64.b64decode(block) if block else None,
            time_ns=parse_time_ns(message["time"]) if message.get("time") else 0,
        )

    @classmethod
    def read_direct(cls, reply: Reply) -> RawMessage:
        """From the answer of `DIRECT.GET`, whose metadata are headers behind the message's own.

        Raises `MessageNotFound`, or `ApiError` for what is no such answer.
        """
        status = reply.status
        if status is not None and status[0] == 404:
            raise MessageNotFound(404, 10037, status[1].lower() or "no message found")
        lines = (reply.header_block or b"").split(b"\r\n")
        told: dict[bytes, bytes] = {}
        # From the end: a message that was republished may have carried the same names.
        at = len(lines) - 1
        while at > 0 and len(told) < len(_DIRECT):
            name, _, value = lines[at].partition(b":")
            if name in _DIRECT and name not in told:
                told[name] = value.strip()
                del lines[at]
            at -= 1
        if status is not None or len(told) < len(_DIRECT):
            code, text = status if status is not None else (0, "the answer makes no sense")
            raise ApiError(code, 0, text)
        own = b"\r\n".join(lines)
        return cls(
            subject=told[b"Nats-Subject"].decode(),
            sequence=int(told[b"Nats-Sequence"]),
            data=reply.payload,
            header_block=own if len(lines) > 3 else None,
            time_ns=parse_time_ns(told[b"Nats-Time-Stamp"].decode()),
        )
