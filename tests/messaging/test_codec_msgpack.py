"""MessagePack: what fits the type comes back, everything else is a DecodeError, and cheaply so."""

from __future__ import annotations

import dataclasses
import enum
import math
import tracemalloc
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shove_actors._errors import DecodeError, EncodeError, UsageError
from shove_actors.messaging import Codec, MsgpackCodec, Topic, TopologyBuilder


class Struct(msgspec.Struct):
    id: str
    amount: float = 0.0
    tags: list[str] = []


@dataclasses.dataclass
class Data:
    id: str
    amounts: list[float] = dataclasses.field(default_factory=list)


class Typed(TypedDict):
    id: str
    amount: float


class Named(NamedTuple):
    id: str
    amount: float


class Node(msgspec.Struct):
    value: float
    next: Node | None = None


class Color(enum.Enum):
    RED = "red"


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    color: Color = Color.RED
    size: dict[str, int] = {}


class Cat(msgspec.Struct, tag=True):
    name: str


class Dog(msgspec.Struct, tag=True):
    name: str


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Struct, Struct("a", 1.5, ["x"])),
        (Struct, Struct("a", math.inf)),
        (Data, Data("a", [1.5, -2.0])),
        (Typed, {"id": "a", "amount": 1.5}),
        (Named, Named("a", 1.5)),
        (Node, Node(1.0, Node(2.0))),
        (Strict, Strict(Color.RED, {"a": 1})),
        (Cat | Dog, Dog("rex")),
        (str, "caf\u00e9"),
        (bytes, b"\x00\xff"),
        (int, 2**64 - 1),
        (int, -(2**63)),
        (float, 1.5),
        (bool, True),
        (dict[int, bytes], {1: b"\xff"}),
        (list[Struct], [Struct("a")]),
        (datetime, datetime(2024, 1, 1, tzinfo=timezone.utc)),
        (Decimal, Decimal("1.10")),
        (int | str, "x"),
        (Literal["a", "b"], "a"),
        (Any, {"a": [1, None, b"x"], (1, 2): 3}),
    ],
)
def test_messages_come_back_as_they_were(kind: Any, message: Any) -> None:
    codec: MsgpackCodec[Any] = MsgpackCodec(kind)
    assert isinstance(codec, Codec)
    payload = codec.encode(message)
    assert type(payload) is bytes
    assert codec.decode(payload) == message


def test_what_is_written_is_plain_messagepack() -> None:
    """Byte for byte by the format's specification, so that other languages read it."""
    assert MsgpackCodec(dict[str, int]).encode({"a": 1}) == b"\x81\xa1a\x01"
    payload = MsgpackCodec(Struct).encode(Struct("a", 1.5))
    assert payload == (b"\x83\xa2id\xa1a\xa6amount\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\xa4tags\x90")


def test_not_a_number_survives() -> None:
    codec = MsgpackCodec(Struct)
    assert math.isnan(codec.decode(codec.encode(Struct("a", math.nan))).amount)


MISMATCHES = {
    "nothing": (b"", "truncated"),
    "unassigned byte": (b"\xc1", "invalid opcode (byte 0)"),
    "wrong type of a field": (b"\x81\xa2id\x07", "Expected `str`, got `int` - at `$.id`"),
    "inside a list": (b"\x82\xa2id\xa1a\xa4tags\x91\x07", "at `$.tags[0]`"),
    "another kind": (b"\x90", "Expected `object`, got `array`"),
    "missing field": (b"\x80", "missing required field `id`"),
    "two messages": (b"\x81\xa2id\xa1a\x01", "trailing characters (byte 6)"),
    # msgspec 0.19 raises UnicodeDecodeError here, later ones say "Invalid UTF-8".
    "invalid UTF-8": (b"\x81\xa2id\xa1\xff", "payload is not a MessagePack Struct: "),
    "JSON": (b'{"id":"a"}', "Expected `object`, got `int`"),
}


@pytest.mark.parametrize(("payload", "words"), MISMATCHES.values(), ids=MISMATCHES.keys())
def test_pc034_what_does_not_fit_the_type_is_a_decode_error(payload: bytes, words: str) -> None:
    with pytest.raises(DecodeError, match="Struct") as caught:
        MsgpackCodec(Struct).decode(payload)
    assert words in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize(
    "message",
    [
        {"color": "SECRET"},
        {"SECRET": 1},
        {"size": {"SECRET": "x"}},
        {"size": {"a": "SECRET"}},
        "SECRET",
        {b"SECRET": 1},
    ],
)
def test_errors_never_quote_the_payload(message: object) -> None:
    with pytest.raises(DecodeError) as caught:
        MsgpackCodec(Strict).decode(msgspec.msgpack.encode(message))
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


class Converted(msgspec.Struct):
    value: int

    def __post_init__(self) -> None:
        if self.value == 1:
            raise ValueError("SECRET")
        raise LookupError("SECRET")


