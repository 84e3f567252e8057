"""The dead letters of one key as a lane, so that a plain `Worker` can handle them.

The worker takes a delivery only after the one before has entirely ended, so all the waiting is done
where it asks for the next one (`receive`): what it acknowledged is deleted from the dead-letter
queue first, what it wants to retry is handed out again after its delay, and after a final failure
there is no next one. The lease is that of the control message, which the real lane holds.

What counts against a letter. The server counts how often the control message was delivered, which
is about all of its letters; a letter answers for the deliveries in which it may have been begun
itself, or the one that is under way when the third process is killed would be convicted for the
other two. So from the second delivery on, it is noted beside the control message which letter is
about to be begun, and in which delivery that was first so:

    the note names this letter        from the delivery that it says
    behind another one                from this delivery: that one was under way until now
    the first one, and no such note   from the delivery before this one, which may have begun it

The first delivery writes nothing. A letter that ends each process is charged with each of them from
its second on, and with the one before, so it is convicted after `max_retries + 2`, as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
import trio

from shove_actors._errors import RequestTimeout, ShoveError, UnavailableError, UsageError
from shove_actors._log import about
from shove_actors.backends import (
    Backend,
    Delivery,
    Kept,
    LaneClosed,
    LaneSpec,
    LaneStatistics,
)
from shove_actors.messaging import (
    MSG_ID,
    Dead,
    Discard,
    decode_headers,
    encode_headers,
    letter_id,
    origin_of,
    replay_headers,
    replay_id,
)

logger = logging.getLogger("shove_actors.consumer")

#: How long deleting a letter that was handled may be tried, and the pause between two tries.
DELETE_BUDGET_S: Final = 10.0
DELETE_PAUSE_S: Final = 0.25


@dataclass(slots=True)
class Letter:
    """One message among the dead letters: what it was, and every copy of it there."""

    sequence: int
    stored_ns: int
    copies: list[int] = field(default_factory=list)


class _Begun(msgspec.Struct):
    """Noted beside the control message (`stored_ns` is its own): which letter is under way, by its
    place in the topic's stream, and in which delivery of the control message it first was."""

    stored_ns: int
    letter: int
    letter_ns: int
    since: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Begun).decode


@dataclass(frozen=True, slots=True)
class Failure:
    """The letter that ended for good, and how."""

    letter: Letter
    delivery: Delivery
    verdict: Dead | Discard
    retry_count: int


