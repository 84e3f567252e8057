"""The server of `keyed_model.py`: one durable with a pinned client, its stream, and the record."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shove_actors.backends._owner_record import OwnerRecord, lost_record
from shove_actors.backends._ownership import Step

if TYPE_CHECKING:
    from keyed_process import Process

PIN_S = 4.0
#: The longest lease of all processes, and the durable's ack wait.
LEASE_S = 12.0
CREDIT = 6

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
        self.revisions = 0
        #: When somebody has written where there was nothing.
        self.first_at = float("-inf")
        #: Which one it is among all streams of that name; and of the record, whether there was one.
        self.stream = 1
        self.had_record = False
        #: How often somebody was written down as the owner; and that number, when a message came.
        self.claims = 0
        self.claims_at: dict[int, int] = {}
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
        self.claims_at[self.newest] = self.claims
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

    def recreate(self) -> None:
        """The stream and its durable are deleted and made again. The record stays."""
        self.stream += 1
        self.stored.clear()
        self.claims_at.clear()
        self.newest = self.count = self.read_up_to = 0
        self.pending.clear()
        self.again.clear()
        self.pulls.clear()
        self.pin = None
        self.written = (0, 0, {})

    def lose_record(self, *, marked: bool) -> None:
        """`marked`: by somebody who deleted it. Else with its bucket; the next one counts on."""
        self.record = None
        self.revisions += marked
        self.revision = self.revisions if marked else 0

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
            self.pending[sequence] = self.now + LEASE_S
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
            lost = lost_record(LEASE_S) if self.had_record else None
            answer("read", rest[0], self.record or lost, self.revision)
        elif kind == "look":
            answer("looked", rest[0], self.pin, self.floor, self.read_up_to, str(self.stream))
        elif kind == "write":
            ticket, record, revision, step = rest
            if revision == self.revision:
                self.revisions += 1
                if not self.revision:
                    self.first_at = self.now
                self.revision = self.revisions
                self.record = record
                self.had_record = True
                self.claims += step is Step.CLAIM
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
