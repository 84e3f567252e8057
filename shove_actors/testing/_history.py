"""A history: what happened to messages, as a list of events, one JSON object per line on disk.

It says nothing about how it came about. The same rules (`check_history`) judge a simulation, a
test on a real server, and the journals of processes that were killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import IO, Literal, TypeAlias, overload

import msgspec

from shove_actors._errors import UsageError

from ._given import check_function, check_kind

#: published   the publisher was told that it is stored (`sequence` in its stream; `duplicate`;
#:             `detail`: the batch it belongs to)
#: unconfirmed  the publisher was told nothing, or that it failed: it may be stored all the same
#: started     a handler was called (`attempt`: its `retry_count`; `detail`: "replay" of a dead
#:             letter, whose `sequence` is the one that it had in its queue)
#: ended       that handler has entirely ended (`outcome`)
#: settled     the server has taken the acknowledgement: the message has left its queue
#: dead        a dead letter is stored (`detail`: the reason; `sequence`: that of the message that
#:             it is a copy of; `letter`: its own; `duplicate`: there is one of that message
#:             already, and the server must have known that)
#: remaining   looked at in the end: still stored, in its queue or a hold queue
#: suspected   it was noted that a suspect's handler is about to be called (`detail`: "over" when
#:             that note is taken away again)
#: held        a copy was stored in a hold queue, or back from one (`duplicate`: once more)
#: poisoned    a key was marked: nothing of it may be handled (`sequence`: of what poisoned it)
#: released    ... and may be again (`last`: the last message that its queue had stored by then)
#: opened      a process begins
#: closed      it has ended in order: nothing of it runs any more
#: crashed     it was killed: nothing that it does counts any more
#: fault       something else was made to go wrong (`detail`; `sequence`: the last that was stored,
#:             where a server may have forgotten what it has delivered). Three details mean more:
#:             "stopped" and "resumed" of a process (SIGSTOP and SIGCONT: what it had running stands
#:             still, and may be handled elsewhere), and "resharded" of a topic
Kind: TypeAlias = Literal[
    "published",
    "unconfirmed",
    "started",
    "ended",
    "settled",
    "dead",
    "remaining",
    "suspected",
    "held",
    "poisoned",
    "released",
    "opened",
    "closed",
    "crashed",
    "fault",
]
#: How a handler ended. `cancelled`: it was interrupted, which is not an attempt. `unaudited`: its
#: audit record could not be written, so it is called again, which is no retry.
Result: TypeAlias = Literal[
    "ack", "retry", "reject", "defer", "raised", "timed_out", "cancelled", "unaudited"
]


# No cycles can go through it, and a simulation makes hundreds of thousands.
class Event(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One thing that happened. What does not apply to its kind is left out.

    `time`: seconds of one clock for the whole history. `id`: the message's logical id, the same
    over all its attempts. `sequence`: of the stored copy in its stream. `letter`: of a dead letter,
    its own sequence among the dead letters, by which one that is told of twice is known.
    `digest`: of its payload, see `digest_of`; "" where it is not known. `after`: the delay in
    seconds that a handler has asked for, 0 for none. `late`: the handler had been told to stop
    before it ended. `found`: told by somebody who looked at what is stored, so it happened earlier.
    """

    kind: Kind
    time: float = 0.0
    process: str = ""
    topic: str = ""
    id: str = ""
    key: str | None = None
    shard: int | None = None
    sequence: int = 0
    attempt: int = 0
    outcome: Result | None = None
    duplicate: bool = False
    detail: str = ""
    letter: int = 0
    digest: str = ""
    after: float = 0.0
    late: bool = False
    last: int = 0
    found: bool = False

    def __str__(self) -> str:
        """One line, for people."""
        words = [f"{self.time:10.3f}", f"{self.process or '-':<10}", f"{self.kind:<9}"]
        if self.id:
            words.append(f"{self.topic}:{self.sequence} {self.id}")
        elif self.topic:
            words.append(self.topic)
        if self.key is not None:
            words.append(f"key {self.key!r}")
        if self.shard is not None:
            words.append(f"shard {self.shard}")
        if self.kind in ("started", "ended"):
            words.append(f"attempt {self.attempt}")
        if self.outcome is not None:
            words.append(self.outcome)
        if self.duplicate:
            words.append("duplicate")
        if self.after:
            words.append(f"after {self.after:g} s")
        if self.digest:
            words.append(f"payload {self.digest}")
        if self.detail:
            words.append(self.detail)
        return " ".join(words)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode
