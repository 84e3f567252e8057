"""Topic and SequencedTopic: types are checked first, and a codec's failures are contained."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NewType, Optional, Protocol, TypedDict

import msgspec
import pytest

from shove_actors._errors import DecodeError, EncodeError, UsageError
from shove_actors.messaging import (
    RAW,
    JsonCodec,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
)

PLAIN = TopologyBuilder("orders").hold_queue(5).dlq().build()
LANES = (
    TopologyBuilder("ledger")
    .sequenced(SequenceFailure.SKIP)
    .routing_shards(4)
    .hold_queue(1)
    .dlq()
    .build()
)


class Order(msgspec.Struct):
    id: str
    amount: float = 0.0


class BigOrder(Order):
    extra: int = 0


def test_a_topic_carries_its_parts() -> None:
    topic = Topic(Order, PLAIN)
    assert topic.message_type is Order
    assert topic.topology is PLAIN
    assert topic.queue == "orders"
    assert isinstance(topic.codec, JsonCodec)
    assert topic.decode(topic.encode(Order("a", 1.5))) == Order("a", 1.5)
    assert repr(topic) == "Topic(Order, 'orders')"


def test_bytes_are_raw_by_default() -> None:
    topic = Topic(bytes, PLAIN)
    assert topic.codec is RAW
    assert topic.encode(b"\xff") == b"\xff"
    assert topic.decode(b"") == b""


@pytest.mark.parametrize("message", [{"id": "a"}, "a", None, 7, Order])
def test_another_type_is_a_type_error_before_anything_is_sent(message: Any) -> None:
    with pytest.raises(TypeError, match="topic 'orders' takes Order") as caught:
        Topic(Order, PLAIN).encode(message)
    assert isinstance(caught.value, EncodeError)


def test_a_subclass_is_the_type() -> None:
    topic = Topic(Order, PLAIN)
    assert topic.decode(topic.encode(BigOrder("a"))) == Order("a")


class Fields(TypedDict):
    id: str


class Shape(Protocol):
    id: str


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Fields, {"id": "a"}, Order("a")),
        (dict[str, int], {"a": 1}, [1]),
        (list[int], [1], {"a": 1}),
        (float, 1, "1"),
        (float, 1.5, True),
        (int, 3, True),
        (int, 3, 3.0),
        (bool, True, 1),
        (bytes, b"", "x"),
        (str, "", b""),
    ],
)
def test_what_is_checked_of_other_types(kind: Any, good: Any, bad: Any) -> None:
    topic: Topic[Any] = Topic(kind, PLAIN)
    assert topic.decode(topic.encode(good)) == good
    with pytest.raises(EncodeError):
        topic.encode(bad)


@pytest.mark.parametrize(
    ("kind", "good"),
    [
        (int | str, "x"),
        (Optional[int], None),  # noqa: UP045
        (Annotated[int, msgspec.Meta(ge=0)], 3),
        (Literal["a", "b"], "a"),
        (NewType("Id", str), "x"),
        (Any, [1]),
    ],
)
def test_types_that_are_no_classes_are_checked_by_nobody_on_the_way_out(
    kind: Any, good: Any
) -> None:
    topic: Topic[Any] = Topic(kind, PLAIN)
    assert topic.decode(topic.encode(good)) == good


def test_a_type_that_cannot_be_checked_is_left_to_its_codec() -> None:
    topic: Topic[Any] = Topic(Shape, PLAIN, codec=Upper())  # type: ignore[type-abstract]
    assert topic.encode("a") == b"A"


class Upper:
    """A user's codec with a trap: its private name must not be mistaken for ours."""

    def encode(self, message: str) -> bytes:
        return message.upper().encode()

    def decode(self, payload: bytes) -> str:
        return payload.decode().lower()

    def _encode(self, message: str) -> bytes:
        raise AssertionError("private")


def test_a_users_codec() -> None:
    topic = Topic(str, PLAIN, codec=Upper())
    assert topic.encode("a") == b"A"
    assert topic.decode(b"B") == "b"


