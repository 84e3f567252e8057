"""Owners of one keyed shard against a model of the server. No tasks, no clock but a number.

The owners are the real `Ownership` and the real `KeyLanes`; what is modelled is the server (pins,
lapses, rewinds, late settles, restarts), the connections (first in, first out, cut at any point,
with a rest that the server reads later) and the processes (frozen, killed, slow to unwind).

What a frozen process had running is not counted as running: nothing of it executes. It counts again
from the moment of its thawing, if its own first look (`Ownership.lapsed`) has not cancelled it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shove_actors.backends import margins
from shove_actors.backends._key_lanes import KeyLanes
from shove_actors.backends._owner_record import OwnerRecord
from shove_actors.backends._ownership import Fate, Ownership, Step

LEASE_S = 12.0
PIN_S = 4.0
ACK_WAIT_S = 12.0
#: Time goes in steps of this; each process that runs looks at its lease after each.
TICK_S = 0.25
#: How long a cancelled handler may take to end: half of what the margins leave.
UNWIND_S = LEASE_S * 0.1
#: Defects are put here.
LANES: type[KeyLanes[str, Any]] = KeyLanes
CREDIT = 6
MAX_IN_FLIGHT = 3

Request = tuple[Any, ...]


@dataclass
class Pull:
    process: Process
    id: str | None
    wants: int
    generation: int


class Server:
    """The durable of one shard, its stream, and the record."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stored: dict[int, str] = {}
        self.newest = 0
        self.record: OwnerRecord | None = None
        self.revision = 0
        self.pin: str | None = None
        self.pins = 0
        self.pin_until = 0.0
        self.count = 0
        self.read_up_to = 0
        self.pending: dict[int, float] = {}
        self.again: deque[int] = deque()
        self.pulls: list[Pull] = []
        self.written = (0, 0, dict[int, float]())

    def publish(self, key: str) -> int:
        self.newest += 1
        self.stored[self.newest] = key
        self.serve()
        return self.newest

    @property
    def floor(self) -> int:
        return min(self.pending, default=self.read_up_to + 1) - 1

    def tick(self) -> None:
        if self.pin is not None and self.now >= self.pin_until:
            self.pin = None
        for sequence, due in self.pending.items():
            if due <= self.now:
                self.pending[sequence] = float("inf")
                self.again.append(sequence)
        self.serve()

    def write_down(self) -> None:
        self.written = (self.count, self.read_up_to, dict(self.pending))

    def restart(self, *, forgets: bool) -> None:
        self.pin = None
        self.pulls.clear()
        if forgets:
            self.count, self.read_up_to, self.pending = self.written
            self.pending = {s: due for s, due in self.pending.items() if s in self.stored}
        self.again = deque(s for s, due in self.pending.items() if due == float("inf"))

    def rewind(self) -> None:
        self.read_up_to = self.floor
        self.count = 0
        self.pending.clear()
        self.again.clear()
        self.serve()

    def settle(self, sequence: int) -> None:
        """By sequence, whoever says so; what was not delivered since a rewind is ignored."""
        if self.pending.pop(sequence, None) is not None:
            self.stored.pop(sequence, None)
        self.serve()

    def pull(self, pull: Pull) -> None:
        if pull.id is not None:
            if pull.id == self.pin:
                self.pin_until = self.now + PIN_S
            elif self.pin is not None:
                pull.process.told("refused", pull.generation)
                return
        self.pulls.append(pull)
        self.serve()

    def _candidate(self) -> int | None:
        while self.again:
            if self.again[0] in self.pending and self.again[0] in self.stored:
                return self.again[0]
            self.again.popleft()
        if len(self.pending) >= 2 * CREDIT:
            return None
        return next((s for s in self.stored if s > self.read_up_to), None)

    def serve(self) -> None:
        while True:
            sequence = self._candidate()
            pull = self._puller() if sequence is not None else None
            if pull is None or sequence is None:
                return
            if self.again and self.again[0] == sequence:
                self.again.popleft()
            else:
                self.read_up_to = sequence
            self.count += 1
            self.pending[sequence] = self.now + ACK_WAIT_S
            pull.wants -= 1
            if not pull.wants:
                self.pulls.remove(pull)
            pull.process.told("message", self.pin, self.count, sequence, pull.generation)

    def _puller(self) -> Pull | None:
        for pull in list(self.pulls):
            if pull.id is not None and pull.id != self.pin:
                self.pulls.remove(pull)
                pull.process.told("refused", pull.generation)
            elif self.pin is None:
                self.pins += 1
                self.pin = pull.id = f"pin{self.pins}"
                self.pin_until = self.now + PIN_S
                return pull
            elif pull.id == self.pin:
                return pull
        return None

    def handle(self, process: Process | None, request: Request) -> None:
        """`process` None: its connection is gone, nobody hears the answer."""
        kind, *rest = request

        def answer(*reply: Any) -> None:
            if process is not None:
                process.told(*reply)

        if kind == "ack":
            self.settle(rest[0])
        elif kind == "ask":
            if rest[0] <= self.read_up_to:  # else it is ignored, and not answered
                self.settle(rest[0])
                answer("answered", rest[1])
        elif kind == "is gone":
            answer("gone", rest[0], rest[0] not in self.stored)
        elif kind == "pull":
            if process is not None:
                self.pull(Pull(process, *rest))
        elif kind == "read":
            answer("read", rest[0], self.record, self.revision)
        elif kind == "look":
            answer("looked", rest[0], self.pin, self.floor, self.read_up_to)
        elif kind == "write":
            ticket, record, revision = rest
            if revision == self.revision:
                self.revision += 1
                self.record = record
                answer("wrote", ticket, self.revision)
            else:
                answer("wrote", ticket, None)
        elif kind == "rewind":
            self.rewind()
            answer("rewound", rest[0])
        elif kind == "unpin":
            self.pin = None
            answer("unpinned", rest[0])
            self.serve()


