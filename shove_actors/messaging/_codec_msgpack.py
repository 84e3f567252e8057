"""MsgpackCodec: MessagePack by msgspec; validated while decoded.

Smaller and faster than JSON, and exact where JSON is not: bytes are bytes, and NaN and the
infinities are floats like others. What JSON can and MessagePack cannot is an integer of more than
64 bits, which is refused at `encode`.

A length that a payload claims is not believed: a five-byte array that says it has four thousand
million entries allocates nothing for them, and nesting is bounded by the interpreter's recursion
limit. Both end as `DecodeError`; `tests/messaging/test_codec_msgpack.py` measures them and feeds
the codec arbitrary bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, final

import msgspec

from shove_actors._errors import DecodeError, EncodeError, UsageError

from ._codec_problem import read_problem, type_name, walk_type, write_problem

M = TypeVar("M")


@final
class MsgpackCodec(Generic[M]):
    """MessagePack for dataclasses, msgspec Structs, TypedDicts, NamedTuples and builtins.

    Decoding validates against the type. `encode` raises `EncodeError` for what cannot be written;
    `decode` raises `DecodeError` for everything that is not one MessagePack value of the type.

    Raises `UsageError` when the type cannot be decoded from MessagePack (yours to fix); pydantic's
    models cannot, they have no form but JSON.

        ORDERS = Topic(Order, topology, codec=MsgpackCodec(Order))
    """

    __slots__ = ("_decode", "_encode", "_type")

    def __init__(self, message_type: type[M]) -> None:
        self._type = message_type
        self._encode, self._decode = _functions(message_type)

    @property
    def functions(self) -> tuple[Callable[[M], bytes], Callable[[bytes], M]]:
        """`encode` and `decode` without the method call around them, for a hot path to bind."""
        return self._encode, self._decode

    def encode(self, message: M, /) -> bytes:
        return self._encode(message)

    def decode(self, payload: bytes, /) -> M:
        return self._decode(payload)

    def __repr__(self) -> str:
        return f"MsgpackCodec({type_name(self._type)})"


def _functions(
    message_type: type[M],
) -> tuple[Callable[[M], bytes], Callable[[bytes], M]]:
    name = type_name(message_type)
    try:
        read = msgspec.msgpack.Decoder(message_type).decode
        for _ in walk_type(msgspec.inspect.type_info(message_type), "MessagePack"):
            pass
    except UsageError:
        raise
    except Exception as exc:
        raise UsageError(
            f"{name} cannot be a MessagePack message type: {exc}. Use a dataclass, Struct, "
            "TypedDict, NamedTuple or builtin, or pass codec="
        ) from exc
    write = msgspec.msgpack.Encoder().encode

    def encode(message: M) -> bytes:
        try:
            return write(message)
        except Exception as exc:
            problem = write_problem(exc, "MessagePack")
        # Raised here and not in the handler above: a chained exception would carry the message.
        raise EncodeError(f"{name} could not be encoded as MessagePack: {problem}")

    def decode(payload: bytes) -> M:
        try:
            return read(payload)
        except Exception as exc:
            problem = read_problem(exc)
        raise DecodeError(f"payload is not a MessagePack {name}: {problem}")

    return encode, decode
