"""JsonCodec: JSON by msgspec, or by pydantic for pydantic's models; validated while decoded.

What may not happen: a message that encodes and never decodes again. It would be stored, and come
out as a dead letter that the publisher never heard of. JSON has no NaN and no infinity, and both
libraries write `null` for them, which then fails to decode as a number, or decodes as "no value"
where None is allowed. So non-finite floats are refused at `encode`, at a price that is paid only
where there is something to find: decided once per type (can it hold a float at all?), then by one
scan of the payload for `null`, which a non-finite float always leaves behind, and only then by a
walk over the message. (`Decimal("NaN")` is written as a string and comes back as it was.) In the
other direction `NaN` is no JSON: msgspec refuses it, pydantic is made to.

Errors say where and what was expected, in words of the type, never in words of the payload.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final, get_origin

import msgspec

from shove_actors._errors import DecodeError, EncodeError, UsageError

from ._codec_problem import read_problem, type_name, walk_type, write_problem

if TYPE_CHECKING:
    from pydantic import BaseModel

M = TypeVar("M")


@final
class JsonCodec(Generic[M]):
    """JSON for dataclasses, msgspec Structs, TypedDicts, NamedTuples, builtins and pydantic models.

    Decoding validates against the type. `encode` raises `EncodeError` for what cannot be written or
    would not decode (non-finite floats); `decode` raises `DecodeError` for everything that is not
    one JSON value of the type, deep nesting included. Pydantic is needed only for its own models,
    which are written by alias, so that they are read back.

    Raises `UsageError` when the type cannot be decoded from JSON (yours to fix).

        JsonCodec(Order).decode(b'{"order_id":"ORD-1","amount":99.99}')
    """

    __slots__ = ("_decode", "_encode", "_type")

    def __init__(self, message_type: type[M]) -> None:
        self._type = message_type
        encode: Callable[[M], bytes]
        decode: Callable[[bytes], M]
        if _is_pydantic_model(message_type):
            encode, decode = _pydantic_functions(message_type)
        else:
            encode, decode = _msgspec_functions(message_type)
        self._encode = encode
        self._decode = decode

    @property
    def functions(self) -> tuple[Callable[[M], bytes], Callable[[bytes], M]]:
        """`encode` and `decode` without the method call around them, for a hot path to bind."""
        return self._encode, self._decode

    def encode(self, message: M, /) -> bytes:
        return self._encode(message)

    def decode(self, payload: bytes, /) -> M:
        return self._decode(payload)

    def __repr__(self) -> str:
        return f"JsonCodec({type_name(self._type)})"


# -- msgspec


def _msgspec_functions(
    message_type: type[M],
) -> tuple[Callable[[M], bytes], Callable[[bytes], M]]:
    name = type_name(message_type)
    try:
        info = msgspec.inspect.type_info(message_type)
        read = msgspec.json.Decoder(message_type).decode
        floats, float_keys = _float_use(info)
    except UsageError:
        raise
    except Exception as exc:
        raise UsageError(
            f"{name} cannot be a JSON message type: {exc}. Use a dataclass, Struct, TypedDict, "
            "NamedTuple, pydantic model or builtin, or pass codec="
        ) from exc
    write = msgspec.json.Encoder().encode

    def encode(message: M) -> bytes:
        try:
            payload = write(message)
            # As a key, NaN is written as "nan": a type with such keys is always walked.
            suspect = float_keys or (floats and b"null" in payload)
            bad = suspect and _non_finite(msgspec.to_builtins(message))
        except Exception as exc:
            problem = write_problem(exc, "JSON")
        else:
            if not bad:
                return payload
            problem = "it holds NaN or an infinity, which JSON cannot express"
        # Raised here and not in the handler above: a chained exception would carry the message.
        raise EncodeError(f"{name} could not be encoded as JSON: {problem}")

    def decode(payload: bytes) -> M:
        try:
            return read(payload)
        except Exception as exc:
            problem = read_problem(exc)
        raise DecodeError(f"payload is not a JSON {name}: {problem}")

    return encode, decode


_LEAVES_WITHOUT_FLOATS = (
    msgspec.inspect.NoneType,
    msgspec.inspect.BoolType,
    msgspec.inspect.IntType,
    msgspec.inspect.StrType,
    msgspec.inspect.BytesType,
    msgspec.inspect.ByteArrayType,
    msgspec.inspect.MemoryViewType,
    msgspec.inspect.DateTimeType,
    msgspec.inspect.TimeType,
    msgspec.inspect.DateType,
    msgspec.inspect.TimeDeltaType,
    msgspec.inspect.UUIDType,
    msgspec.inspect.DecimalType,
    msgspec.inspect.EnumType,
    msgspec.inspect.LiteralType,
)


def _float_use(info: msgspec.inspect.Type) -> tuple[bool, bool]:
    """Whether a value of the type may hold a float, and whether it may as a mapping's key.

    Walks the whole type, recursive types once; `UsageError` if JSON cannot be decoded to it.
    """
    found = False
    as_key = False
    for item, parts in walk_type(info, "JSON"):
        if isinstance(item, _LEAVES_WITHOUT_FLOATS):
            continue
        if isinstance(item, msgspec.inspect.DictType):
            key = item.key_type
            kinds = key.types if isinstance(key, msgspec.inspect.UnionType) else (key,)
            as_key = as_key or any(isinstance(k, msgspec.inspect.FloatType) for k in kinds)
        # A type without parts that is not in the list above: float, Any, raw, extension.
        found = found or not parts
    return found, as_key


def _non_finite(value: object) -> bool:
    """Whether a structure of builtins holds NaN or an infinity; a stack, not recursion."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                return True
        elif isinstance(item, dict):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            waiting.extend(item)
    return False