@dataclass
class Item:
    key: str
    sequence: int
    running: bool = False
    #: Cancelled, and has to have ended by then.
    ends_by: float | None = None


@dataclass
class Process:
    """One process. `kind` may be an owner with a defect."""

    name: str
    world: World
    kind: Callable[[str, float], Ownership] = Ownership
    frozen: bool = False
    connected: bool = True
    inbox: deque[Request] = field(default_factory=deque)
    outbox: deque[Request] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.own = self.kind(self.name, LEASE_S)
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
            trusted = self.own_proof + LEASE_S * margins.TRUST_SHARE
            for item in self.hand.values():
                if item.running:
                    # Thawed after its time: it unwinds before anything else runs here.
                    item.ends_by = min(self.now + UNWIND_S, trusted)
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
            if self.now - self.asked[1] < 2.0:
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
            self.outbox.append(("write", ticket, self.own.wanted_record, self.own.revision))

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
                self.own.looked(rest[1], rest[2], rest[3], self.now)
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
            item = self.hand[sequence] = Item(key, sequence)
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
        self.world.finished.add(item.sequence)
        self.finished.add(item.sequence)
        self.ack(item)


class World:
    """Everything, and what may never be seen in it."""

    def __init__(self, processes: int, kind: Callable[[str, float], Ownership] = Ownership) -> None:
        self.server = Server()
        self.kind = kind
        self.keys: dict[int, str] = {}
        self.finished: set[int] = set()
        self.handled = 0
        self.takeovers = 0
        self.made = 0
        self.late: deque[Request] = deque()
        self.processes = [self._process() for _ in range(processes)]

    @property
    def owner(self) -> Process:
        """Whoever believes to be it; the first process if nobody does."""
        return next((p for p in self.processes if p.own.owns), self.processes[0])

    def _process(self) -> Process:
        self.made += 1
        return Process(f"p{self.made}", self, self.kind)

    def check_start(self, process: Process, item: Item) -> None:
        """(K): nobody else runs a message of this key, and every earlier one is settled: its
        handler has ended, and the server has read that."""
        for other in self.processes:
            for running in other.running():
                assert running.key != item.key, (
                    f"{process} starts {item} while {other} runs {running}"
                )
        earlier = [
            s
            for s, key in self.keys.items()
            if key == item.key
            and s < item.sequence
            and (s not in self.finished or s in self.server.stored)
        ]
        assert not earlier, f"{process} starts {item} before {earlier}"
        assert item.sequence not in process.finished, f"{process} starts {item} once more"
        self.handled += 1

    # ------------------------------------------------------------------ what may happen

    def publish(self, key: str) -> None:
        self.keys[self.server.newest + 1] = key
        self.server.publish(key)

    def advance(self, seconds: float) -> None:
        until = self.server.now + seconds
        while self.server.now < until:
            self.server.now += TICK_S
            self.server.tick()
            for process in self.processes:
                if not process.frozen:
                    process.look()

    def to_server(self, process: Process, most: int = 1) -> None:
        for _ in range(most):
            if process.outbox and process.connected:
                self.server.handle(process, process.outbox.popleft())

    def from_server(self, process: Process, most: int = 1) -> None:
        for _ in range(most):
            process.hear()

    def freeze(self, process: Process) -> None:
        process.look()
        process.frozen = True

    def thaw(self, process: Process) -> None:
        process.frozen = False
        process.look()
        for item in process.running():
            for other in self.processes:
                if other is not process:
                    assert all(running.key != item.key for running in other.running()), (
                        f"{process} woke up and goes on with {item}, which {other} has"
                    )

    def cut(self, process: Process, *, rest_is_read: bool) -> None:
        """Its connection is lost. `rest_is_read`: the server reads what it sent, some time."""
        if rest_is_read:
            self.late.extend(process.outbox)
        process.outbox.clear()
        process.inbox.clear()
        process.connected = False
        self.server.pulls = [pull for pull in self.server.pulls if pull.process is not process]
        process.generation += 1
        process.requested = 0
        asked, process.asked = process.asked, None
        if asked is not None:
            process.own.failed(asked[0], self.server.now)
        process.doubt()
        process.own.disconnected()

    def connect(self, process: Process) -> None:
        if not process.connected:
            process.connected = True
            process.pull_at = 0.0
            process.own.reconnected(self.server.now)

    def read_late(self) -> None:
        """The server reads something that was written by a connection that is gone."""
        if self.late:
            self.server.handle(None, self.late.popleft())

    def kill(self, process: Process) -> None:
        """SIGKILL, and a new process instead of it."""
        self.cut(process, rest_is_read=True)
        self.processes[self.processes.index(process)] = self._process()

    def lose_delivery(self, process: Process) -> None:
        """One message to it is lost, and its connection does not know."""
        for message in process.inbox:
            if message[0] == "message":
                process.inbox.remove(message)
                return

    # ------------------------------------------------------------------ with handlers running

    def cut_off(self, seconds: float, *, unpin: bool, rest_is_read: bool, end: bool) -> None:
        """The owner is; the others go on."""
        self.run(1.0, end=False)
        self.cut(self.owner, rest_is_read=rest_is_read)
        if unpin:
            self.unpin()
        self.run(seconds, end=end)

    def frozen(self, seconds: float, *, unpin: bool) -> None:
        """The owner is, then it wakes up."""
        self.run(1.0, end=False)
        owner = self.owner
        self.freeze(owner)
        if unpin:
            self.unpin()
        self.run(seconds, end=False)
        self.thaw(owner)

    def pin_moves(self, seconds: float) -> None:
        self.run(1.0, end=False)
        self.unpin()
        self.run(seconds, end=False)

    def ends_under_way(self, exchanged: int, *, rewound: str, unpin: bool, ends: list[int]) -> None:
        """Handlers end while little of what is sent arrives, in either direction.

        `rewound`: what has happened before that, "by us", "by somebody" or "not".
        """
        for key in "aabbcc":
            self.publish(key)
        self.run(1.0, end=False)
        owner = self.owner
        if rewound == "by us" and owner.own.starts:
            owner.own._rewind = True
            self._until_asked(owner, Step.REWIND)
            if unpin:
                self.server.pin = None  # it lapses, and whoever stands by is given what comes
            self.to_server(owner, 50)
        elif rewound == "by somebody":
            self.rewind()
        for which in ends:
            owner.end(which, acknowledged=True)
            owner.step()
            self.to_server(owner, exchanged)
            self.from_server(owner, exchanged)
            if unpin:
                for other in self.processes:
                    if other is not owner:
                        other.step()
                        self.to_server(other, 9)
                        self.from_server(other, 9)
            owner.start()
        self.run(1.0, end=False)

    def late_answer(self, seconds: float, after: float) -> None:
        """The owner hears of its renewal much later than the server had it, then is cut off."""
        self.run(1.0, end=False)
        owner = self.owner
        self._until_asked(owner, Step.RENEW)
        self.to_server(owner, 50)
        self.freeze(owner)
        self.unpin()
        self.run(seconds, end=False)
        self.thaw(owner)
        self.from_server(owner, 50)
        self.cut(owner, rest_is_read=False)
        self.run(after, end=False)

    def ask_and_be_cut(self, process: Process, step: Step, *, rest_is_read: bool) -> None:
        """Its next request of a kind leaves it, and the answer never comes."""
        if self._until_asked(process, step):
            self.cut(process, rest_is_read=rest_is_read)
            self.connect(process)

    def _until_asked(self, process: Process, step: Step) -> bool:
        """Until its next request of this kind has left it, or for some time."""
        for _ in range(24):
            self.advance(TICK_S)
            process.step()
            if process.asked is not None and process.asked[0] is step:
                return True
            self.to_server(process, 50)
            self.from_server(process, 50)
            process.start()
        return False

    def restart_server(self, *, forgets: bool) -> None:
        for process in self.processes:
            self.cut(process, rest_is_read=False)
        self.late.clear()
        self.server.restart(forgets=forgets)

    def unpin(self) -> None:
        self.server.pin = None
        self.server.serve()

    def rewind(self) -> None:
        """An operator does what only the owner should."""
        self.server.rewind()

    # ------------------------------------------------------------------ a good day

    def run(self, seconds: float, *, start: bool = True, end: bool = True) -> None:
        """Everything that is not frozen or cut off works as it should.

        Handlers start and end at once; without `end` they go on and on.
        """
        until = self.server.now + seconds
        while self.server.now < until:
            self.advance(TICK_S)
            for process in self.processes:
                process.step()
                self.to_server(process, 50)
                self.from_server(process, 50)
                process.step()
                self.to_server(process, 50)
                if start:
                    process.start()
                    process.start()
                if end:
                    process.end(0, acknowledged=True)

    def settle(self) -> None:
        """No more trouble: everything has to be handled."""
        for process in self.processes:
            self.thaw(process)
            self.connect(process)
        for _ in range(40):
            self.run(LEASE_S)
            if not self.server.stored:
                break
        assert not self.server.stored, f"left: {self.server.stored}, {self.processes}"
        assert self.finished == set(self.keys)
