"""The hold mover: returns held messages to their queue when they are due.

It works from durable state only: a held message is due at "stored at + delay", both of which the
stream knows, so any mover, in any process, at any time, comes to the same conclusion. Nothing is
kept here between two deliveries:

    not due yet    NAK with the remaining delay; the server brings it back then. If the mover was
                   killed before its NAK arrived, or the server before it was written, it comes
                   back when its lease ends, and is asked to wait for the rest
    due            store in the main queue, wait for the acknowledgement, acknowledge the held copy

If no process runs, held messages wait in their stream. Held messages count against the hold queue's
own durable, never against the main consumer's window (PC-031).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import trio

from shove_actors._errors import HeaderError, ShoveError
from shove_actors._log import about
from shove_actors.actors import Context
from shove_actors.backends import Backend, Delivery, Lane, LaneClosed, LaneSpec, Post
from shove_actors.messaging import (
    DEFER_COUNT,
    DUE_AFTER,
    ORIGINAL_SUBJECT,
    RETRY_COUNT,
    HoldQueue,
    Topology,
    encode_headers,
    hop_headers,
    logical_id,
    origin_of,
    read_counter,
    return_id,
)

from ._publish_service import PublishService, Waiter

logger = logging.getLogger("shove_actors.mover")

#: Held messages looked at in one go; also how many may be on their way back at once.
BATCH: Final = 64
CREDIT: Final = 256
#: How late a held message may be because its mover was killed with it in hand. Short, because
#: nothing is worth a longer lease here: a message is in hand for one round trip, and one that is
#: moved twice is stored once (`tests/durability/test_pending.py`).
ACK_WAIT_S: Final = 5.0
#: Pause before a message that could not be returned (queue full, say) is tried again.
BLOCKED_FIRST_S: Final = 0.5
BLOCKED_MAX_S: Final = 30.0
_NS: Final = 1_000_000_000
#: The server's timers are not finer; a remaining delay below it counts as due.
DUE_SLACK_NS: Final = 2_000_000


class HoldMover:
    """One hold queue of one topic."""

    def __init__(
        self, backend: Backend, publisher: PublishService, topology: Topology, hold: HoldQueue
    ) -> None:
        self._backend = backend
        self._publisher = publisher
        self._topology = topology
        self._hold = hold
        self.moved = 0

    def lane_spec(self) -> LaneSpec:
        return LaneSpec(
            stream=self._hold.name,
            durable=self._topology.hold_durable(self._hold),
            credit=CREDIT,
            max_ack_pending=-1,
            ack_wait_s=ACK_WAIT_S,
        )

    async def run(self, ctx: Context[None]) -> None:
        """The actor's body."""
        lane = await self._backend.open_lane(self.lane_spec())
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._move_all, lane)
                ctx.started()
                await ctx.stop_requested.wait()
                nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(3.0, shield=True):
                await lane.close()

    async def _move_all(self, lane: Lane) -> None:
        while True:
            try:
                batch = [await lane.receive()]
                while len(batch) < BATCH:
                    batch.append(lane.receive_nowait())
            except trio.WouldBlock:
                pass
            except LaneClosed:
                return
            try:
                await self._move(lane, batch)
            finally:
                for delivery in batch:
                    if not delivery.settled:
                        lane.nak(delivery)

    def due_in_ns(self, delivery: Delivery, now_ns: int) -> int:
        """Nanoseconds until it is due; 0 or less: now."""
        delay_ns = round(self._hold.delay_s * _NS)
        own = delivery.headers.get(DUE_AFTER, "")
        if own.isascii() and own.isdigit() and len(own) <= 15:
            delay_ns = int(own) * 1_000_000
        # Never longer than the delay itself, whatever the clocks say.
        return min(delivery.timestamp_ns + delay_ns - now_ns, delay_ns)

    async def _move(self, lane: Lane, batch: list[Delivery]) -> None:
        now_ns = self._backend.now_ns()
        under_way: list[tuple[Delivery, Waiter]] = []
        service = self._publisher
        for delivery in batch:
            remaining = self.due_in_ns(delivery, now_ns)
            if remaining > DUE_SLACK_NS:
                lane.nak(delivery, remaining / _NS)
                continue
            # Before a place in the window is taken, which a failure here would never give back.
            try:
                destination = self._destination(delivery)
                block = self._header_block(delivery)
            except Exception as exc:
                # Foreign messages hold anything. Whatever is wrong with this one, those behind
                # it are not to wait for it: as a crash of the mover they would, every time.
                self._stay(lane, delivery, exc)
                continue
            if not service.window.take_nowait():
                await service.window.take()
            waiter = Waiter()
            service.submit(
                Post(destination, delivery.payload, block, service.done, waiter.complete)
            )
            under_way.append((delivery, waiter))
        for delivery, waiter in under_way:
            try:
                await waiter.wait()
            except ShoveError as exc:
                self._stay(lane, delivery, exc)
            else:
                self.moved += 1
                lane.ack(delivery)

    def _stay(self, lane: Lane, delivery: Delivery, error: Exception) -> None:
        pause = self.pause_s(delivery)
        logger.warning(
            "held message %s:%d cannot return to %s (%s); trying again in %.1f s",
            delivery.stream,
            delivery.sequence,
            self._topology.queue,
            # Only our own errors are known to hold nothing of the message.
            error if isinstance(error, ShoveError) else type(error).__name__,
            pause,
            extra=about("hold_stuck", queue=delivery.stream, sequence=delivery.sequence),
        )
        lane.nak(delivery, pause)

    @staticmethod
    def pause_s(delivery: Delivery) -> float:
        """Until the next try. The server counts the tries: the first two deliveries of a message
        are that it is not due yet, and that it is."""
        tries = min(max(delivery.num_delivered - 2, 0), 10)
        return min(BLOCKED_FIRST_S * 2.0**tries, BLOCKED_MAX_S)

    def _destination(self, delivery: Delivery) -> str:
        topology = self._topology
        wanted = delivery.headers.get(ORIGINAL_SUBJECT)
        if wanted is not None:
            try:
                return topology.check_subject(wanted)
            except ShoveError:
                # A subject that the topic binds no longer: the message still belongs to it.
                pass
        return topology.default_subject or topology.queue

    def _header_block(self, delivery: Delivery) -> bytes:
        headers = delivery.headers
        message_id = logical_id(headers, delivery.stream, delivery.sequence)
        origin = origin_of(delivery.sequence, delivery.timestamp_ns)
        return encode_headers(
            hop_headers(
                headers,
                msg_id=return_id(message_id, origin),
                message_id=message_id,
                origin=origin,
                retry_count=_counter(headers, RETRY_COUNT),
                defer_count=_counter(headers, DEFER_COUNT),
            ),
            into=self._topology.queue,
        )


def _counter(headers: Mapping[str, str], name: str) -> int:
    # A copy has to be made whatever a foreign producer wrote; the consumer judges it.
    try:
        return read_counter(headers, name)
    except HeaderError:
        return 0
