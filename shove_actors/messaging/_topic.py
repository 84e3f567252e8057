"""Topic and SequencedTopic: one flow of messages of one type."""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Generic, NoReturn, TypeVar, cast, get_origin, is_typeddict

from shove_actors._errors import DecodeError, EncodeError, UsageError

from ._codec import RAW, Codec
from ._codec_json import JsonCodec
from ._codec_msgpack import MsgpackCodec
from ._codec_problem import type_name
from ._sharding import shard_of
from ._topology import Topology

M = TypeVar("M")


class Topic(Generic[M]):
    """One event flow with one message type; a value, made once at import time.

        ORDERS = Topic(Order, TopologyBuilder("orders").hold_queue(5).dlq().build())

    `codec=None` means JSON for the type, or the bytes as they are for `bytes`. Raises `UsageError`
    when the type and the codec, or the topology, do not fit (yours to fix). Immutable; two topics
    are equal only if they are the same object.
    """

    __slots__ = ("_checked", "_decode", "_encode", "codec", "message_type", "topology")

    message_type: type[M]
    topology: Topology
    codec: Codec[M]
    _checked: type | tuple[type, ...] | None
    _encode: Callable[[M], bytes]
    _decode: Callable[[bytes], M]

    def __init__(
        self, message_type: type[M], topology: Topology, *, codec: Codec[M] | None = None
    ) -> None:
        if not isinstance(topology, Topology):
            raise UsageError(
                f"the topology of {type_name(message_type)} must be a Topology, not "
                f"{type(topology).__name__}: end the TopologyBuilder with .build()"
            )
        self._check_order(topology)
        if codec is None:
            codec = cast("Codec[M]", RAW) if message_type is bytes else JsonCodec(message_type)
        elif not (
            callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))
        ):
            raise UsageError(f"codec of topic {topology.queue!r} needs encode and decode methods")
        put = object.__setattr__
        put(self, "message_type", message_type)
        put(self, "topology", topology)
        put(self, "codec", codec)
        # Once per topic instead of once per message: which class to check, which functions to call.
        put(self, "_checked", _checked_class(message_type))
        encode, decode = codec.encode, codec.decode
        if isinstance(codec, (JsonCodec, MsgpackCodec)):
            encode, decode = codec.functions
        put(self, "_encode", _without_bool(encode) if message_type in (int, float) else encode)
        put(self, "_decode", decode)

    def _check_order(self, topology: Topology) -> None:
        if topology.sequenced:
            raise UsageError(
                f"topic {topology.queue!r} has a sequenced topology but no key: use "
                "SequencedTopic(message_type, key=..., topology=...), or leave out .sequenced(...)"
            )

    @property
    def queue(self) -> str:
        """Name of the topic and of its main stream."""
        return self.topology.queue

    def encode(self, message: M) -> bytes:
        """The payload of `message`.

        Raises `EncodeError` (a `TypeError` too) if it is not of the topic's type or its codec
        cannot write it; nothing has been sent then.
        """
        checked = self._checked
        if checked is not None and not isinstance(message, checked):
            wanted = type_name(self.message_type)
            raise EncodeError(
                f"topic {self.queue!r} takes {wanted}, not {type(message).__name__}: publish "
                f"{wanted}, or to another topic"
            )
        try:
            payload = self._encode(message)
        except EncodeError:
            raise
        except Exception as exc:
            problem = type(exc).__name__
        else:
            if type(payload) is bytes:
                return payload
            problem = f"it returned {type(payload).__name__}, not bytes"
        # Outside of the handler: a chained exception could carry the message itself.
        raise EncodeError(f"codec of topic {self.queue!r} failed to encode: {problem}")

    def decode(self, payload: bytes) -> M:
        """The message of `payload`. Raises `DecodeError`, whatever goes wrong inside the codec."""
        try:
            return self._decode(payload)
        except DecodeError:
            raise
        except Exception as exc:
            problem = type(exc).__name__
        raise DecodeError(f"codec of topic {self.queue!r} failed to decode: {problem}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a topic cannot be changed (tried to set {name!r}); make a new one")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a topic cannot be changed (tried to delete {name!r})")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type_name(self.message_type)}, {self.queue!r})"


class SequencedTopic(Topic[M]):
    """A topic whose messages are handled in order, per key.

        LEDGER = SequencedTopic(Entry, key=lambda e: e.account_id, topology=LEDGER_TOPOLOGY)

    `key` is called by every publish; what it raises reaches the publisher. A key is any str, the
    empty one included. The topology must be `sequenced(...)`: `UsageError` otherwise.
    """

    __slots__ = ("key",)

    key: Callable[[M], str]

    def __init__(
        self,
        message_type: type[M],
        *,
        key: Callable[[M], str],
        topology: Topology,
        codec: Codec[M] | None = None,
    ) -> None:
        if not callable(key):
            raise UsageError("key must be a function from a message to its sequence key (a str)")
        super().__init__(message_type, topology, codec=codec)
        object.__setattr__(self, "key", key)

    def _check_order(self, topology: Topology) -> None:
        if not topology.sequenced:
            raise UsageError(
                f"sequenced topic {topology.queue!r} has a topology without lanes: add "
                ".sequenced(SequenceFailure.SKIP) to its builder, or use Topic"
            )

    def key_of(self, message: M) -> str:
        """The sequence key of a message.

        What the key function raises passes unchanged; a key that is not a str is a `UsageError`.
        """
        key = self.key(message)
        if not isinstance(key, str):
            raise UsageError(
                f"key of topic {self.queue!r} returned {type(key).__name__}, not str: "
                "convert it, for example with str(...)"
            )
        return key

    def shard_of(self, key: str) -> int:
        """The lane of a key: FNV-1a 64 of its UTF-8 bytes modulo the number of shards."""
        return shard_of(key, self.topology.routing_shards)


def _without_bool(encode: Callable[[M], bytes]) -> Callable[[M], bytes]:
    # `True` is an int to isinstance, is written as a bool, and never decodes as a number again.
    def encode_number(message: M) -> bytes:
        if isinstance(message, bool):
            raise EncodeError(
                "a bool does not decode as a number: use a topic of bool, or int(...)"
            )
        return encode(message)

    return encode_number


def _checked_class(message_type: Any) -> type | tuple[type, ...] | None:
    """What `isinstance` can check of a message type; None when it can check nothing."""
    origin = get_origin(message_type)
    if origin is not None:
        # `dict[str, int]`: the container, the rest is the codec's. Others (`X | Y`, `Annotated`,
        # `Literal`) have an origin that is no container, although some of them are classes.
        if origin in (UnionType, Annotated):
            return None
        message_type = origin
    if message_type is float:
        return (float, int)  # as type checkers have it
    if is_typeddict(message_type):
        return dict
    if not isinstance(message_type, type):
        return None
    try:
        isinstance(None, message_type)
    except TypeError:
        return None  # a Protocol that is not checkable at run time
    return message_type
