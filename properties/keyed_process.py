"""A process of `keyed_model.py`: the real `Ownership` and the real `KeyLanes`, without tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keyed_server import CREDIT, LEASE_S, PIN_S, Request

from shove_actors.backends import margins
from shove_actors.backends._key_lanes import KeyLanes
from shove_actors.backends._ownership import Fate, Ownership, Step

if TYPE_CHECKING:
    from keyed_model import World

#: How long a cancelled handler may take to end, as a share of the lease: half of what the margins
#: leave.
UNWIND_SHARE = 0.1
#: Defects are put here.
LANES: type[KeyLanes[str, Any]] = KeyLanes
MAX_IN_FLIGHT = 3


@dataclass
class Item:
    key: str
    sequence: int
    #: Of the stream that it is a message of.
    stream: int
    running: bool = False
    #: Cancelled, and has to have ended by then.
    ends_by: float | None = None


@dataclass
class Process:
    """One process. `kind` may be an owner with a defect."""

    name: str
    world: World
    kind: Callable[[str, float], Ownership] = Ownership
    lease_s: float = LEASE_S
    frozen: bool = False
    connected: bool = True
    #: The durable is another one, and it has not heard of it.
    deceived: bool = False
    inbox: deque[Request] = field(default_factory=deque)
    outbox: deque[Request] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.own = self.kind(self.name, self.lease_s)
        self.lanes: KeyLanes[str, Item] = LANES(MAX_IN_FLIGHT)
        self.hand: dict[int, Item] = {}
        self.unwinding: list[Item] = []
        #: Under the present ownership.
        self.finished: set[int] = set()
        self.asked: tuple[Step, float, int] | None = None
        self.tickets = 0
        #: The question about what is settled, and since when it is unheard.
        self.question = 0
        self.questioned_at = 0.0
        self.looked_at = 0.0
        self.generation = 0
        self.pulled_as: str | None = None
        self.requested = 0
        self.pull_at = 0.0

    def __repr__(self) -> str:
        return f"<{self.name} {self.own!r}{' frozen' if self.frozen else ''}>"

    @property
    def now(self) -> float:
        return self.world.server.now

    def told(self, *message: Any) -> None:
        if self.connected:
            self.inbox.append(message)

    def running(self) -> list[Item]:
        """What executes here."""
        if self.frozen:
            return []
        return [item for item in self.hand.values() if item.running] + self.unwinding

    # ------------------------------------------------------------------ what runs by itself

    def look(self) -> None:
        """Before anything else of the process runs, each time."""
        if self.own.lapsed(self.now):
            trusted = self.own_proof + self.lease_s * margins.TRUST_SHARE
            for item in self.hand.values():
                if item.running:
                    # Thawed after its time: it unwinds before anything else runs here.
                    item.ends_by = min(self.now + self.lease_s * UNWIND_SHARE, trusted)
                    if item.ends_by > self.now:
                        self.unwinding.append(item)
            self.hand.clear()
            self.lanes = LANES(MAX_IN_FLIGHT)
            self.question += 1
            self.finished.clear()
        self.unwinding = [i for i in self.unwinding if (i.ends_by or 0.0) > self.now]
        if self.own.owns:
            self.own_proof = self.own.proof
        if self.own.leaving:
            for item in self.lanes.drop_waiting():
                del self.hand[item.sequence]

    own_proof = 0.0

    def step(self) -> None:
        """Ask the server for what is due."""
        if self.frozen or not self.connected:
            return
        self.look()
        self._pull()
        self._look_after()
        if self.asked is not None:
            if self.now - self.asked[1] < self.own.request_s:
                return
            step, self.asked = self.asked[0], None
            self.own.failed(step, self.now)
        step_due, _ = self.own.next(self.now, len(self.running()))
        if step_due is None:
            return
        self.tickets += 1
        ticket = self.tickets
        self.asked = (step_due, self.now, ticket)
        if step_due is Step.READ:
            self.outbox.append(("read", ticket))
        elif step_due is Step.LOOK:
            self.outbox.append(("look", ticket))
        elif step_due is Step.REWIND:
            self.doubt()
            self.outbox.append(("rewind", ticket))
        elif step_due is Step.UNPIN:
            self.outbox.append(("unpin", ticket))
        else:
            record, revision = self.own.wanted_record, self.own.revision
            self.outbox.append(("write", ticket, record, revision, step_due))

    # As `KeyedAcks` does it, in steps of the model.

    def ack(self, item: Item) -> None:
        self.lanes.ended(item.key)
        if not self.connected:
            self.doubt()
            return
        self.outbox.append(("ack", item.sequence))
        if item.sequence > self.own.seen:
            self.doubt()
        else:
            self.ask_if_needed()

    def ask_if_needed(self) -> None:
        if self.connected and self.lanes.wants_proof:
            self.ask()

    def ask(self) -> None:
        self.question += 1
        self.questioned_at = self.now
        last = max(item.sequence for item in self.lanes.ask())
        self.outbox.append(("ask", last, self.question))

    def doubt(self) -> None:
        self.question += 1
        self.lanes.doubt()

    def _look_after(self) -> None:
        if self.lanes.asking and self.now - self.questioned_at >= 1.0:
            self.doubt()
        elif self.lanes.fresh and not self.lanes.asking and self.now - self.questioned_at >= 1.0:
            self.ask()
        if self.lanes.doubted and self.now - self.looked_at >= 0.25:
            self.looked_at = self.now
            for item in self.lanes.doubted.values():
                self.outbox.append(("is gone", item.sequence))

    def _pull(self) -> None:
        own = self.own
        if own.pin != self.pulled_as:
            self.generation += 1
            self.pulled_as, self.requested, self.pull_at = own.pin, 0, 0.0
        if not own.pulls:
            return
        wanted = 1 if own.few else CREDIT - len(self.hand)
        if self.requested < max(1, wanted) or self.now >= self.pull_at:
            batch = max(1, wanted - self.requested)
            self.requested += batch
            self.pull_at = self.now + PIN_S / 3
            self.outbox.append(("pull", own.pin, batch, self.generation))

    def hear(self) -> None:
        """Take one message from the connection."""
        if self.frozen or not self.inbox:
            return
        self.look()
        kind, *rest = self.inbox.popleft()
        if kind == "message":
            self._message(*rest)
        elif kind == "refused":
            if rest[0] == self.generation:
                self.requested = 0
                self.own.refused(self.now)
        elif kind == "gone":
            self._gone(*rest)
        elif kind == "answered":
            if rest[0] == self.question:
                self.lanes.answered()
                self.ask_if_needed()
        elif self.asked is not None and rest[0] == self.asked[2]:
            step, sent_at, _ = self.asked
            self.asked = None
            if kind == "read":
                self.own.read(rest[1], rest[2], self.now)
            elif kind == "looked":
                self.own.looked(rest[1], rest[2], rest[3], self.now, rest[4])
            elif kind == "wrote":
                self.own.wrote(step, rest[1], sent_at, self.now)
                if step is not Step.RENEW and rest[1] is not None:
                    self.finished.clear()
            elif kind == "rewound":
                self.own.rewound(self.now)
            else:
                self.own.unpinned()
        self.look()

    def _gone(self, sequence: int, gone: bool) -> None:
        for key, item in list(self.lanes.doubted.items()):
            if item.sequence == sequence:
                if gone:
                    self.lanes.proven(key)
                else:
                    self.outbox.append(("ack", sequence))

    def _message(self, pin: str, count: int, sequence: int, generation: int) -> None:
        if generation == self.generation:
            self.requested -= 1
        fate = self.own.arrived(pin, count, sequence, in_hand=sequence in self.hand, now=self.now)
        if fate is Fate.NEW:
            key = self.world.keys[sequence]
            self.world.check_count(self, sequence)
            item = self.hand[sequence] = Item(key, sequence, self.world.server.stream)
            self.lanes.push(key, item)
            self.ask_if_needed()
        elif fate is Fate.SETTLED:
            self.outbox.append(("ack", sequence))
            self.lanes.resent(lambda item: item.sequence == sequence)
            self.ask_if_needed()
        elif fate is Fate.DISCARD and self.own.owns:
            self.doubt()

    # ------------------------------------------------------------------ handlers

    def start(self) -> None:
        if self.frozen:
            return
        self.look()
        if not self.own.starts:
            return
        self.lanes.ripen(self.now)
        item = self.lanes.take()
        if item is not None:
            self.world.check_start(self, item)
            item.running = True

    def end(self, which: int, *, acknowledged: bool) -> None:
        """One of its handlers ends."""
        self.look()
        going = [item for item in self.hand.values() if item.running]
        if self.frozen or not going:
            return
        item = going[which % len(going)]
        item.running = False
        if not acknowledged:
            self.lanes.again(item.key, self.now + 1.0)
            if self.own.leaving:
                self.look()
            return
        if not self.own.may_settle(self.now):
            raise AssertionError(f"{self}: a handler ran on after its time")
        del self.hand[item.sequence]
        if item.stream == self.world.server.stream:
            self.world.finished.add(item.sequence)
        self.finished.add(item.sequence)
        self.ack(item)
