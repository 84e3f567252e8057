"""A stored message, as the API hands it out."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RawMessage:
    """A stored message, read without consuming it. `data` is always bytes."""

    subject: str
    sequence: int
    data: bytes
    header_block: bytes | None
    time: str

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> RawMessage:
        """From the answer of `STREAM.MSG.GET`."""
        message = answer["message"]
        block = message.get("hdrs")
        return cls(
            subject=message["subject"],
            sequence=message["seq"],
            data=base64.b64decode(message.get("data", "")),
            header_block=base64.b64decode(block) if block else None,
            time=message.get("time", ""),
        )
