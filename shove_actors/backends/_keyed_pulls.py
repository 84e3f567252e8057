"""How much a keyed lane asks for, and when: to be given messages, to keep the pin, or to get it."""

from __future__ import annotations

from collections.abc import Sized
from typing import Final

from ._keyed_buffer import KeyedBuffer
from ._ownership import Ownership
from ._pinned import PinnedDurable, pin_timeout

#: Pulls follow each other so much more often than the server's patience would take.
PULLS_PER_PIN: Final = 2
#: What is handled or could be at once is kept at so many times what may run at once. More would
#: only lie in memory until it is cold: measured, a sixth of the processor time of a message.
AHEAD: Final = 3
#: Bytes that one shard may have in hand, headers and payloads together. Above it nothing more is
#: asked for. What was asked for before may still come: as much as was thought to fit.
BYTES_MOST: Final = 32 << 20
#: Of a message, as long as none has come. After that the largest of the latest ones counts.
BYTES_GUESSED: Final = 1 << 20
#: After a rewind, what is in hand comes again: so many are asked for at once.
AGAIN_MOST: Final = 512
#: Until it is tried again, where a pull could not be sent.
REFUSED_S: Final = 0.25
_NEVER: Final = float("inf")


class KeyedPulls:
    """Of one lane. `held`: what is in hand, which counts against the credit.

    The credit is for keys that are stuck, or have a backlog: what waits for one of its key leaves
    room for others. As long as enough of what is here can be handled, less is asked for. Whenever
    it is not, any room is asked for, however little of the credit is left: waiting for more of it
    would be waiting for keys that are stuck.
    """

    __slots__ = (
        "_ahead_most",
        "_as",
        "_buffer",
        "_durable",
        "_every_s",
        "_held",
        "_own",
        "_size",
        "bytes",
        "count",
        "credit",
        "due",
        "refill",
        "requested",
        "stalled",
    )

    def __init__(
        self,
        own: Ownership,
        durable: PinnedDurable,
        buffer: KeyedBuffer,
        held: Sized,
        credit: int,
        lease_s: float,
    ) -> None:
        self._own = own
        self._durable = durable
        self._buffer = buffer
        self._ahead_most = AHEAD * buffer.most_in_flight
        self._held = held
        self._every_s = pin_timeout(lease_s) / PULLS_PER_PIN
        #: The pin that the latest pull has named.
        self._as: str | None = None
        #: How many were sent.
        self.count = 0
        #: Asked for and not here yet.
        self.requested = 0
        #: Refused, not for want of a pin: nothing is asked for until `again`.
        self.stalled = False
        #: Of what is in hand; and how large the next one may be.
        self.bytes = 0
        self._size = BYTES_GUESSED
        #: When the next one has to be sent, so that the pin is kept.
        self.due = -_NEVER
        self.grant(credit)

    def grant(self, credit: int) -> None:
        """How many may be in hand."""
        self.credit = credit
        #: So many fewer than there should be to be handled are worth a request.
        self.refill = (min(credit, self._ahead_most) + 1) // 2

    def took(self, size: int) -> None:
        """One of so many bytes is in hand."""
        self.bytes += size
        self._size = max(size, self._size - (self._size - size >> 3), 1)

    def freed(self, size: int) -> None:
        """It is not any more."""
        self.bytes -= size

    def settled(self, size: int, now: float) -> None:
        """The same, because its handler has ended: there may be reason to ask for more."""
        self.bytes -= size
        requested = self.requested
        if self._ahead_most - self._buffer.lanes.ahead - requested < self.refill:
            return
        room = self._room - requested
        if room >= self.refill or (room > 0 and not requested):
            self.top_up(now)

    @property
    def _comes_again(self) -> bool:
        """The durable was rewound: what comes is in hand, and before it there is nothing new."""
        return self._own.seen < self._own.last and bool(self._held)

    @property
    def _room(self) -> int:
        """How many more may be in hand, or on their way."""
        held = len(self._held)
        if self._comes_again:
            return min(held, AGAIN_MOST)
        left = BYTES_MOST - self.bytes
        return min(
            self.credit - held,
            self._ahead_most - self._buffer.lanes.ahead,
            left // self._size + 1 if left > 0 else 0,
        )

    def again(self) -> None:
        """Whatever was sent: it is time for another one."""
        self.due = -_NEVER
        self.stalled = False

    def stall(self) -> None:
        """One was refused for a reason that may still be there."""
        self.requested = 0
        self.stalled = True

    def ended(self, left: int | None) -> None:
        """One ended; so much of it was left (None: all)."""
        self.requested = 0 if left is None else max(0, self.requested - left)

    def stop(self) -> None:
        """No pull of ours takes what somebody else is to have."""
        self._durable.begin()
        self.requested = 0
        self.stalled = False  # nobody waits for that time any more; it would be for ever

    def top_up(self, now: float) -> None:
        own = self._own
        if self.stalled:
            return  # before `begin`: somebody waits for the time to be up
        if own.pin != self._as:
            self._durable.begin()
            self._as, self.requested, self.due = own.pin, 0, -_NEVER
        if not own.pulls or not own.connected:
            return
        # The server lets no more than `credit` out, so that one more may always be asked for: it
        # keeps the pin.
        room = 1 if own.few else self._room
        room -= self.requested
        if now >= self.due:
            batch = max(1, room)
        elif (room > 0 and (not self.requested or own.few)) or (
            room >= self.refill and not self._comes_again
        ):
            batch = room
        else:
            return
        if self._durable.pull(batch, own.pin):
            self.count += 1
            self.requested += batch
            # A pull that waits to be pinned needs no other beside it.
            self.due = now + self._every_s if own.pin is not None else _NEVER
        else:
            # Its durable is looked for, say. `again` ends this sooner.
            self.due = now + REFUSED_S
