"""Owners of one keyed shard against a model of the server. No tasks, no clock but a number.

The owners are the real `Ownership` and the real `KeyLanes`; what is modelled is the server (pins,
lapses, rewinds, late settles, restarts), the connections (first in, first out, cut at any point,
with a rest that the server reads later) and the processes (frozen, killed, slow to unwind).

The server is `keyed_server.py`, a process `keyed_process.py`; here is what may happen to them, and
what may never be seen.

What a frozen process had running is not counted as running: nothing of it executes. It counts again
from the moment of its thawing, if its own first look (`Ownership.lapsed`) has not cancelled it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from keyed_process import Item, Process
from keyed_server import LEASE_S, Request, Server

from shove_actors.backends._ownership import Ownership, Step

#: Time goes in steps of this; each process that runs looks at its lease after each.
TICK_S = 0.25
#: Since reading, before a claim; and for the claim itself.
MOMENT_S = 4.0


class World:
    """Everything, and what may never be seen in it."""

    def __init__(
        self,
        processes: int,
        kind: Callable[[str, float], Ownership] = Ownership,
        *,
        leases: Sequence[float] = (LEASE_S,),
    ) -> None:
        #: Of the processes, in turn: a deploy may change it while others run.
        self.leases = leases
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
        lease_s = self.leases[self.made % len(self.leases)]
        return Process(f"p{self.made}", self, self.kind, lease_s)

    def check_start(self, process: Process, item: Item) -> None:
        """(K): nobody else runs a message of this key, and every earlier one is settled: its
        handler has ended, and the server has read that."""
        for other in self.processes:
            for running in other.running():
                assert running.key != item.key, (
                    f"{process} starts {item} while {other} runs {running}"
                )
        if item.stream != self.server.stream:
            return  # it has not heard yet; there is no order between two streams
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

    def check_count(self, process: Process, sequence: int) -> None:
        """What is counted against the message's budget: no more than had it in hand, perhaps."""
        record = process.own.record
        assert record is not None
        most = 1 + self.server.claims - self.server.claims_at[sequence]
        counted = record.deliveries(sequence)
        assert counted <= most, f"{process}: {sequence} was delivered {counted} times, not {most}"

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
            if process.deceived:
                process.deceived = False
                process.own.recreated()
                process.look()
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

    def lost_while_cut_off(self, seconds: float, *, marked: bool) -> None:
        """The owner is cut off, and its record is lost."""
        self.run(1.0, end=False)
        self.cut(self.owner, rest_is_read=False)
        self.lose_record(marked=marked)
        self.unpin()
        self.run(seconds, end=False)

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

    def lose_record(self, *, marked: bool) -> None:
        """Somebody deletes it: with a marker, or with its bucket, which is made again.

        The latter not within a moment after it was the first, nor while somebody is on the way who
        has found none: that is not covered.
        """
        sent = [request for process in self.processes for request in process.outbox]
        sent.extend(self.late)
        risky = any(request[0] == "write" and not request[3] for request in sent)
        if marked or not (risky or self.server.now < self.server.first_at + MOMENT_S):
            self.server.lose_record(marked=marked)

    def recreate(self) -> None:
        """The stream is deleted and declared again: sequences count from 1."""
        self.keys.clear()
        self.finished.clear()
        self.late.clear()
        self.server.recreate()
        for process in self.processes:
            process.outbox.clear()
            process.inbox.clear()
            process.generation += 1
            process.requested = 0
            asked, process.asked = process.asked, None
            if asked is not None:
                process.own.failed(asked[0], self.server.now)
            if process.connected:
                process.own.recreated()
                if not process.frozen:
                    process.look()
            else:
                process.deceived = True

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