class ReplayLane:
    """Implements `Lane`. One worker, one letter at a time, in the order given."""

    def __init__(
        self, backend: Backend, stream: str, control: Delivery, letters: list[Letter]
    ) -> None:
        self._backend = backend
        self._stream = stream
        self._control = control
        self._letters = letters
        self._spec = LaneSpec(
            stream=stream,
            durable=control.lane.spec.durable,
            max_ack_pending=1,
            ack_wait_s=control.lane.spec.ack_wait_s,
        )
        self._current: Delivery | None = None
        self._tries = 0
        #: In which delivery of the control message the first letter was begun; None: not known yet.
        self._since: int | None = None
        #: Some letter was done with in this delivery.
        self._went_on = False
        #: When the first letter is to be handed out again.
        self._due = float("-inf")
        #: Acknowledged, and still in the dead-letter queue.
        self._to_delete: list[int] = []
        #: Where in the topic's stream each delivered letter was.
        self.places: dict[int, int] = {}
        self.failure: Failure | None = None
        self.handled = 0
        #: What was handled could not be deleted, for as long as that may take.
        self.stuck = False

    @property
    def done(self) -> bool:
        """Nothing is left, neither to handle nor to delete."""
        return not self._letters and not self._to_delete

    # ------------------------------------------------------------------ taking

    @property
    def spec(self) -> LaneSpec:
        return self._spec

    @property
    def held(self) -> Mapping[int, Delivery]:
        return {}

    @property
    def busy_until(self) -> float:
        return float("-inf")

    def receive_nowait(self) -> Delivery:
        raise trio.WouldBlock

    async def receive(self) -> Delivery:
        await trio.lowlevel.checkpoint()
        await self.flush()
        if self._due > trio.current_time():
            await trio.sleep_until(self._due)
        while self._letters and self.failure is None:
            kept = await self._first_copy(self._letters[0])
            if kept is not None:
                self.places[kept.sequence] = self._letters[0].sequence
                if self._since is None:
                    self._since = await self._begin(self._letters[0])
                self._current = self._deliver(kept, self._since)
                return self._current
            # Deleted meanwhile: a consumer of the dead letters is done with it.
            self._next()
        raise LaneClosed("nothing is left to replay")

    async def _first_copy(self, letter: Letter) -> Kept | None:
        for sequence in letter.copies:
            kept = await self._backend.next_message(self._stream, sequence)
            if kept is not None and kept.sequence == sequence:
                return kept
        return None

    async def _begin(self, letter: Letter) -> int:
        """Since which delivery of the control message this letter is under way; noted."""
        control = self._control
        now = control.num_delivered
        if now == 1:
            return 1
        since = now
        if not self._went_on:
            since = await self._noted(letter) or now - 1
        note = _Begun(control.timestamp_ns, letter.sequence, letter.stored_ns, since)
        await self._backend.write_note(control.stream, control.sequence, _encode(note))
        return since

    async def _noted(self, letter: Letter) -> int | None:
        control = self._control
        raw = await self._backend.read_note(control.stream, control.sequence)
        if raw is None:
            return None
        try:
            note = _decode(raw)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return None
        if (note.stored_ns, note.letter, note.letter_ns) != (
            control.timestamp_ns,
            letter.sequence,
            letter.stored_ns,
        ):
            return None
        # A durable that was deleted counts its deliveries anew.
        return note.since if note.since < control.num_delivered else None

    def _deliver(self, kept: Kept, since: int) -> Delivery:
        """As a message again: with its own id and key, without the story of its death."""
        headers = decode_headers(kept.raw_headers) if kept.raw_headers else {}
        origin = origin_of(kept.sequence, kept.timestamp_ns)
        message_id = letter_id(headers, self._stream, kept.sequence)
        block = encode_headers(
            replay_headers(
                headers,
                msg_id=headers.get(MSG_ID) or replay_id(message_id, origin),
                message_id=message_id,
                origin=origin,
            )
        )
        control = self._control
        return Delivery(
            self,
            control.subject,
            kept.payload,
            block,
            self._stream,
            kept.sequence,
            control.num_delivered - since + 1 + self._tries,
            kept.timestamp_ns,
            trio.current_time(),
            b"",
        )

    def _next(self) -> None:
        del self._letters[0]
        self._tries = 0
        self._since, self._went_on = None, True
        self._due = float("-inf")

    # ------------------------------------------------------------------ settling

    def _settle(self, delivery: Delivery) -> None:
        if delivery.settled:
            raise UsageError(f"{delivery!r} is settled already")
        delivery.settled = True
        self._current = None

    def ack(self, delivery: Delivery) -> None:
        # Also when the lease is gone by now: it is done, and deleting says just that.
        self._settle(delivery)
        self._to_delete = self._letters[0].copies
        self.handled += 1
        self._next()

    def nak(self, delivery: Delivery, delay_s: float | None = None) -> None:
        self._settle(delivery)
        self._tries += 1
        self._due = trio.current_time() + (delay_s or 0.0)

    def fail(self, delivery: Delivery, verdict: Dead | Discard, retry_count: int) -> None:
        """It stays where it is, among the dead letters, and all behind it."""
        self._settle(delivery)
        self.failure = Failure(self._letters[0], delivery, verdict, retry_count)

    def forget(self, delivery: Delivery) -> None:
        if not delivery.settled:
            delivery.lost = True
            self._settle(delivery)

    def lose(self) -> None:
        """The lease of the control message is lost: nothing of this attempt counts."""
        if self._current is not None:
            self._current.lost = True

    async def flush(self) -> None:
        """Delete what was acknowledged. Finished even when cancelled, and bounded.

        Raises `RequestTimeout` if it could not be: then it will be handled a second time. A
        refusal (an operator forbids deleting) is told and got over: whatever becomes of the key
        next says that the letter is done, its record names a later one or is removed.
        """
        if not self._to_delete:
            return
        why = "no answer"
        with trio.move_on_after(DELETE_BUDGET_S, shield=True):
            while self._to_delete:
                try:
                    await self._backend.delete_message(self._stream, self._to_delete[-1])
                except UnavailableError as exc:
                    why = str(exc)
                    await trio.sleep(DELETE_PAUSE_S)
                    continue
                except ShoveError as exc:
                    logger.error(
                        "dead letter %s:%d was replayed and could not be deleted (%s): it stays, "
                        "and is not replayed with its key again. Allow deleting messages of %s, "
                        "or remove it with `nats stream rmm`",
                        self._stream,
                        self._to_delete[-1],
                        exc,
                        self._stream,
                        extra=about(
                            "replayed_letter_stays",
                            queue=self._stream,
                            sequence=self._to_delete[-1],
                        ),
                    )
                self._to_delete.pop()
            return
        self.stuck = True
        raise RequestTimeout(
            f"dead letter {self._stream}:{self._to_delete[-1]} was handled and could not be "
            f"deleted within {DELETE_BUDGET_S:g} s ({why}), so it will be handled again"
        )

    # ------------------------------------------------------------------ of no meaning here

    def wake_next(self) -> bool:
        return True

    def set_credit(self, credit: int) -> None:
        """One letter at a time, whatever is asked for."""

    def renew(self, delivery: Delivery) -> None:
        """The lease is that of the control message, which its own lane renews."""

    async def confirm(self) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()

    def statistics(self) -> LaneStatistics:
        return LaneStatistics(
            waiting=len(self._letters),
            held=int(self._current is not None),
            requested=0,
            credit=1,
            received=self.handled,
            pulls=0,
        )


def in_order(letters: dict[tuple[int, int], Letter], first: int) -> Iterator[Letter]:
    """By their sequence in the topic's stream.

    `first`: the sequence of the message that poisoned the key. A message stored later under a
    smaller one is of a stream that was made anew since; those come behind.
    """
    yield from sorted(letters.values(), key=lambda one: (one.sequence < first, one.sequence))
