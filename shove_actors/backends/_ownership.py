"""Who may handle the messages of a shard whose keys run side by side.

A shard with one message in flight needs no owner: the server lets nothing else out. Once it lets
many out at a time, order and "one per key" are kept by whoever has them in hand, so that must be
one process at any time. This is the state machine of one process for one shard. Pure: the lane
tells what happened and what time it is (Trio's), and asks what to do next.

Two things are kept apart:

* **The pin** (nats-server 2.14: a durable with the policy `pinned_client`) says whom the server
  sends messages to. It moves whenever the server thinks so: after a pause in pulling, on a
  restart, when an operator says so. It is what wakes a standby, and *nothing is concluded from it*.
* **The record** (`_owner_record.py`) says who may have handlers running. It is a lease: changed by
  compare-and-swap only, renewed every third of `lease_s` by writing it anew. It names its owner's
  `lease_s`, which may be another one than ours.

    standing by --(a message comes: we are pinned)--> taking --> owner --> leaving --> standing by
                                                        ^           |
                                                        +--lapsed---+

Taking a shard over
    1  read the record. It was handed on, or never was: go on. Otherwise wait until it has not
       changed for the longer of its owner's lease and ours, *by our clock, since we have read it*.
       A record that is gone is waited for in the same way, from when that was first seen.
    2  look at the durable: still pinned to us? What may the one before have had in hand?
    3  compare-and-swap the record, as it was a moment ago. It changed meanwhile: from 1.
    4  rewind the durable to its ack floor. Everything unsettled is delivered again, in the order of
       the stream, counted from 1. Until number 1 comes, whatever comes is thrown away.

Why at most one handler per key runs (K)
    Let w be when the last successful write of the old owner left it, and L its lease, which that
    write names. It cancels its handlers when 0.75 x L have passed since w, and settles nothing
    after 0.95. The new owner has read that very write (or a later state, then the write is not the
    last), so it began to wait after w, and claims not before w + L; and it claims only if nothing
    was written since. So handlers of two owners never run at the same time, whatever the server
    does with pins, if a second is about as long on both machines (half of the 0.117 of a lease that
    `_margins.py` leaves, at most). Within one owner `KeyLanes` keeps it.
When the record is lost
    an owner's next write fails, it reads that there is none, and gives up. One that is cut off ends
    its handlers by w + 0.75 x L, as ever, and w was before the loss, so before anybody saw it. Who
    sees it waits for L, which is not written anywhere any more: the longest of our own lease, the
    one of the record that we saw last, and the one that the backend thinks possible. In a bucket
    that is made anew no revision comes again (`nats/_owners.py`), except that there is none. So
    what proves that nothing was written since is the revision *and* having read it a moment ago.
Why the order of a key holds
    Deliveries are taken only in an unbroken count from 1, after a rewind that was asked for while
    the record was ours. A hole in the count (something went to somebody else, or was lost on the
    way) means: rewind again. So what was taken is always the whole beginning of what is unsettled.
A late settle of a former owner
    is sent after its handler has ended, so the message is done. The server removes it, under the
    hands of the present owner perhaps, who does not depend on the server for what to start next.
A process that was frozen
    finds its lease lapsed before any of its tasks runs (`runtime/_lease.py`).

Tests: `tests/backends/test_ownership.py`; two and three owners against a model of the server, with
lapses, restarts, freezes and lost answers: `properties/test_keyed_machine.py`.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from . import _margins as margins
from ._owner_record import TRIES_MOST, OwnerRecord, claimed, lost_record
from ._owner_steps import Fate as Fate
from ._owner_steps import Step as Step

_NEVER: Final = float("inf")
#: How often a standby looks whether the shard was handed on, as a share of the lease; and bounds.
LOOK_SHARE: Final = 1 / 10
LOOK_LEAST_S: Final = 0.1
LOOK_MOST_S: Final = 1.0
#: How long a request may take before its answer counts as lost. Of an owner's the share is what
#: leaves time for a renewal whose answer is lost, reading, and another renewal, before 0.75.
REQUEST_S: Final = 2.0
REQUEST_SHARE: Final = 1 / 6
#: Others lose only time.
PATIENT_SHARE: Final = 1 / 2
#: A request that was not answered is sent again after this long, or this share of the lease.
AGAIN_S: Final = 0.25
AGAIN_SHARE: Final = 1 / 24
#: After a rewind was confirmed, deliveries from before it may still arrive for this long.
STRAGGLE_S: Final = 1.0


class Ownership:
    """See the module. Times are the caller's; `hand`: how many handlers of the shard run here."""

    def __init__(self, owner: str, lease_s: float) -> None:
        self.owner = owner
        self.lease_s = lease_s
        #: To be sent with pulls. None: pull as a standby.
        self.pin: str | None = None
        #: Whether this process wants the shard at all.
        self.wanted = True
        self.connected = True
        #: The record says that it is ours, as far as we know.
        self.owns = False
        #: Only to let go: nothing new is started.
        self.leaving = False
        #: What the record says, and at which revision. While we own it, as we wrote it last.
        self.record: OwnerRecord | None = None
        self.revision = 0
        self.wanted_record: OwnerRecord | None = None
        #: Not to be tried before (Trio time, by sequence): what was left to us, and what we leave.
        self.tries: dict[int, float] = {}
        self.waits: dict[int, float] = {}
        #: When the write left us that proves our ownership.
        self.proof = -_NEVER
        #: When `lapsed` becomes true, unless the lease is renewed.
        self.lapses_at = _NEVER
        #: The newest sequence that was taken under this ownership.
        self.last = 0
        #: Up to here everything unsettled was delivered to us since the last rewind.
        self.seen = 0
        self._lapsed = False
        self._known = False
        #: There was a record, with the lease that it named last.
        self._had_one = False
        self._had_lease_s = 0.0
        self._since = _NEVER
        self._read_at = -_NEVER
        self._looked = False
        self._floor = 0
        self._high = 0
        self._stream = ""
        self._doubt = False
        self._look_at = -_NEVER
        self._renew_at = _NEVER
        self._verify = False
        self._rewind = False
        self._awaits_first = False
        self._expected = 1
        #: What the latest heartbeat said.
        self._behind = 0
        self._rewound_at = _NEVER
        #: Leaving: what nobody has in hand any more can be delivered to the next one.
        self._given_back = False
        self._unpin = False
        self._pause_until = -_NEVER
        self._every_s = min(LOOK_MOST_S, max(LOOK_LEAST_S, lease_s * LOOK_SHARE))
        self._again_s = min(AGAIN_S, lease_s * AGAIN_SHARE)

    def __repr__(self) -> str:
        state = "leaving" if self.leaving else "owner" if self.owns else "standby"
        return f"<Ownership {state}, pin {self.pin}>"

    @property
    def starts(self) -> bool:
        """Whether handlers may be started."""
        return self.owns and not self.leaving

    @property
    def pulls(self) -> bool:
        """Whether to pull: to be given messages, to keep the pin, or to be pinned."""
        if self.owns:
            return not self.leaving
        return self.wanted and not self._unpin

    @property
    def request_s(self) -> float:
        """How long the present request may take before its answer counts as lost."""
        return min(REQUEST_S, self.lease_s * (REQUEST_SHARE if self.owns else PATIENT_SHARE))

    @property
    def few(self) -> bool:
        """Whether what comes is thrown away, so that a pull for one will do."""
        return not self.starts or self._rewind

    # ------------------------------------------------------------------ from the server

    def arrived(
        self, pin: str | None, count: int, sequence: int, *, in_hand: bool, now: float
    ) -> Fate:
        """A delivery, which the durable counted as number `count`."""
        if pin is None:
            return Fate.DISCARD
        if not self.owns:
            if pin != self.pin:
                self.pin = pin
                self._looked = False
                # The record may have been handed on long before its next look.
                self._read_at = -_NEVER
                self._unpin = not self.wanted
            return Fate.DISCARD
        if self.leaving:
            return Fate.DISCARD
        if pin != self.pin:
            # Pinned anew: what was delivered in between nobody knows.
            self.pin = pin
            self._doubt = False
            self._rewind = True
        if self._rewind:
            return Fate.DISCARD
        if self._awaits_first:
            if count != 1:
                # From before the rewind. But number 1 may be what was lost.
                self._rewind = now - self._rewound_at > STRAGGLE_S
                return Fate.DISCARD
            self._awaits_first = False
            self._expected, self._behind = 1, 0
        if count != self._expected:
            self._rewind = True
            return Fate.DISCARD
        self._expected += 1
        if sequence > self.seen:
            self.seen = sequence
        if in_hand:
            return Fate.AGAIN
        if sequence <= self.last:
            return Fate.SETTLED
        self.last = sequence
        return Fate.NEW

    def delivered_up_to(self, count: int) -> None:
        """From a heartbeat: the last number that the durable has given out."""
        if not self.starts or self._awaits_first:
            return
        # One that is on its way still may be overtaken by a heartbeat, but not by two.
        if self._expected <= self._behind:
            self._rewind = True
        self._behind = count

    def refused(self, now: float) -> None:
        """A pull with our pin was turned away (423)."""
        self.pin = None
        self._looked = False
        if self.owns:
            self._doubt = True
            self._look_at = now

    def disconnected(self) -> None:
        self.connected = False
        self._rewind = self._rewind or self.owns

    def reconnected(self, now: float) -> None:
        self.connected = True
        self._pause_until = -_NEVER
        if self.owns:
            # The pin may be gone with the server that knew it, or have moved on.
            self._doubt, self._look_at = True, now

    def recreated(self) -> None:
        """The durable is another one, of another stream perhaps: sequences mean nothing any more.

        So everything in hand is given up, as when the lease has lapsed; also what an ownership of
        before has left unproven, whose acknowledgement would settle another message.
        """
        self.pin = None
        self._looked = False
        self.abandon()
        self._lapsed = True

    # ------------------------------------------------------------------ from this process

    def leave(self) -> None:
        """Start nothing more; let go once nothing runs here. Not wanted any more."""
        self.wanted = False
        if self.owns:
            self.leaving = True
        elif self.pin is not None:
            self._unpin = True

    def abandon(self) -> None:
        """Nobody renews the lease any more: everything in hand is given up (`lapsed` says so)."""
        if self.owns:
            self._lose()

    def want(self) -> None:
        """Stand by again."""
        self.wanted = True

    def lapsed(self, now: float) -> bool:
        """Whether the lease has gone so far unrenewed that every handler has to be cancelled.

        True once for each time.
        """
        if now >= self.lapses_at:
            self._lose()
        told, self._lapsed = self._lapsed, False
        return told

    def may_settle(self, now: float) -> bool:
        return self.owns and now < self.proof + self.lease_s * margins.TRUST_SHARE

    # ------------------------------------------------------------------ what to ask

    def next(self, now: float, hand: int) -> tuple[Step | None, float]:
        """What to ask the server for; or nothing, and when to look again."""
        if not self.connected:
            return None, _NEVER
        if now < self._pause_until:
            return None, self._pause_until
        step, wake = self._next(now, hand)
        if step is Step.REWIND:
            self._rewind = False
            self._awaits_first = True
            self.seen = 0
            self._rewound_at = _NEVER
        return step, wake

    def _next(self, now: float, hand: int) -> tuple[Step | None, float]:
        if self.owns:
            return self._next_of_owner(now, hand)
        if self._unpin:
            return Step.UNPIN, now
        if hand:
            # Handlers of the time before, that were cancelled and have not ended.
            return None, _NEVER
        if self.pin is None or not self.wanted:
            # So that the wait is over, or half over, when we are needed.
            due = self._read_at + self.lease_s * margins.RENEW_SHARE
            return (Step.READ, now) if now >= due else (None, due)
        if not self._known:
            return Step.READ, now
        free_at = self._free_at()
        if now < free_at:
            poll_at = self._read_at + self._every_s
            return (Step.READ, now) if now >= poll_at else (None, min(poll_at, free_at))
        if not self._looked:
            return Step.LOOK, now
        if now > self._read_at + 2 * self._every_s:
            # We were stopped, or looking took long: see the module.
            return Step.READ, now
        self.wanted_record = claimed(
            self.record,
            self.owner,
            floor=self._floor,
            high=self._high,
            ours=self._ours,
            lease_s=self.lease_s,
            stream=self._stream,
        )
        return Step.CLAIM, now

    def _next_of_owner(self, now: float, hand: int) -> tuple[Step | None, float]:
        if self._verify:
            return Step.READ, now
        assert self.record is not None
        if self.leaving and not hand and not self._given_back:
            return Step.REWIND, now
        if self.leaving and not hand:
            waits = sorted((due - now, n) for n, due in {**self.tries, **self.waits}.items())
            self.wanted_record = replace(
                _with(self.record, high=self.last),
                handed_on=True,
                tries=tuple(
                    (sequence, after) for after, sequence in waits[-TRIES_MOST:] if after > 0
                ),
            )
            return Step.RELEASE, now
        if now >= self._renew_at:
            self.wanted_record = _with(self.record, high=self.last)
            return Step.RENEW, now
        if self.leaving:
            return None, self._renew_at
        if self._doubt or self.pin is None:
            if now >= self._look_at:
                return Step.LOOK, now
            return None, min(self._look_at, self._renew_at)
        if self._rewind and self.pin is not None:
            return Step.REWIND, now
        return None, self._renew_at

    @property
    def _ours(self) -> bool:
        return self.record is not None and self.record.owner == self.owner

    def _free_at(self) -> float:
        """When the one in the record can have nothing in hand any more."""
        if self.record is None or self.record.handed_on or self._ours:
            # Ours: we know it, and nothing of that time is in hand.
            return -_NEVER
        return self._since + max(self.lease_s, self.record.lease)

    # ------------------------------------------------------------------ answers

    def failed(self, step: Step, now: float) -> None:
        """No answer, or none that says anything."""
        self._pause_until = now + self._again_s
        if step is Step.REWIND:
            self._rewind = self.owns
            self._given_back = self.leaving
        elif step in (Step.RENEW, Step.RELEASE):
            # Written or not: only reading tells, and only another write proves anything.
            self._verify = self.owns
        elif step is Step.CLAIM:
            self._known = self._looked = False
        elif step is Step.UNPIN:
            self._unpin = False  # it lapses by itself
            self.pin = None

    def read(self, record: OwnerRecord | None, revision: int, now: float) -> None:
        """The record as the server has it; `now`: when the answer was here.

        None: there is none, and as far as the backend knows never was.
        """
        self._read_at = now
        if record is not None and record.owner:
            self._had_lease_s = record.lease
        elif self._had_one or record is not None:
            # Lost. What we have seen of it, the backend may not know.
            record = lost_record(max(self._had_lease_s, record.lease if record else 0.0))
        self._had_one = record is not None
        if self.owns:
            self._verify = False
            if record is None or record.owner != self.owner or record.handed_on:
                if not (record is not None and record.owner == self.owner and self.leaving):
                    self._lose()
                    return
                self._let_go(record, revision)
                return
            self.record, self.revision = record, revision
            return
        if not self._known or (record, revision) != (self.record, self.revision):
            self._since = now
        self._known = True
        self.record, self.revision = record, revision

    def looked(
        self, pinned: str | None, floor: int, high: int, now: float, stream: str = ""
    ) -> None:
        """Who is pinned, up to where everything is settled, the last that was delivered, and which
        stream that is among all of its name."""
        if self.owns:
            if pinned is None:
                # Nobody: the next pull without an id gets it, ours perhaps.
                self.pin = None
                self._look_at = now + self._every_s
            elif pinned == self.pin:
                self._doubt = False
            else:
                # Whoever it is waits for the record: let go of it as soon as nothing runs here.
                # (Or it is us, and the first delivery has not come yet: then it comes back soon.)
                self.leaving = True
            return
        if pinned != self.pin:
            self.pin = None
            self._looked = False
            return
        self._looked = True
        self._floor, self._high, self._stream = floor, high, stream

    def wrote(self, step: Step, revision: int | None, sent_at: float, now: float) -> None:
        """A write was answered. `revision` None: somebody else had written."""
        if revision is None:
            if step is Step.CLAIM:
                self._known = self._looked = False
            elif self.owns:
                self._verify = True
            return
        record = self.wanted_record
        assert record is not None
        if step is Step.CLAIM:
            self.tries = _due(self.record, record, now)
            self.waits = {}
            self.owns, self.leaving = True, not self.wanted
            self.last = 0
            self._doubt = self._verify = self._unpin = False
            self._look_at = now  # refused meanwhile, perhaps
            self._rewind = True
        elif not self.owns:
            return
        self.record, self.revision = record, revision
        self._had_one, self._had_lease_s = True, record.lease
        if step is Step.RELEASE:
            self._let_go(record, revision)
            return
        self.proof = max(self.proof, sent_at)
        self.lapses_at = self.proof + self.lease_s * margins.CANCEL_SHARE
        self._renew_at = sent_at + self.lease_s * margins.RENEW_SHARE

    def rewound(self, now: float) -> None:
        self._rewound_at = now
        self._given_back = self.leaving

    def unpinned(self) -> None:
        self._unpin = False
        self.pin = None

    # ------------------------------------------------------------------ ends

    def _lose(self) -> None:
        self.owns = self.leaving = False
        self._lapsed = True
        self._forget()

    def _let_go(self, record: OwnerRecord, revision: int) -> None:
        self.owns = self.leaving = False
        self._forget()
        if self.pin is not None:
            self._unpin = True

    def _forget(self) -> None:
        self._known = self._looked = self._doubt = self._verify = self._rewind = False
        self._awaits_first = self._given_back = False
        self._renew_at = self.lapses_at = _NEVER
        self.proof = -_NEVER


def _with(record: OwnerRecord, *, high: int) -> OwnerRecord:
    return replace(record, handed_on=False, high=max(high, record.high))


def _due(before: OwnerRecord | None, record: OwnerRecord, now: float) -> dict[int, float]:
    """What was not to be tried before when, of the same stream."""
    if before is None or (before.stream and before.stream != record.stream):
        return {}
    return {sequence: now + after for sequence, after in before.tries}