class Failing:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def encode(self, message: str) -> bytes:
        raise self.error

    def decode(self, payload: bytes) -> str:
        raise self.error


@pytest.mark.parametrize(
    "error", [ValueError("SECRET"), RecursionError(), MemoryError(), OSError("SECRET"), KeyError(1)]
)
def test_whatever_a_codec_raises_is_a_codec_error(error: Exception) -> None:
    topic = Topic(str, PLAIN, codec=Failing(error))
    for call, kind in (
        (lambda: topic.decode(b"x"), DecodeError),
        (lambda: topic.encode("x"), EncodeError),
    ):
        with pytest.raises(kind, match=type(error).__name__) as caught:
            call()
        assert "SECRET" not in str(caught.value)
        assert caught.value.__context__ is None


def test_codec_errors_pass_and_interrupts_are_not_swallowed() -> None:
    with pytest.raises(DecodeError, match="mine"):
        Topic(str, PLAIN, codec=Failing(DecodeError("mine"))).decode(b"")
    with pytest.raises(EncodeError, match="mine"):
        Topic(str, PLAIN, codec=Failing(EncodeError("mine"))).encode("")
    with pytest.raises(KeyboardInterrupt):
        Topic(str, PLAIN, codec=Failing(KeyboardInterrupt())).decode(b"")


class Returning:
    def __init__(self, value: Any) -> None:
        self.value = value

    def encode(self, message: str) -> bytes:
        return self.value  # type: ignore[no-any-return]

    def decode(self, payload: bytes) -> str:
        return ""


@pytest.mark.parametrize("value", ["text", bytearray(b"x"), None, memoryview(b"x")])
def test_a_codec_must_return_bytes(value: Any) -> None:
    with pytest.raises(EncodeError, match="not bytes"):
        Topic(str, PLAIN, codec=Returning(value)).encode("x")


def test_a_codec_without_methods_is_refused() -> None:
    with pytest.raises(UsageError, match="encode and decode"):
        Topic(str, PLAIN, codec="json")  # type: ignore[arg-type]


def test_an_unbuilt_topology_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\.build\(\)"):
        Topic(str, TopologyBuilder("q"))  # type: ignore[arg-type]


def test_kinds_of_topic_and_topology_must_fit() -> None:
    with pytest.raises(UsageError, match="use SequencedTopic"):
        Topic(str, LANES)
    with pytest.raises(UsageError, match=r"add \.sequenced"):
        SequencedTopic(str, key=lambda m: m, topology=PLAIN)
    with pytest.raises(UsageError, match="key must be a function"):
        SequencedTopic(str, key="id", topology=LANES)  # type: ignore[arg-type]


def test_a_topic_cannot_be_changed() -> None:
    topic = Topic(str, PLAIN)
    with pytest.raises(AttributeError, match="cannot be changed"):
        topic.topology = LANES
    with pytest.raises(AttributeError, match="cannot be changed"):
        del topic.codec
    with pytest.raises(AttributeError, match="cannot be changed"):
        topic.anything = 1  # type: ignore[attr-defined]


def test_sequence_keys() -> None:
    topic = SequencedTopic(Order, key=lambda order: order.id, topology=LANES)
    assert isinstance(topic, Topic)
    assert topic.key_of(Order("ACC-1")) == "ACC-1"
    assert topic.key_of(Order("")) == ""
    assert topic.shard_of("") == 0xCBF29CE484222325 % 4
    assert repr(topic) == "SequencedTopic(Order, 'ledger')"


def test_a_key_that_is_no_str_names_the_topic() -> None:
    topic = SequencedTopic(Order, key=lambda order: 7, topology=LANES)  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError, match="key of topic 'ledger' returned int"):
        topic.key_of(Order("a"))


def test_what_the_key_function_raises_reaches_the_publisher() -> None:
    def key(order: Order) -> str:
        raise LookupError("no account")

    with pytest.raises(LookupError, match="no account"):
        SequencedTopic(Order, key=key, topology=LANES).key_of(Order("a"))
