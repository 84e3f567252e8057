"""Codecs: JSON for every kind of type, and every payload that is none."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import subprocess
import sys
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shove_actors._errors import DecodeError, EncodeError, UsageError
from shove_actors.messaging import RAW, BytesCodec, Codec, JsonCodec


class Struct(msgspec.Struct):
    id: str
    amount: float = 0.0
    note: float | None = None


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


class Model(pydantic.BaseModel):
    id: str
    amount: float = 0.0
    note: float | None = None


class Aliased(pydantic.BaseModel):
    account_id: str = pydantic.Field(alias="accountId")


class Node(msgspec.Struct):
    value: float
    next: Node | None = None


class Color(enum.Enum):
    RED = "red"


class Plain(msgspec.Struct):
    color: Color
    count: int
    maybe: int | None = None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Struct, Struct("a", 1.5)),
        (Data, Data("a", [1.5, -2.0])),
        (Typed, {"id": "a", "amount": 1.5}),
        (Named, Named("a", 1.5)),
        (Model, Model(id="a", amount=1.5)),
        (Aliased, Aliased(accountId="a")),
        (Node, Node(1.0, Node(2.0))),
        (Plain, Plain(Color.RED, 3)),
        (str, "caf\u00e9"),
        (int, 2**70),
        (float, 1.5),
        (bool, True),
        (dict, {"a": [1, None]}),
        (dict[str, int], {"a": 1}),
        (list[Struct], [Struct("a")]),
        (dict[float, int], {1.5: 1}),
        (datetime, datetime(2024, 1, 1, tzinfo=timezone.utc)),
        (Decimal, Decimal("1.10")),
        (int | str, "x"),
        (Literal["a", "b"], "a"),
        (Any, {"a": 1}),
    ],
)
def test_json_round_trips(kind: Any, message: Any) -> None:
    codec = JsonCodec(kind)
    assert isinstance(codec, Codec)
    payload = codec.encode(message)
    assert type(payload) is bytes
    json.loads(payload)
    assert codec.decode(payload) == message


PC034 = {
    "zero bytes": b"",
    "invalid JSON": b"{nope",
    "NaN": b'{"id":"a","amount":NaN}',
    "Infinity": b'{"id":"a","amount":-Infinity}',
    "wrong schema": b'{"id":7}',
    "wrong kind": b"[]",
    "missing field": b"{}",
    "invalid UTF-8": b'{"id":"\xff"}',
    "1000 levels": b'{"id":' + b"[" * 1000 + b"]" * 1000 + b"}",
    "a million levels": b"[" * 1_000_000,
    "trailing": b'{"id":"a"}{}',
    "byte order mark": b'\xef\xbb\xbf{"id":"a"}',
    "no number": b'{"id":"a","amount":1e999x}',
}


@pytest.mark.parametrize("payload", PC034.values(), ids=PC034.keys())
@pytest.mark.parametrize("kind", [Struct, Data, Typed, Named, Model])
def test_pc034_undecodable_payloads_are_decode_errors(kind: Any, payload: bytes) -> None:
    if kind is Named and payload == b"[]":
        payload = b'["a"]'
    with pytest.raises(DecodeError, match=kind.__name__) as caught:
        JsonCodec(kind).decode(payload)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("kind", [Any, dict, list[Any]])
def test_pc034_deep_nesting_where_anything_is_allowed(kind: Any) -> None:
    for open_, close in ((b"[", b"]"), (b'{"a":', b"}")):
        with pytest.raises(DecodeError):
            JsonCodec(kind).decode(open_ * 200_000 + b"1" + close * 200_000)


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    color: Color = Color.RED
    size: dict[str, int] = {}


class StrictModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    color: Color = Color.RED
    size: dict[str, int] = {}

    @pydantic.field_validator("color", mode="before")
    @classmethod
    def check(cls, value: Any) -> Any:
        if value == "SECRET":
            raise ValueError(f"no such colour: {value}")
        return value


@pytest.mark.parametrize("kind", [Strict, StrictModel])
@pytest.mark.parametrize(
    "payload",
    [
        b'{"color":"SECRET"}',
        b'{"SECRET":1}',
        b'{"size":{"SECRET":"x"}}',
        b'{"size":{"a":"SECRET"}}',
        b"SECRET",
        b'{"color":"SECRET',
    ],
)
def test_errors_never_quote_the_payload(kind: Any, payload: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        JsonCodec(kind).decode(payload)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize(
    ("kind", "payload", "words"),
    [
        (Struct, b'{"id":7}', "Expected `str`, got `int` - at `$.id`"),
        (Struct, b"{}", "missing required field `id`"),
        (Struct, b"", "truncated"),
        (Data, b'{"id":"a","amounts":["x"]}', "at `$.amounts[0]`"),
        (Strict, b'{"color":"x"}', "a value is not allowed at `$.color`"),
        (Model, b'{"id":7}', "string_type at `id`"),
        (Aliased, b'{"accountId":7}', "string_type at `accountId`"),
        (Model, b"{", "json_invalid"),
    ],
)
def test_errors_say_where_and_what(kind: Any, payload: bytes, words: str) -> None:
    with pytest.raises(DecodeError) as caught:
        JsonCodec(kind).decode(payload)
    assert words in str(caught.value)


NON_FINITE = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("value", NON_FINITE)
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (float, lambda v: v),
        (Struct, lambda v: Struct("a", v)),
        (Struct, lambda v: Struct("a", 1.0, v)),
        (Data, lambda v: Data("a", [1.0, v])),
        (Typed, lambda v: {"id": "a", "amount": v}),
        (Named, lambda v: Named("a", v)),
        (Model, lambda v: Model(id="a", amount=v)),
        (Model, lambda v: Model(id="a", note=v)),
        (Node, lambda v: Node(1.0, Node(v))),
        (dict, lambda v: {"a": {"b": [v]}}),
        (dict[str, float], lambda v: {"a": v}),
        (dict[float, int], lambda v: {v: 1}),
        (set[float], lambda v: {v}),
        (tuple[float, ...], lambda v: (1.0, v)),
        (Any, lambda v: [v]),
        (float | None, lambda v: v),
    ],
)
def test_pc034_nan_and_infinity_are_refused_before_they_are_stored(
    kind: Any, make: Any, value: float
) -> None:
    """As `null` they would be stored, and then never decode, or decode as no value at all."""
    with pytest.raises(EncodeError, match="NaN or an infinity"):
        JsonCodec(kind).encode(make(value))


def test_null_and_the_word_null_are_no_nan() -> None:
    for message in (Struct("null", 1.0, None), Struct("NaN", 2.0), Node(1.0)):
        codec: JsonCodec[Any] = JsonCodec(type(message))
        assert codec.decode(codec.encode(message)) == message
    model = JsonCodec(Model)
    for text in ("null", "NaN", "-Infinity"):
        assert model.decode(model.encode(Model(id=text))) == Model(id=text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(message=_JSON)
def test_what_encodes_decodes_to_the_same(message: Any) -> None:
    codec: JsonCodec[Any] = JsonCodec(Any)
    try:
        payload = codec.encode(message)
    except EncodeError:
        assert "nan" in repr(message) or "inf" in repr(message)
    else:
        assert codec.decode(payload) == message


class Constants(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")
    x: float


class Strings(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="strings")
    x: float
    y: int | None = None


def test_pydantic_models_that_say_how_they_write_nan() -> None:
    with pytest.raises(EncodeError, match="NaN or an infinity"):
        JsonCodec(Constants).encode(Constants(x=math.inf))
    codec = JsonCodec(Strings)
    assert math.isnan(codec.decode(codec.encode(Strings(x=math.nan))).x)


def test_a_pydantic_field_of_the_wrong_type_is_refused_before_it_is_stored() -> None:
    model = Model(id="a")
    model.amount = "SECRET"  # type: ignore[assignment]
    with pytest.raises(EncodeError, match="not of the field's type") as caught:
        JsonCodec(Model).encode(model)
    assert "SECRET" not in str(caught.value)


def _deep(levels: int) -> list[Any]:
    message: list[Any] = []
    for _ in range(levels):
        message = [message]
    return message


class Outer(msgspec.Struct):
    inner: Any


class Opaque:
    pass


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Outer("SECRET\ud800"), "lone surrogate"),
        (Outer(Opaque()), "no JSON form"),
        (Outer(_deep(100_000)), "nested too deeply"),
    ],
)
def test_what_cannot_be_written_is_an_encode_error(message: Any, words: str) -> None:
    with pytest.raises(EncodeError, match=words) as caught:
        JsonCodec(Outer).encode(message)
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert "SECRET" not in str(caught.value)
    assert isinstance(caught.value, TypeError)


class Converted(msgspec.Struct):
    value: int

    def __post_init__(self) -> None:
        if self.value == 1:
            raise ValueError("SECRET")
        if self.value == 2:
            raise LookupError("SECRET")


class Unwritable(pydantic.BaseModel):
    value: int = 0

    @pydantic.field_serializer("value")
    def write(self, value: int) -> str:
        if value == 1:
            raise LookupError("SECRET")
        return "\ud800"


@pytest.mark.parametrize("payload", [b'{"value":1}', b'{"value":2}'])
def test_what_a_types_own_checks_raise_is_contained(payload: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        JsonCodec(Converted).decode(payload)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("value", [0, 1])
def test_what_a_models_own_serialisers_raise_is_contained(value: int) -> None:
    with pytest.raises(EncodeError) as caught:
        JsonCodec(Unwritable).encode(Unwritable(value=value))
    assert "SECRET" not in str(caught.value)
    assert caught.value.__context__ is None


def test_pc034_nan_around_deep_nesting_in_a_model() -> None:
    for payload in (b'{"id":NaN' + b"[" * 200_000, b'{"id":"NaN' + b"[" * 9, b'{"amount":NaN'):
        with pytest.raises(DecodeError):
            JsonCodec(Model).decode(payload)


class Holder(msgspec.Struct):
    inner: Opaque


class ModelHolder(msgspec.Struct):
    inner: list[Model]


class Cat(msgspec.Struct):
    name: str


@pytest.mark.parametrize("kind", [Opaque, Holder, ModelHolder, Cat | Struct, object])
def test_types_that_cannot_be_decoded_are_refused_at_once(kind: Any) -> None:
    with pytest.raises(UsageError, match="codec="):
        JsonCodec(kind)


def test_raw_bytes() -> None:
    assert isinstance(RAW, BytesCodec)
    assert RAW.decode(RAW.encode(b"\x00\xff")) == b"\x00\xff"
    with pytest.raises(EncodeError, match="bytes, not str"):
        RAW.encode("x")  # type: ignore[arg-type]


def test_pydantic_is_not_imported_for_other_types() -> None:
    code = (
        "import sys, dataclasses\n"
        "from shove_actors.messaging import JsonCodec\n"
        "JsonCodec(dataclasses.make_dataclass('D', [('x', int)])).decode(b'{\"x\":1}')\n"
        "print('pydantic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "False"


def test_repr() -> None:
    assert repr(JsonCodec(Struct)) == "JsonCodec(Struct)"
    assert repr(JsonCodec(dict[str, int])) == "JsonCodec(dict[str, int])"
    assert repr(RAW) == "BytesCodec()"
