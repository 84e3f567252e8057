"""Codec: how a message becomes a payload and back.

A codec is any object with `encode` and `decode`. Whatever goes wrong inside one, `Topic` reports it
as `EncodeError` or `DecodeError`; those never carry a piece of the payload, in the message or as a
cause, because they are logged and stored with dead letters.
"""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

from shove_actors._errors import EncodeError

M = TypeVar("M")


@runtime_checkable
class Codec(Protocol[M]):
    """Turns messages of one type into payloads and back.

    `encode` and `decode` are synchronous, and are called from one task at a time but from many
    tasks in turn: keep no state between calls. Both may raise anything.
    """

    def encode(self, message: M, /) -> bytes:
        """The payload of a message."""
        ...

    def decode(self, payload: bytes, /) -> M:
        """The message of a payload; raises for anything that is not exactly one."""
        ...


class BytesCodec:
    """Payloads as they are: the message is the payload. The default for `Topic(bytes, ...)`."""

    __slots__ = ()

    def encode(self, message: bytes, /) -> bytes:
        if not isinstance(message, bytes):
            raise EncodeError(f"a raw message must be bytes, not {type(message).__name__}")
        return message

    def decode(self, payload: bytes, /) -> bytes:
        return payload

    def __repr__(self) -> str:
        return "BytesCodec()"


RAW = BytesCodec()
