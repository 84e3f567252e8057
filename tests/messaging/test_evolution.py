"""What docs/codecs.md says of types that change, of codecs of one's own, and of large payloads."""

from __future__ import annotations

import enum
import re
import tracemalloc
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shove_actors._errors import DecodeError, EncodeError
from shove_actors.messaging import Codec, JsonCodec, MsgpackCodec, Topic, TopologyBuilder

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "codecs.md").read_text(encoding="utf-8")
CODECS: list[Any] = [JsonCodec, MsgpackCodec]


class Old(msgspec.Struct):
    id: str


class WithDefault(msgspec.Struct):
    id: str
    note: str = "none"


class WithoutDefault(msgspec.Struct):
    id: str
    note: str


class Nothing(msgspec.Struct):
    pass


class RenamedHere(msgspec.Struct):
    order_id: str = msgspec.field(name="id")


class RenamedThere(msgspec.Struct):
    order_id: str


class DefaultRenamed(msgspec.Struct):
    id: str
    remark: str = "none"


class Number(msgspec.Struct):
    value: int


class Wider(msgspec.Struct):
    value: int | str


class Real(msgspec.Struct):
    value: float


class Two(enum.Enum):
    A = "a"
    B = "b"


class Three(enum.Enum):
    A = "a"
    B = "b"
    C = "c"


class OfTwo(msgspec.Struct):
    value: Two


class OfThree(msgspec.Struct):
    value: Three


class LiteralOfTwo(msgspec.Struct):
    value: Literal["a", "b"]


class Tagged(msgspec.Struct, tag="old"):
    id: str


class Cancelled(msgspec.Struct, tag="cancelled"):
    id: str


class Moved(msgspec.Struct, tag="moved"):
    id: str


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    id: str


#: Written as the first, read as the second: what comes of it, or None if it is undecodable.
READS: list[tuple[Any, Any, Any]] = [
    # a field with a default is added
    (Old("1"), WithDefault, WithDefault("1", "none")),
    (WithDefault("1", "x"), Old, Old("1")),
    # a field without a default is added
    (Old("1"), WithoutDefault, None),
    (WithoutDefault("1", "x"), Old, Old("1")),
    # a field is removed
    (Old("1"), Nothing, Nothing()),
    (Nothing(), Old, None),
    (Old("1"), WithDefault, WithDefault("1", "none")),
    # a field is renamed in Python only
    (Old("1"), RenamedHere, RenamedHere("1")),
    (RenamedHere("1"), Old, Old("1")),
    # a field with a default is renamed: its value is lost
    (WithDefault("1", "x"), DefaultRenamed, DefaultRenamed("1", "none")),
    (DefaultRenamed("1", "x"), WithDefault, WithDefault("1", "none")),
    # a field without a default is renamed
    (Old("1"), RenamedThere, None),
    (RenamedThere("1"), Old, None),
    # a type is widened
    (Number(1), Wider, Wider(1)),
    (Number(1), Real, Real(1.0)),
    (Wider(1), Number, Number(1)),
    (Wider("x"), Number, None),
    (Real(1.5), Number, None),
    # an enumeration, or a Literal, gets a value
    (OfTwo(Two.A), OfThree, OfThree(Three.A)),
    (OfThree(Three.A), OfTwo, OfTwo(Two.A)),
    (OfThree(Three.C), OfTwo, None),
    (OfThree(Three.C), LiteralOfTwo, None),
    # a struct becomes a union of tagged structs
    (Tagged("1"), Tagged | Cancelled, Tagged("1")),
    (Tagged("1"), Tagged, Tagged("1")),
    (Cancelled("1"), Tagged, None),
    (Old("1"), Tagged | Cancelled, None),
    (Tagged("1"), Old, Old("1")),
    (Cancelled("1"), Old, Old("1")),
    # a union gets one more struct
    (Cancelled("1"), Tagged | Cancelled | Moved, Cancelled("1")),
    (Cancelled("1"), Tagged | Cancelled, Cancelled("1")),
    (Moved("1"), Tagged | Cancelled, None),
    # alone, a tagged struct is read with and without
    (Old("1"), Tagged, Tagged("1")),
    # types that forbid unknown fields
    (WithDefault("1", "x"), Closed, None),
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("written", "kind", "read"), READS)
def test_who_reads_what(codec: Any, written: Any, kind: Any, read: Any) -> None:
    payload = codec(type(written)).encode(written)
    if read is None:
        with pytest.raises(DecodeError):
            codec(kind).decode(payload)
    else:
        assert codec(kind).decode(payload) == read