# -- pydantic


def _is_pydantic_model(message_type: object) -> bool:
    # Without importing pydantic: who gives a model has imported it.
    pydantic = sys.modules.get("pydantic")
    return (
        pydantic is not None
        and isinstance(message_type, type)
        # `dict[str, int]` is a type on Python 3.10, but not one that `issubclass` takes.
        and get_origin(message_type) is None
        and issubclass(message_type, pydantic.BaseModel)
    )


def _pydantic_functions(
    model: type[Any],
) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    name = type_name(model)
    read = model.model_validate_json
    # A model may say how it writes these; only pydantic's default loses them.
    policy = model.model_config.get("ser_json_inf_nan", "null")

    def encode(message: BaseModel) -> bytes:
        problem = ""
        try:
            # `warnings="error"`: a field that was assigned a value of the wrong type would be
            # written, with a warning that quotes it, and never be read again.
            text = message.model_dump_json(by_alias=True, warnings="error")
            payload = text.encode()
            if policy == "null" and "null" in text and _non_finite(message.model_dump()):
                problem = "it holds NaN or an infinity, which JSON cannot express"
            elif policy == "constants":
                _refuse_constants(payload)
        except Exception as exc:
            problem = _pydantic_write_problem(exc)
        if problem:
            raise EncodeError(f"{name} could not be encoded as JSON: {problem}")
        return payload

    def decode(payload: bytes) -> Any:
        try:
            _refuse_constants(payload)
            return read(payload)
        except Exception as exc:
            problem = _pydantic_read_problem(exc, model)
        raise DecodeError(f"payload is not a JSON {name}: {problem}")

    return encode, decode


class _ConstantError(ValueError):
    """The payload holds NaN or an infinity as a bare word."""


def _refuse_constants(payload: bytes) -> None:
    # Two scans in C; the words may as well stand inside a string, so only then parse in full.
    if b"NaN" in payload or b"Infinity" in payload:
        json.loads(payload, parse_constant=_constant)


def _constant(word: str) -> object:
    raise _ConstantError(word)


def _pydantic_write_problem(exc: Exception) -> str:
    if isinstance(exc, _ConstantError):
        return "it holds NaN or an infinity, which JSON cannot express"
    if type(exc).__name__ == "PydanticSerializationError":
        return "a field holds a value that is not of the field's type"
    return write_problem(exc, "JSON")


def _pydantic_read_problem(exc: Exception, model: type[BaseModel]) -> str:
    from pydantic import ValidationError

    if isinstance(exc, _ConstantError):
        return "NaN and infinities are no JSON"
    if isinstance(exc, ValidationError):
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        # Only the outermost name, and only if the model declares it: keys are payload.
        known = set(model.model_fields) | {f.alias for f in model.model_fields.values()}
        place = first["loc"][0] if first["loc"] else None
        where = f" at `{place}`" if place in known else ""
        return f"{first['type']}{where}"
    if isinstance(exc, json.JSONDecodeError):
        return "JSON is malformed"
    return read_problem(exc)