@pytest.mark.parametrize("payload", [b"\x81\xa5value\x01", b"\x81\xa5value\x02"])
def test_what_a_types_own_checks_raise_is_contained(payload: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        MsgpackCodec(Converted).decode(payload)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__context__ is None


# ------------------------------------------------------------------ arbitrary bytes


_KINDS: tuple[Any, ...] = (Any, Struct, Data, Typed, Named, Node, Strict, Cat | Dog, list[int])
_CODECS: list[MsgpackCodec[Any]] = [MsgpackCodec(kind) for kind in _KINDS]

# Bytes that begin with what means something reach deeper than noise does.
_HEADS = st.sampled_from([bytes([n]) for n in range(256)])
_PIECES = st.one_of(
    _HEADS,
    st.binary(max_size=9),
    st.sampled_from([b"\x82\xa2id", b"\xa6amount", b"\xa4tags", b"\xd6\xff", b"\xc7\x0c\xff"]),
)
_BYTES = st.binary(max_size=200) | st.lists(_PIECES, max_size=12).map(b"".join)


@given(payload=_BYTES)
def test_arbitrary_bytes_decode_or_are_a_decode_error(payload: bytes) -> None:
    for codec in _CODECS:
        try:
            codec.decode(payload)
        except DecodeError:
            pass


@given(message=st.builds(Struct, st.text(), st.floats(), st.lists(st.text())), data=st.data())
def test_a_damaged_message_decodes_or_is_a_decode_error(message: Struct, data: Any) -> None:
    codec = MsgpackCodec(Struct)
    payload = bytearray(codec.encode(message))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    for damaged in (bytes(payload), bytes(payload[:at])):
        try:
            assert type(codec.decode(damaged)) is Struct
        except DecodeError:
            pass


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(message=_VALUES)
def test_what_encodes_decodes_to_the_same(message: Any) -> None:
    codec: MsgpackCodec[Any] = MsgpackCodec(Any)
    assert codec.decode(codec.encode(message)) == message


# ------------------------------------------------------------------ bombs

_FOUR_THOUSAND_MILLION = b"\xff\xff\xff\xff"


@pytest.mark.parametrize("kind", [Any, list, dict, bytes, str, Struct, list[Struct]])
@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"\xdd", id="array"),
        pytest.param(b"\xdf", id="map"),
        pytest.param(b"\xc6", id="bytes"),
        pytest.param(b"\xdb", id="text"),
        pytest.param(b"\xc9", id="extension"),
    ],
)
def test_a_claimed_length_allocates_nothing(kind: Any, head: bytes) -> None:
    codec: MsgpackCodec[Any] = MsgpackCodec(kind)
    payload = head + _FOUR_THOUSAND_MILLION + b"\x01"
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            codec.decode(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_many_claimed_lengths_inside_each_other_allocate_little() -> None:
    payload = (b"\xdd" + _FOUR_THOUSAND_MILLION) * 100_000
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            MsgpackCodec(Any).decode(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(payload)


@pytest.mark.parametrize("kind", [Any, list[Any], dict, Node])
@pytest.mark.parametrize("level", [b"\x91", b"\x81\xa4next", b"\x81\xa1a"])
def test_pc034_deep_nesting_is_a_decode_error(kind: Any, level: bytes) -> None:
    codec: MsgpackCodec[Any] = MsgpackCodec(kind)
    with pytest.raises(DecodeError):
        codec.decode(level * 200_000 + b"\xc0")


# ------------------------------------------------------------------ what cannot be written


class Opaque:
    pass


class Outer(msgspec.Struct):
    inner: Any


def _deep(levels: int) -> list[Any]:
    message: list[Any] = []
    for _ in range(levels):
        message = [message]
    return message


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        ("SECRET\ud800", "lone surrogate"),
        (Opaque(), "no MessagePack form"),
        (_deep(100_000), "nested too deeply"),
        (2**64, "an integer that MessagePack has no room for"),
        (-(2**63) - 1, "an integer that MessagePack has no room for"),
    ],
)
def test_what_cannot_be_written_is_an_encode_error(inner: Any, words: str) -> None:
    with pytest.raises(EncodeError, match=words) as caught:
        MsgpackCodec(Outer).encode(Outer(inner))
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert "SECRET" not in str(caught.value)


class Holder(msgspec.Struct):
    inner: Opaque


class Model(pydantic.BaseModel):
    id: str


class Plain(msgspec.Struct):
    name: str


@pytest.mark.parametrize("kind", [Opaque, Holder, Model, Plain | Struct, object])
def test_types_that_cannot_be_decoded_are_refused_at_once(kind: Any) -> None:
    with pytest.raises(UsageError, match="codec="):
        MsgpackCodec(kind)


def test_a_topic_of_messagepack() -> None:
    topology = TopologyBuilder("packed").dlq().build()
    topic = Topic(Struct, topology, codec=MsgpackCodec(Struct))
    assert topic.decode(topic.encode(Struct("a"))) == Struct("a")
    with pytest.raises(DecodeError, match="MessagePack Struct"):
        topic.decode(b"{}")
    with pytest.raises(EncodeError, match="takes Struct"):
        topic.encode(Data("a"))  # type: ignore[arg-type]


def test_repr() -> None:
    assert repr(MsgpackCodec(Struct)) == "MsgpackCodec(Struct)"
    assert repr(MsgpackCodec(dict[str, int])) == "MsgpackCodec(dict[str, int])"