class Forbidding(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    id: str


class Ignoring(pydantic.BaseModel):
    id: str


def test_unknown_fields_of_pydantic_models() -> None:
    payload = JsonCodec(WithDefault).encode(WithDefault("1", "x"))
    assert JsonCodec(Ignoring).decode(payload) == Ignoring(id="1")
    with pytest.raises(DecodeError):
        JsonCodec(Forbidding).decode(payload)


@pytest.mark.parametrize("codec", CODECS)
def test_fields_are_not_checked_when_encoding(codec: Any) -> None:
    """What a message of the right class holds is written as it is."""
    payload = codec(Old).encode(Old(7))  # type: ignore[arg-type]
    with pytest.raises(DecodeError):
        codec(Old).decode(payload)
    bounded = Annotated[int, msgspec.Meta(ge=0)]
    with pytest.raises(DecodeError):
        codec(bounded).decode(codec(int).encode(-1))


def test_another_codec_reads_nothing() -> None:
    for one, other in (CODECS, CODECS[::-1]):
        with pytest.raises(DecodeError):
            other(Old).decode(one(Old).encode(Old("1")))


def defined(name: str) -> Any:
    """What a block of the page defines; it is not started, as it is not the main program."""
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        if f"class {name}:" in block:
            names: dict[str, Any] = {
                "__name__": "codecs_page", "JsonCodec": JsonCodec, "MsgpackCodec": MsgpackCodec,
            }  # fmt: skip
            # Not with this module's `annotations` import: the program on the page has none.
            exec(compile(block, "codecs.md", "exec", dont_inherit=True), names)
            return names
    raise AssertionError(f"the page does not define {name}")


def test_a_codec_that_reads_both() -> None:
    both = defined("JsonOrMsgpack")["JsonOrMsgpack"](Old)
    assert isinstance(both, Codec)
    assert both.decode(JsonCodec(Old).encode(Old("1"))) == Old("1")
    assert both.decode(both.encode(Old("1"))) == Old("1")
    assert both.encode(Old("1")) == MsgpackCodec(Old).encode(Old("1"))
    with pytest.raises(DecodeError):
        both.decode(b"")


# ------------------------------------------------------------------ protocol buffers by hand

_NAMES = defined("OrderCodec")
_ORDER: Any = _NAMES["Order"]
_CODEC: Any = _NAMES["OrderCodec"]()
_TOPIC: Topic[Any] = Topic(_ORDER, TopologyBuilder("orders").dlq().build(), codec=_CODEC)


def test_the_wire_format_of_protocol_buffers() -> None:
    """Bytes by the specification: tag, length and text; tag and double; tag and varint."""
    assert _CODEC.encode(_ORDER("ORD-1", 1.5, 300)) == (
        b"\x0a\x05ORD-1" + b"\x11\x00\x00\x00\x00\x00\x00\xf8\x3f" + b"\x18\xac\x02"
    )
    # -1 takes ten bytes, and fields that are left out have their defaults.
    assert _CODEC.decode(b"\x18" + b"\xff" * 9 + b"\x01") == _ORDER("", 0.0, -1)
    # An unknown field of each kind: varint, eight bytes, text, four bytes.
    unknown = b"\x20\x01" + b"\x29" + bytes(8) + b"\x32\x03new" + b"\x3d" + bytes(4)
    assert _CODEC.decode(unknown + b"\x0a\x01a") == _ORDER("a", 0.0, 0)


@given(
    name=st.text(),
    amount=st.floats(allow_nan=False),
    quantity=st.integers(-(2**63), 2**63 - 1),
)
def test_own_messages_come_back(name: str, amount: float, quantity: int) -> None:
    order = _ORDER(name, amount, quantity)
    assert _TOPIC.decode(_TOPIC.encode(order)) == order


@pytest.mark.parametrize("order", [_ORDER("", 0.0, 2**63), _ORDER("\ud800")])
def test_what_has_no_form_is_an_encode_error(order: Any) -> None:
    with pytest.raises(EncodeError):
        _TOPIC.encode(order)


@given(
    payload=st.binary(max_size=60)
    | st.lists(
        st.sampled_from([b"\x0a", b"\x11", b"\x18", b"\x80", b"\x22", b"\x03abc", bytes(8)]),
        max_size=10,
    ).map(b"".join)
)
def test_arbitrary_bytes_decode_or_are_a_decode_error(payload: bytes) -> None:
    try:
        assert type(_TOPIC.decode(payload)) is _ORDER
    except DecodeError:
        pass


# ------------------------------------------------------------------ what is large is large


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        (JsonCodec, b"[" + b"[]," * 33_000 + b"[]]"),
        (MsgpackCodec, b"\xdd\x00\x01\x86\xa0" + b"\x90" * 100_000),
    ],
)
def test_what_anything_is_allowed_to_hold_takes_memory(codec: Any, payload: bytes) -> None:
    """Why the page advises against `Any`; a type refuses it at the first list."""

    def peak(kind: Any) -> int:
        tracemalloc.start()
        try:
            codec(kind).decode(payload)
        except DecodeError:
            pass
        finally:
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        return most

    assert peak(Any) > 10 * len(payload)
    assert peak(list[Old]) < len(payload)