#: How each line begins, and how much of a file is read at a time to find its last one.
_LINE, _BLOCK = b'{"kind":"', 1 << 16


def digest_of(payload: bytes) -> str:
    """What tells a payload from every other one in a history, and says nothing about it."""
    return blake2b(payload, digest_size=6).hexdigest()


class History:
    """Events in the order in which they happened. Append-only.

        history = History()
        history.add(Event("published", topic="orders", id="1", sequence=1))

    `listen` hears each event as it is added, for instance a `Checker`. With `path` each event is
    also written there at once, one line each, so that it is there after a SIGKILL. A file that is
    there already is continued; a last line that was cut off is taken out of it first.
    """

    def __init__(
        self, events: Iterable[Event] = (), *, path: str | os.PathLike[str] | None = None
    ) -> None:
        self._events: list[Event] = list(events)
        for event in self._events:
            check_kind(event, "an event of the history", Event, "Event(...); of lines, from_lines")
        self._listeners: list[Callable[[Event], object]] = []
        # Unbuffered: a line is with the kernel when `add` returns.
        self._file: IO[bytes] | None = None
        if path:
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115
            _mend_end(self._file)

    def __repr__(self) -> str:
        return f"<History of {len(self._events)} events>"

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        return self._events[index]

    def add(self, event: Event) -> None:
        self._events.append(event)
        if self._file is not None:
            self._file.write(_encode(event) + b"\n")
        for listener in self._listeners:
            listener(event)

    def listen(self, listener: Callable[[Event], object]) -> None:
        check_function(listener, "listener", "a function of an Event")
        self._listeners.append(listener)

    def count(self, kind: Kind) -> int:
        return sum(event.kind == kind for event in self._events)

    def close(self) -> None:
        """Close the file, if there is one. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # ------------------------------------------------------------------------- on disk

    def to_lines(self) -> bytes:
        """JSON lines."""
        return b"".join(_encode(event) + b"\n" for event in self._events)

    def write(self, path: str | os.PathLike[str]) -> None:
        """All events, to a file of JSON lines."""
        Path(path).write_bytes(self.to_lines())

    @classmethod
    def from_lines(cls, lines: bytes | str | Iterable[bytes | str]) -> History:
        """From JSON lines. A last line that is cut off, as by SIGKILL, is left out.

        Raises `UsageError` naming the first line that is no event.
        """
        split: list[bytes | str] = (
            [*lines.splitlines()] if isinstance(lines, (bytes, str)) else list(lines)
        )
        events: list[Event] = []
        for number, line in enumerate(split, 1):
            if not line.strip():
                continue
            try:
                events.append(_decode(line))
            except msgspec.MsgspecError as exc:
                cut_off = isinstance(exc, msgspec.DecodeError) and not isinstance(
                    exc, msgspec.ValidationError
                )
                if cut_off and number == len(split):
                    break
                raise UsageError(f"line {number} is no event of a history: {exc}") from None
        return cls(events)

    @classmethod
    def read(cls, *paths: str | os.PathLike[str]) -> History:
        """From files of JSON lines, one per process, merged by time.

        Their clocks must be one: on one machine `time.monotonic` is. Events of the same time keep
        the order of the paths.
        """
        events = [e for path in paths for e in cls.from_lines(Path(path).read_bytes())]
        return cls(sorted(events, key=lambda event: event.time) if len(paths) > 1 else events)


def _mend_end(file: IO[bytes]) -> None:
    """So that the next line does not become part of one that was cut off, and is lost with it."""
    end = start = file.seek(0, os.SEEK_END)
    rest = b""
    while start > 0 and b"\n" not in rest:
        size = min(_BLOCK, start)
        start -= size
        file.seek(start)
        rest = file.read(size) + rest
    rest = rest[rest.rfind(b"\n") + 1 :]
    if not rest:
        return
    try:
        _decode(rest)
    except msgspec.MsgspecError:
        # What is no line of ours is left as it is.
        if rest.startswith(_LINE[: len(rest)]):
            file.truncate(end - len(rest))
            return
    file.write(b"\n")
