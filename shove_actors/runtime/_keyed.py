"""Keyed shards: what the runtime adds to a keyed lane (`backends/_keyed_lane.py`).

Order, leases and retries are the lane's; a worker takes from it as from any other. Here is whose
turn a message takes, and the worker that does not ask the server whether a redelivery is its own:
the shard's lease says so.

Tests: `tests/runtime/test_keyed*.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Final, Protocol

import trio

from shove_actors.backends import Delivery, KeyedLane, KeyedSpec, Lane, LaneSpec
from shove_actors.messaging import KEY, Topology, decode_key

from ._worker import Worker

#: What one process may have in hand of a shard: so many messages of keys that are stuck leave room
#: for the others. Large, because it is used by nothing else (`KeyedPulls` asks for what can be
#: handled soon), and because a shard whose stuck keys fill it stands still. At least so many, and
#: so many times what it handles at once.
BACKLOG_LEAST: Final = 10_000
BACKLOG: Final = 8
#: A message without its key in a header is decoded to learn it, unless it was delivered more often
#: than this: it may be the decoder that ends the process.
DECODED_AT_MOST: Final = 3
#: How long the end of a consumer waits for its shard to be handed on. Not in time: the next owner
#: waits for the lease.
HAND_ON_S: Final = 5.0
#: The same when it has been cancelled: whoever did that wants it to end.
CUT_SHORT_S: Final = 2.0

_HEADER: Final = b"\n" + KEY.encode() + b":"


class Keys(Protocol):
    """A sequenced topic."""

    def decode(self, payload: bytes) -> Any: ...

    def key_of(self, message: Any) -> str: ...


class KeyFinder:
    """Whose turn a delivery takes: called once for each, on arrival."""

    __slots__ = ("_topic",)

    def __init__(self, topic: Keys) -> None:
        self._topic = topic

    def __call__(self, delivery: Delivery) -> Hashable:
        raw = delivery.raw_headers
        start = raw.find(_HEADER) if raw is not None else -1
        if raw is not None and start >= 0:
            start += len(_HEADER)
            value = raw[start : raw.find(b"\r", start)].strip()
            if value.isascii() and b"%" not in value:
                return value.decode()
            return decode_key(value.decode(errors="surrogateescape"))
        if delivery.num_delivered <= DECODED_AT_MOST:
            try:
                return self._topic.key_of(self._topic.decode(delivery.payload))
            except Exception:
                pass  # it ends as a dead letter, or its key function raises: it has no order
        return delivery.sequence  # a turn of its own


def keyed_spec(
    topology: Topology, topic: Keys, shard: int, *, max_in_flight: int, ack_wait_s: float
) -> LaneSpec:
    """The lane of one keyed shard."""
    backlog = max(BACKLOG_LEAST, BACKLOG * max_in_flight)
    return LaneSpec(
        stream=topology.queue,
        durable=topology.shard_durable(shard),
        filter_subject=topology.shard_subject(shard),
        credit=backlog,
        max_ack_pending=backlog,
        ack_wait_s=ack_wait_s,
        keyed=KeyedSpec(record=str(shard), max_in_flight=max_in_flight, key_of=KeyFinder(topic)),
    )


class KeyedWorker(Worker):
    """A worker of a keyed shard."""

    async def _is_ours(self, delivery: Delivery) -> bool:
        # The lane gives deliveries only while the shard is ours, and cancels us when it is not.
        await trio.lowlevel.checkpoint()
        return not delivery.lost


def keyed_lanes(lanes: Sequence[Lane]) -> list[KeyedLane]:
    """Of a registration whose topic is keyed."""
    return [lane for lane in lanes if isinstance(lane, KeyedLane)]


async def consume_keyed(lane: Lane, work: Callable[[], Awaitable[None]]) -> None:
    """The work of a keyed lane itself, and that of its workers.

    However the workers end, also cancelled after the drain time-out: the shard is handed on, so
    that the next owner begins at once. For that the lane goes on for a moment longer.
    """
    assert isinstance(lane, KeyedLane)
    running = trio.CancelScope(shield=True)

    async def run() -> None:
        with running:
            await lane.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        ended = False
        try:
            await work()
            ended = True
        finally:
            cut_short = trio.current_effective_deadline() == float("-inf")
            if ended or cut_short:  # else it has crashed, and is started again on the same lane
                with trio.move_on_after(CUT_SHORT_S if cut_short else HAND_ON_S, shield=True):
                    await lane.close()
                    await lane.released()
            running.cancel()
