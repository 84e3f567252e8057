"""Messages that say what is to become of them, and the handler that does as it is told.

Every process of these tests runs the same handler, so a test describes a run by what it publishes.
A `Note` is treated as `does` says on its first attempt and acknowledged on every later one.

What a handler did is written to a journal before it could matter: one line, one `write`. The kernel
has the line when `write` returns, so a killed process takes nothing with it. Times are
`time.monotonic_ns()`, which all processes of one machine share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec
import trio

from shove_actors import (
    MessageMetadata,
    Outcome,
    Reject,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
)

#: What a handler that ends its process leaves as exit status.
HARD_EXIT: Final = 17
GATE_POLL_S: Final = 0.01
SUFFIX: Final = ".journal"

Kind = Literal["holds", "sequenced", "plain", "fail_all", "keyed", "keyed_fail_all"]


class Note(msgspec.Struct, frozen=True):
    """`does`: ack, retry, defer, reject, gate (wait for the gate file), work, block, exit.

    `mend` is rejected, and acknowledged when it is replayed from the dead letters; `mend-gate`
    waits for the gate file then. `work` sleeps for the process's `work_s`; `block` stands still for
    twice as long, and its whole process with it.
    """

    id: str
    does: str = "ack"
    key: str = "k"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """`what`: start, end, or interrupted (the handler was cancelled)."""

    what: str
    id: str
    key: str
    sequence: int
    shard: int | None
    retries: int
    delivered: int
    at: int
    who: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class Journal:
    """Appends to `{folder}/{who}.journal`."""

    def __init__(self, folder: Path, who: str) -> None:
        self.who = who
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._fd = os.open(folder / f"{who}{SUFFIX}", flags, 0o644)

    def write(self, what: str, note: Note, metadata: MessageMetadata) -> None:
        line = _encode(
            Event(
                what=what,
                id=note.id,
                key=note.key,
                sequence=metadata.sequence,
                shard=metadata.shard,
                retries=metadata.retry_count,
                delivered=metadata.num_delivered,
                at=time.monotonic_ns(),
                who=self.who,
            )
        )
        assert os.write(self._fd, line + b"\n") == len(line) + 1

    def close(self) -> None:
        os.close(self._fd)


def read_journals(folder: Path) -> list[Event]:
    """Every event of every process so far, by time."""
    return sorted(_events(folder), key=lambda event: event.at)


def _events(folder: Path) -> Iterator[Event]:
    for path in folder.glob(f"*{SUFFIX}"):
        data = path.read_bytes()
        # A last line without its end: its writer was killed within `write`.
        for line in data[: data.rfind(b"\n") + 1].splitlines():
            yield _decode(line)


class Handler:
    """See the module. `gate`: the file whose existence lets a `gate` note go on."""

    def __init__(
        self, journal: Journal, *, gate: Path, work_s: float = 0.0, may_exit: bool = False
    ) -> None:
        self._journal = journal
        self._gate = gate
        self._work_s = work_s
        self._may_exit = may_exit

    async def handle(self, note: Note, metadata: MessageMetadata) -> Outcome:
        self._journal.write("start", note, metadata)
        what = "interrupted"
        try:
            outcome = await self._treat(note, metadata)
            what = "end"
        finally:
            self._journal.write(what, note, metadata)
        return outcome

    async def _treat(self, note: Note, metadata: MessageMetadata) -> Outcome:
        if note.does == "exit":
            assert self._may_exit, "this process must not be ended by a handler"
            os._exit(HARD_EXIT)
        if note.does == "gate":
            while not self._gate.exists():  # noqa: ASYNC110 - opened by another process
                await trio.sleep(GATE_POLL_S)
        elif note.does == "work":
            await trio.sleep(self._work_s)
        elif note.does == "block":
            if metadata.num_delivered == 1:
                time.sleep(2 * self._work_s)  # noqa: ASYNC251 - what is tested
        elif note.does in ("mend", "mend-gate"):
            if not metadata.replayed:
                return Reject(reason="not yet")
            while note.does == "mend-gate" and not self._gate.exists():  # noqa: ASYNC110
                await trio.sleep(GATE_POLL_S)
        elif note.does == "reject":
            # Also when it comes again: a rejection is one for good.
            return Reject(reason="told to")
        elif note.does in ("retry", "defer") and _first(metadata):
            return Outcome.RETRY if note.does == "retry" else Outcome.DEFER
        return Outcome.ACK


def _first(metadata: MessageMetadata) -> bool:
    return metadata.retry_count == 0 and metadata.headers.get("Shove-Defer-Count", "0") == "0"


def make_topic(queue: str, kind: Kind, *, hold_s: float = 1.0, shards: int = 2) -> Topic[Note]:
    builder = TopologyBuilder(queue).dlq()
    if kind == "plain":
        return Topic(Note, builder.build())
    builder = builder.hold_queue(hold_s)
    if kind == "holds":
        return Topic(Note, builder.build())
    policy = SequenceFailure.FAIL_ALL if kind.endswith("fail_all") else SequenceFailure.SKIP
    builder = builder.sequenced(policy).routing_shards(shards)
    if kind.startswith("keyed"):
        builder = builder.keyed(max_in_flight=32)
    return SequencedTopic(Note, key=_key, topology=builder.build())


def _key(note: Note) -> str:
    return note.key
