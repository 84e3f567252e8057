"""One topic's dead letters in one group: read again, never destroyed unseen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from shove_actors._errors import DecodeError, UsageError
from shove_actors.actors import (
    ChildSpec,
    Context,
)
from shove_actors.backends import Delivery, LaneSpec
from shove_actors.messaging import (
    DeadMetadata,
    MessageMetadata,
    Outcome,
    Reject,
    Topic,
    TopologyBuilder,
)

from ._attempts import AttemptLedger
from ._audit import resolve_audited
from ._dead_settle import DeadSettler
from ._handler import Resolved
from ._options import ConsumerOptions
from ._publish_service import PublishService
from ._registration import UNLIMITED, Registration
from ._worker import Worker


class DeadRegistration(Registration):
    """Consumes a topic's dead letters.

    What the handler acknowledges is done; RETRY comes back after a pause; what exhausts its
    tries, or does not decode, stays in the dead-letter stream (its retention is by limits, not by
    acknowledgement) and is reported. A handler object may have `handle_undecodable(payload,
    metadata, context)` to take those too.

    Of a FAIL_ALL topic, what the handler acknowledges is deleted: what is left in its dead-letter
    queue is what a replay of its keys would handle (`_replay.py`).
    """

    _reads_shards = False

    def __init__(
        self,
        topic: Topic[Any],
        options: ConsumerOptions,
        *,
        handler: object,
        context: object = None,
    ) -> None:
        if topic.topology.dlq is None:
            raise UsageError(f"topic {topic.queue!r} has no dead-letter queue; add .dlq()")
        super().__init__(
            topic,
            options,
            handler=handler,
            context=context,
            method="handle_dead" if hasattr(handler, "handle_dead") else "handle",
        )
        # To the workers the DLQ is a plain topic without a way further down.
        self.lane_topology = TopologyBuilder(topic.topology.dlq).allow_message_loss().build()
        # The counters that it died with are its story, not part of the budget it has here.
        self.counts_hops = False
        # It exists for what was too large, too.
        self.max_message_size = 1 << 62
        if hasattr(handler, "handle_undecodable"):
            self.decode = _decode_or_raw(topic)

    def _resolved(self, handler: object) -> Resolved:
        resolved = super()._resolved(handler)
        if hasattr(handler, "handle_undecodable"):
            raw = resolve_audited(handler, self, method="handle_undecodable")
            resolved = _with_raw(resolved, raw)
        if self.topic.topology.fails_all:
            resolved = self._deleting(resolved)
        return self._own(resolved)

    def _own(self, handler: Resolved) -> Resolved:
        """Letters of another topic that names the same queue (SW-15) are not this handler's: they
        are kept and reported, as what cannot be read is."""
        own = self.topic.queue

        async def call(message: Any, metadata: Any, context: Any) -> Any:
            owner = metadata.original_queue
            if owner is not None and owner != own:
                return Reject(reason=f"it is a dead letter of {owner}, not of {own}")
            return await handler.call(message, metadata, context)

        return Resolved(call, wants_metadata=True, in_thread=handler.in_thread, name=handler.name)

    def _deleting(self, handler: Resolved) -> Resolved:
        async def call(message: Any, metadata: Any, context: Any) -> Any:
            outcome = await handler.call(message, metadata, context)
            if outcome == Outcome.ACK:
                # Before it is acknowledged: killed in between, it is gone, and that is right.
                backend = self.settler.publisher.backend
                await backend.delete_message(metadata.stream, metadata.sequence)
            return outcome

        return Resolved(call, wants_metadata=True, in_thread=handler.in_thread, name=handler.name)

    @property
    def name(self) -> str:
        return str(self.topic.topology.dlq)

    def bind(self, publisher: PublishService) -> None:
        self.settler = DeadSettler(self.lane_topology, publisher)
        self.ledger = AttemptLedger(publisher.backend)

    def metadata(
        self, delivery: Delivery, retry_count: int | None, shard: int | None
    ) -> MessageMetadata:
        return DeadMetadata(delivery, retry_count=None, shard=shard)

    @property
    def consumer_count(self) -> int:
        return self.options.consumers[0]

    def lane_specs(self) -> list[LaneSpec]:
        return [
            LaneSpec(
                stream=self.lane_topology.queue,
                durable=self.lane_topology.durable,
                credit=self.options.prefetch * self.consumer_count,
                max_ack_pending=UNLIMITED,
                ack_wait_s=self.options.ack_wait,
            )
        ]

    def specs(self, drain_timeout: float) -> list[ChildSpec]:
        return [
            replace(spec, id=f"{self.name}-{index}", start=partial(self._consume_dead, index))
            for index, spec in enumerate(super().specs(drain_timeout))
        ]

    async def _consume_dead(self, index: int, ctx: Context[None]) -> None:
        worker = Worker(self, self.lanes[0])
        self.consumers[index] = [worker]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run, worker, trio.current_time())
            ctx.started()
            await ctx.stop_requested.wait()
            worker.stop()


class _Raw:
    """A payload that did not decode, on its way to `handle_undecodable`."""

    __slots__ = ("payload",)

    def __init__(self, payload: bytes) -> None:
        self.payload = payload


def _decode_or_raw(topic: Topic[Any]) -> Callable[[bytes], Any]:
    def decode(payload: bytes) -> Any:
        try:
            return topic.decode(payload)
        except DecodeError:
            return _Raw(payload)

    return decode


def _with_raw(handler: Resolved, raw: Resolved) -> Resolved:
    async def call(message: Any, metadata: Any, context: Any) -> Any:
        if isinstance(message, _Raw):
            return await raw.call(message.payload, metadata, context)
        return await handler.call(message, metadata, context)

    return Resolved(call, wants_metadata=True, in_thread=False, name=handler.name)
