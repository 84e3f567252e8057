"""Carry a verdict out: store in the next place, wait for the acknowledgement, then acknowledge.

There is no instant at which a message exists only in memory, and no acknowledgement before the
copy's. Killed at any step:

    before the copy          the original is delivered again
    copy stored, not acked   the original is delivered again; the repeated hop has the same id and
                             is answered as a duplicate of itself; then the original is acked
    acked                    the copy alone exists

If the copy cannot be stored (its stream is full, too large, no answer) the original stays where it
is and comes back after a growing pause, with a warning; it is never dropped and never spins
(PC-078, PC-079, SW-12). All of it runs shielded with a deadline: cancelled or not, a settle that
has begun is finished or given up whole (PC-100).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import trio

from shove_actors._errors import MessageTooLarge, PublishError, ShoveError
from shove_actors._log import about
from shove_actors.backends import Delivery
from shove_actors.messaging import (
    KEY,
    MAX_HEADER_BLOCK,
    Ack,
    Dead,
    DeathReason,
    Discard,
    Hop,
    Nak,
    Topology,
    Verdict,
    dead_headers,
    dead_id,
    decode_key,
    encode_headers,
    give_up,
    hop_headers,
    logical_id,
    origin_of,
)

from ._publish_service import PublishService

if TYPE_CHECKING:
    from ._observer import TopicObserver

logger = logging.getLogger("shove_actors.consumer")

#: How long a shielded settle may take before it is given up (the message then comes back).
SETTLE_BUDGET_S: Final = 10.0
#: Pauses before a message whose copy could not be stored is tried again.
STUCK_FIRST_S: Final = 0.5
STUCK_MAX_S: Final = 30.0

#: Header bytes left free below the server's limit, so that a story that just fits is not tried.
HEADER_MARGIN: Final = 256

#: What an acknowledgement is counted as.
_COUNTED: Final = {Ack: "ack", Hop: "hop", Dead: "dead", Discard: "discarded"}


class Settler:
    """Settles deliveries of one topic."""

    def __init__(self, topology: Topology, publisher: PublishService) -> None:
        self.topology = topology
        self.publisher = publisher
        self.counts: dict[str, int] = {}
        #: Telemetry, where somebody looks.
        self.observer: TopicObserver | None = None
        self._stuck: dict[int, int] = {}
        self._warned: set[str] = set()

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def warn_once(self, what: str, text: str, *args: object) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning(text, *args, extra=about(what, queue=self.topology.queue))

    async def carry_out(self, delivery: Delivery, verdict: Verdict, retry_count: int) -> bool:
        """True when the verdict holds; False when the message comes back for another try."""
        if isinstance(verdict, (Hop, Dead)):
            moved = await self._move(delivery, verdict, retry_count)
            if moved is None:
                return False
            verdict = moved
        self._stuck.pop(delivery.sequence, None)
        if isinstance(verdict, Nak):
            if verdict.warn_defer:
                self.warn_once(
                    "deferred_as_retry",
                    "a handler of the sequenced topic %r returned DEFER; order would be lost, so "
                    "it is treated as RETRY",
                    self.topology.queue,
                )
            delivery.lane.nak(delivery, verdict.delay_s)
            self._count("retry" if verdict.counted else "defer")
            return True
        if isinstance(verdict, Discard):
            self.warn_once(
                "discarded",
                "topic %r has no dead-letter queue: a message that ended as %s was discarded, "
                "and so will later ones be (counted, not logged)",
                self.topology.queue,
                verdict.reason,
            )
        delivery.lane.ack(delivery)
        if self.observer is not None:
            self.observer.settled(verdict)
        self._count(_COUNTED[type(verdict)])
        return True

    async def _move(
        self, delivery: Delivery, verdict: Hop | Dead, retry_count: int
    ) -> Verdict | None:
        """Store the copy. What holds then (the original can be acknowledged), or None: it stays."""
        with trio.move_on_after(SETTLE_BUDGET_S, shield=True):
            try:
                if isinstance(verdict, Hop):
                    try:
                        await self._hop(delivery, verdict)
                        return verdict
                    except MessageTooLarge as exc:
                        if not verdict.counted:
                            self.stay(delivery, exc)
                            return None
                        # It cannot grow by a single header, so it can never be retried.
                        end = give_up(self.topology, DeathReason.OVERSIZE, "cannot_grow", str(exc))
                    if not isinstance(end, Dead):
                        return end
                    verdict = end
                await self._bury(delivery, verdict, retry_count)
            except ShoveError as exc:
                self.stay(delivery, exc)
                return None
            return verdict
        self.stay(delivery, TimeoutError(f"no acknowledgement within {SETTLE_BUDGET_S:g} s"))
        return None

    def forget(self, sequence: int) -> None:
        """This message is done with; whatever kept it here is over."""
        self._stuck.pop(sequence, None)

    def stay(self, delivery: Delivery, error: Exception) -> None:
        """It could not be settled: again after a pause, longer each time."""
        tries = self._stuck[delivery.sequence] = self._stuck.get(delivery.sequence, 0) + 1
        pause = min(STUCK_FIRST_S * 2 ** min(tries - 1, 10), STUCK_MAX_S)
        self._count("stuck")
        if self.observer is not None:
            self.observer.stuck(self.publisher.backend.capabilities.name)
        logger.warning(
            "message %s:%d could not be moved on (%s); it stays and is tried again in %.1f s",
            delivery.stream,
            delivery.sequence,
            error,
            pause,
            extra=about("settle_stuck", queue=delivery.stream, sequence=delivery.sequence),
        )
        if not delivery.settled:
            delivery.lane.nak(delivery, pause)

    async def _hop(self, delivery: Delivery, verdict: Hop) -> None:
        original, where = delivery.headers, verdict.hold.name
        headers = hop_headers(
            original,
            msg_id=verdict.msg_id,
            message_id=logical_id(original, delivery.stream, delivery.sequence),
            origin=origin_of(delivery.sequence, delivery.timestamp_ns),
            retry_count=verdict.retry_count,
            defer_count=verdict.defer_count,
            due_after_s=verdict.due_after_s,
            queue=self.topology.queue,
            subject=delivery.subject,
            sequence=delivery.sequence,
            published_at_ns=delivery.timestamp_ns,
            failed_at_ns=self.publisher.backend.now_ns(),
        )
        watch = None
        if self.observer is not None:
            watch = self.observer.hopping(delivery, where, headers)
        block = encode_headers(headers, into=where)
        await self.publisher.publish(where, delivery.payload, block, watch)

    async def _bury(
        self, delivery: Delivery, verdict: Dead, retry_count: int, key: str | None = None
    ) -> None:
        """Into the dead-letter queue, with the story; with less of it if it does not fit.

        `key`: of a message that does not say its key itself.
        """
        dlq = self.topology.dlq
        assert dlq is not None
        headers = delivery.headers
        if key is None and KEY in headers:
            key = decode_key(headers[KEY])
        for minimal, named in ((False, key), (True, key), (True, None)):
            story = self._dead(delivery, headers, verdict, retry_count, named, minimal)
            watch = None
            if self.observer is not None and not minimal:
                watch = self.observer.hopping(delivery, dlq, story)
            block = encode_headers(story, into=dlq)
            if len(block) > MAX_HEADER_BLOCK - HEADER_MARGIN:
                continue  # has a limit of its own, whatever the payload
            if len(block) + len(delivery.payload) <= self.publisher.backend.max_payload:
                await self.publisher.publish(dlq, delivery.payload, block, watch)
                return
        # As large as the server allows, to the byte (a foreign producer's): the payload alone
        # still fits. Its reason is in the log; without an id a crash here may store it twice.
        logger.warning(
            "dead letter of %s:%d is too large for any header; stored without its reason (%s)",
            delivery.stream,
            delivery.sequence,
            verdict.reason,
            extra=about(
                "dead_letter_bare",
                queue=delivery.stream,
                sequence=delivery.sequence,
                reason=verdict.reason.value,
            ),
        )
        try:
            await self.publisher.publish(dlq, delivery.payload, b"")
        except MessageTooLarge as exc:
            raise PublishError("larger than the server's max_payload") from exc

    def _dead(
        self,
        delivery: Delivery,
        headers: Mapping[str, str],
        verdict: Dead,
        retry_count: int,
        key: str | None,
        minimal: bool,
    ) -> dict[str, str]:
        now = self.publisher.backend.now_ns()
        origin = origin_of(delivery.sequence, delivery.timestamp_ns)
        message_id = logical_id(headers, delivery.stream, delivery.sequence)
        return dead_headers(
            headers,
            msg_id=dead_id(message_id, origin),
            message_id=message_id,
            origin=origin,
            reason=verdict.reason,
            cause=verdict.cause,
            detail=verdict.detail,
            queue=self.topology.queue,
            subject=delivery.subject,
            stream=delivery.stream,
            sequence=delivery.sequence,
            key=key,
            retry_count=retry_count,
            published_at_ns=delivery.timestamp_ns,
            first_failed_at_ns=None,
            died_at_ns=now,
            minimal=minimal,
        )
