"""One worker: takes deliveries of a lane and runs one handler at a time.

    take -> checks -> decode -> handler -> outcome -> route -> settle

Invariants
* A worker never takes a delivery before the handler of the one before has entirely ended, whether
  it returned, raised, timed out or was cancelled (PC-021).
* Every delivery taken is settled, given back (NAK), or its lease was lost; also when the worker is
  cancelled at any point. Giving back needs no await, so cancellation cannot prevent it.
* The fast path (a handler that acknowledges without having waited) has no await, no cancel scope
  of its own and no task switch. Everything else leaves the fast loop.

One cancel scope serves many messages; the handler clock or the lease keeper cancels it, and a scope
that has fired is replaced. An outer cancellation (drain time-out, kill)
passes through and the delivery in hand is given back as not attempted.

Fairness: at most `SLICE_S` between two checkpoints, so handlers that never wait cannot starve
keep-alives; a handler that blocks longer by itself cannot be helped (make it a plain function).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import trio

from shove_actors._errors import DecodeError, ShoveError
from shove_actors._log import about
from shove_actors.backends import Delivery, Lane, LaneClosed, margins
from shove_actors.messaging import Nak, Outcome, Verdict

from ._attempts import NONE, Attempts
from ._drive import drive
from ._gated import Gated, is_lost
from ._handler import Resolved
from ._job import Job
from ._judge import Judge

logger = logging.getLogger("shove_actors.consumer")

SLICE_S: Final = 0.001
#: How long a note about an attempt may hold up what follows it.
NOTE_BUDGET_S: Final = 5.0
_ACK: Final = Outcome.ACK
#: Headers that need a look before the handler is called; one scan of the raw block finds them.
_SPECIAL: Final = re.compile(
    rb"(?i)\n[ \t]*(?:status|shove-(?:retry-count|defer-count|control))[ \t]*:"
)


class Worker(Gated):
    """See the module's essay.

    `more`, or None where one worker is all there is: see to it that somebody is free for the next
    delivery.
    """

    def __init__(
        self,
        job: Job,
        lane: Lane,
        *,
        shard: int | None = None,
        more: Callable[[], None] | None = None,
        handler: Resolved | None = None,
    ) -> None:
        self._job = job
        self._lane = lane
        self._shard = shard
        self._more = more
        self._handler = handler if handler is not None else job.handler
        self._call = self._handler.call
        # A thread cannot be cancelled, so a plain function is not timed.
        self._clock = None if self._handler.in_thread else job.clock
        self._scope = trio.CancelScope()
        self._current: Delivery | None = None
        self._judge = Judge(job, self._handler.name)
        self._attempts = NONE
        #: A suspect whose handler has been noted as started (see `_attempts.py`).
        self._marked: Delivery | None = None
        self._waiting = False
        #: What handles messages on behalf of a control message that is in hand.
        self._inner: Worker | None = None
        self._killed = False
        self.stopping = False

    @property
    def busy(self) -> bool:
        """Whether a handler is running."""
        return self._current is not None

    def stop(self) -> None:
        """Take nothing more; end at once if idle, else after the message in hand."""
        self.stopping = True
        if self._current is None:
            self._scope.cancel()
        elif self._inner is not None:
            self._inner.stop()

    def time_out(self) -> None:
        """From the handler clock: the handler has had its time."""
        if self._current is not None:
            self._current.timed_out = True
        self._scope.cancel()

    def kill(self) -> None:
        """Cancel the handler; its message is given back as not attempted."""
        self.stopping = self._killed = True
        self._scope.cancel()

    async def run(self) -> None:
        """Until the lane is closed or `stop`. Raises what ended the lane otherwise."""
        try:
            while not self.stopping:
                decided: tuple[Delivery, Verdict, int] | None = None
                failure: Exception | None = None
                self._scope = scope = trio.CancelScope()
                try:
                    with scope:
                        decided = await self._take_until_slow(scope)
                except LaneClosed:
                    return
                except Exception as exc:
                    # Ordinary errors of a handler are outcomes long before this point. What
                    # arrives here was raised while our own cancellation unwound it, or is a bug.
                    if not scope.cancel_called or self._current is None:
                        raise
                    failure = exc
                if decided is None and self._marked is not None:
                    await self._unmark()
                if self._killed and decided is None:
                    return
                if decided is None and self._current is not None:
                    decided = self._interrupted(self._current, failure)
                if decided is not None:
                    self._others_go_on()
                    await self._settle(*decided)
        finally:
            if self._marked is not None:
                await self._unmark()
            self._give_back()

    # ------------------------------------------------------------------ the fast loop

    async def _take_until_slow(
        self, scope: trio.CancelScope
    ) -> tuple[Delivery, Verdict, int] | None:
        """Handle messages until one needs more than an acknowledgement.

        None: nothing to settle; the caller looks whether to stop, and goes on in a fresh scope.
        """
        lane, job = self._lane, self._job
        receive_nowait, decode, context = lane.receive_nowait, job.decode, job.context
        ack, call, waits = lane.ack, self._call, self._handler_waits
        judge, gate = self._judge, job.gate
        wants_metadata = self._handler.wants_metadata
        largest = job.max_message_size
        counts = job.settler.counts
        special = _SPECIAL.search
        now = trio.lowlevel.current_clock().current_time
        pause_at = now() + SLICE_S
        while not self.stopping:
            if now() > pause_at:
                await trio.lowlevel.checkpoint()
                pause_at = now() + SLICE_S
            try:
                delivery = receive_nowait()
            except trio.WouldBlock:
                delivery = await lane.receive()
                pause_at = now() + SLICE_S
                if scope.cancel_called and not delivery.lost:
                    # Stopped between its arrival and our turn: its handler would be interrupted at
                    # once, as if its time were up.
                    lane.nak(delivery)
                    return None
            if delivery.lost:
                lane.forget(delivery)
                job.report_lost(delivery)
                continue
            self._current = delivery
            self._attempts = NONE
            retry_count = 0
            if gate is not None and gate.is_control(delivery):
                return await self._obey(gate, delivery)
            raw = delivery.raw_headers
            if delivery.num_delivered > 1 or (raw is not None and special(raw)):
                # Anything but a plain first delivery: retries, dead ends, foreign headers.
                try:
                    retry_count, verdict = await self._inspect(delivery)
                except ShoveError as exc:
                    self._not_now(delivery, exc)
                    continue
                if is_lost(delivery):
                    return self._interrupted(delivery, None)
                if verdict is not None:
                    return delivery, verdict, retry_count
            payload = delivery.payload
            if len(payload) > largest:
                return delivery, judge.too_large(len(payload)), retry_count
            try:
                message = decode(payload)
            except DecodeError as exc:
                return delivery, judge.undecodable(exc), retry_count
            if gate is not None and not gate.passes(delivery):
                found = await self._look_up(gate, delivery, message, retry_count)
                if found is not True:
                    return found
            metadata = job.metadata(delivery, retry_count, self._shard) if wants_metadata else None
            delivery.on_lost = self._lease_lost
            self._waiting = False
            job.busy += 1
            try:
                outcome = await drive(call(message, metadata, context), waits)
            except Exception as exc:
                if is_lost(delivery):
                    return self._interrupted(delivery, exc)
                return delivery, judge.raised(delivery, exc, self._attempts), retry_count
            finally:
                job.busy -= 1
                delivery.on_lost = None
                if self._waiting:
                    self._waiting = False
                    if self._clock is not None:
                        self._clock.end(self)
            if outcome is _ACK and not delivery.lost and self._marked is None:
                ack(delivery)
                self._current = None
                if is_lost(delivery):  # the acknowledgement came too late and was dropped
                    job.report_lost(delivery)
                else:
                    counts["ack"] = counts.get("ack", 0) + 1
                    self._cleared()
                    if delivery.num_delivered > 1:
                        job.settler.forget(delivery.sequence)
                if scope.cancel_called:
                    # Fired in the instant the handler ended: of no meaning for the next one.
                    return None
                continue
            if is_lost(delivery):
                return self._interrupted(delivery, None)
            return delivery, judge.returned(delivery, outcome, self._attempts), retry_count
        return None

    def _handler_waits(self) -> None:
        """First wait of the handler: its time counts from here, and others may go on."""
        self._waiting = True
        if self._clock is not None:
            self._clock.begin(self)
        self._others_go_on()

    def _others_go_on(self) -> None:
        """This worker is about to wait: what is in the lane is for somebody else."""
        if self._more is None:
            self._lane.wake_next()
        elif self._job.pacer.busy(self._lane):
            self._job.pacer.later(self._more)
        else:
            self._more()

    # ------------------------------------------------------------------ what is known of it

    async def _inspect(self, delivery: Delivery) -> tuple[int, Verdict | None]:
        """Retry count, and the verdict on what must not reach the handler."""
        judge, job = self._judge, self._job
        ledger = job.ledger
        if judge.needs_attempts(delivery):
            self._others_go_on()
            self._attempts = await ledger.read(delivery)
            if self._shard is not None and not await self._is_ours(delivery):
                delivery.lost = True
                return 0, None
        count, verdict = judge.arrival(delivery, self._attempts)
        if verdict is not None or not judge.suspects(delivery):
            return count, verdict
        verdict = judge.crashed(delivery, self._attempts)
        if verdict is None or self._attempts.started:
            return count, verdict
        # One at a time: if the process dies of it, the note names it and nobody else.
        await job.suspects.acquire()
        self._marked = delivery
        self._attempts = replace(self._attempts, started=True)
        await ledger.write(delivery, self._attempts)
        return count, None

    async def _is_ours(self, delivery: Delivery) -> bool:
        """Whether a redelivery on a shard may be begun. Its lease is kept meanwhile.

        A server that was stopped until after the lease delivers again first, and then reads the
        settle that was waiting for it: the lane would go on while this is handled.
        """
        accounted = self._attempts.failed >= delivery.num_delivered - 1
        await trio.sleep(margins.RETURNED_GRACE_S if accounted else margins.STALE_ACK_GRACE_S)
        if is_lost(delivery) or not await self._job.owns(delivery):
            return False
        # A NAK that was read meanwhile has set a delay, after which it would be somebody else's.
        self._lane.renew(delivery)
        return True

    def _cleared(self) -> None:
        """The suspect's attempt is over; the next suspect may begin."""
        if self._marked is not None:
            self._marked = None
            self._job.suspects.release()

    def _not_now(self, delivery: Delivery, error: ShoveError) -> None:
        """What is known of it cannot be read or written: it comes back, and nothing is counted."""
        logger.warning(
            "message %s:%d has to wait: what is known of it cannot be looked up (%s)",
            delivery.stream,
            delivery.sequence,
            error,
            extra=about("lookup_failed", queue=delivery.stream, sequence=delivery.sequence),
        )
        self._current = None
        self._cleared()
        if is_lost(delivery):
            self._lane.forget(delivery)
            self._job.report_lost(delivery)
        else:
            self._lane.nak(delivery, self._job.limits.default_delay_s)

    async def _note(self, delivery: Delivery, attempts: Attempts) -> None:
        """Bounded, and finished even when we are being cancelled. A failure costs a count only."""
        with trio.move_on_after(NOTE_BUDGET_S, shield=True):
            try:
                await self._job.ledger.write(delivery, attempts)
            except ShoveError as exc:
                logger.warning(
                    "the attempts of message %s:%d could not be noted (%s)",
                    delivery.stream,
                    delivery.sequence,
                    exc,
                    extra=about("note_failed", queue=delivery.stream, sequence=delivery.sequence),
                )

    async def _unmark(self) -> None:
        """Whatever became of the attempt, it has not killed us."""
        delivery = self._marked
        if delivery is not None:
            self._attempts = replace(self._attempts, started=False)
            await self._note(delivery, self._attempts)
            self._cleared()

    def _interrupted(
        self, delivery: Delivery, failure: Exception | None
    ) -> tuple[Delivery, Verdict, int] | None:
        """Our own cancellation ended the handler: its time was up, or its lease is lost."""
        if failure is not None:
            self._judge.raised_while_cancelled(delivery, failure)
        if delivery.lost:
            self._current = None
            self._lane.forget(delivery)
            self._job.report_lost(delivery)
            return None
        verdict, retries = self._judge.timed_out(
            delivery, self._job.clock.timeout_s, self._attempts
        )
        return delivery, verdict, retries

    async def _settle(self, delivery: Delivery, verdict: Verdict, retry_count: int) -> None:
        job = self._job
        if delivery.lost:
            self._current = None
            self._lane.forget(delivery)
            job.report_lost(delivery)
            await self._unmark()
            return
        if isinstance(verdict, Nak) and verdict.counted:
            # Before the NAK: an attempt that is over must not be forgotten by a crash.
            failed = self._attempts.failed + 1
            await self._note(delivery, replace(self._attempts, failed=failed, started=False))
            self._cleared()
        else:
            # Before the settle, which may be lost on its way: a suspect that has come to an end has
            # killed nobody.
            await self._unmark()
        held = await job.settler.carry_out(delivery, verdict, retry_count)
        self._current = None
        if held and not isinstance(verdict, Nak):
            job.settler.forget(delivery.sequence)

    # ------------------------------------------------------------------ interruption

    def _lease_lost(self) -> None:
        # The keeper has marked the delivery; from here it can only be forgotten.
        self._scope.cancel()

    def _give_back(self) -> None:
        """Cancelled from outside with a delivery in hand: not an attempt."""
        delivery, self._current = self._current, None
        if delivery is not None and not delivery.settled:
            job = self._job
            if delivery.lost:
                self._lane.forget(delivery)
                job.report_lost(delivery)
            else:
                self._lane.nak(delivery)
        # Whoever waits for our place must not wait in vain.
        self._lane.wake_next()
