"""What codecs say when something goes wrong, and what they refuse to be made for.

Errors say where and what was expected, in words of the type, never in words of the payload: they
are logged, and stored with dead letters. What msgspec says is passed on where it is made of the
type's words and of positions; other texts may quote the payload (an unknown enum value, an unknown
field, the bytes it could not read) and are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from shove_actors._errors import UsageError

_SAFE = re.compile(
    r"(Expected `[^`]*`(?:, got `\w+`| of length [^`]*)?|Object missing required field `[^`]*`"
    r"|(?:JSON|MessagePack data) is malformed: [a-z ,'-]+\(byte \d+\)|Input data was truncated"
    r"|Expected a hashable value, got `\w+`"
    r"|Invalid UTF-8 encoded string|Number out of range|Integer value out of range)"
    r"(?: - at `([^`]*)`)?"
)
_OPCODE = re.compile(r"MessagePack data is malformed: invalid opcode .*(\(byte \d+\))", re.DOTALL)
_PLACE = re.compile(r" - at `(\$[^`]*)`$")


def type_name(message_type: object) -> str:
    """A type's name for messages: `Order`, `dict[str, int]`."""
    if isinstance(message_type, type) and not hasattr(message_type, "__args__"):
        return message_type.__name__
    return str(message_type)


def write_problem(exc: Exception, form: str) -> str:
    """Why a message could not be written as `form`."""
    if isinstance(exc, RecursionError):
        return "it is nested too deeply"
    if isinstance(exc, UnicodeError):
        return "it holds a lone surrogate"
    if isinstance(exc, OverflowError):
        return f"it holds an integer that {form} has no room for"
    if isinstance(exc, TypeError):
        return f"it holds an object that has no {form} form"
    return f"{type(exc).__name__} in its encoder"


def read_problem(exc: Exception) -> str:
    """Why a payload could not be read."""
    if isinstance(exc, RecursionError):
        return "it is nested too deeply"
    if isinstance(exc, msgspec.DecodeError):
        text = str(exc)
        if _SAFE.fullmatch(text) is not None:
            return text
        opcode = _OPCODE.fullmatch(text)
        if opcode is not None:
            return f"MessagePack data is malformed: invalid opcode {opcode[1]}"
        place = _PLACE.search(text)
        return f"a value is not allowed at `{place[1]}`" if place else "a value is not allowed"
    return f"{type(exc).__name__} while decoding"


def walk_type(
    info: msgspec.inspect.Type, form: str
) -> Iterator[tuple[msgspec.inspect.Type, Sequence[object]]]:
    """Every type inside a type, each with what it is made of; recursive types once.

    Raises `UsageError` at one that msgspec would hand to a hook, which nobody has given.
    """
    seen: set[int] = set()
    waiting: list[object] = [info]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, msgspec.inspect.CustomType):
            raise UsageError(
                f"{type_name(item.cls)} cannot be decoded from {form} (it is no dataclass, Struct, "
                "TypedDict, NamedTuple or builtin; pydantic models only stand by themselves, as "
                "JSON): use another type, or pass codec="
            )
        if isinstance(item, msgspec.inspect.Type):
            parts: list[object] = [getattr(item, field) for field in item.__struct_fields__]
            nested = [p for p in parts if isinstance(p, (msgspec.inspect.Type, tuple))]
            yield item, nested
            waiting.extend(nested)
        elif isinstance(item, msgspec.inspect.Field):
            waiting.append(item.type)
        elif isinstance(item, tuple):
            waiting.extend(item)
