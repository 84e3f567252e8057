"""Evidence: what every process of a run did, written down before it could matter.

A journal is a file that one process appends to, one JSON line per event, each with one `write`.
The kernel has the line when `write` returns, so a process that is killed afterwards (SIGKILL)
takes nothing with it; the verdict then needs no word from the dead. A handler writes `Started`
before it does anything and `Ended` before it returns its outcome.

Times are `time.monotonic_ns()`, which all processes of one machine share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, TypeAlias

import msgspec

from shove_actors import ShoveError

SUFFIX = ".journal"


class Published(msgspec.Struct, frozen=True, kw_only=True, tag="published"):
    """The server's receipt for one flight."""

    row: int
    key: str
    sequence: int
    at: int


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """A handler was called. `delivered` counts the server's deliveries of this message."""

    row: int
    key: str
    sequence: int
    shard: int
    delivered: int
    at: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The handler is about to return `outcome`: `ack`, `reject`, or `interrupted`."""

    row: int
    sequence: int
    outcome: str
    at: int
    #: When the handler was done waiting; 0 if it never was.
    woke: int = 0


class Dead(msgspec.Struct, frozen=True, kw_only=True, tag="dead"):
    """The consumer of the dead-letter queue has seen this flight."""

    row: int
    sequence: int
    reason: str
    at: int


class Killed(msgspec.Struct, frozen=True, kw_only=True, tag="killed"):
    """Somebody was killed; `at` is when its end was certain. Written by who killed it."""

    who: str
    at: int

    SERVER: ClassVar[str] = "server"


class Paused(msgspec.Struct, frozen=True, kw_only=True, tag="paused"):
    """Somebody was stopped (SIGSTOP); `at` is when it certainly stood still."""

    who: str
    at: int


class Resumed(msgspec.Struct, frozen=True, kw_only=True, tag="resumed"):
    """Somebody who was stopped may go on from `at`."""

    who: str
    at: int


Event: TypeAlias = Published | Started | Ended | Dead | Killed | Paused | Resumed

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode
now = time.monotonic_ns


class JournalError(ShoveError):
    """A journal is damaged in a way that no kill explains: the evidence is worth nothing."""


class Journal:
    """Appends to `{folder}/{name}.journal`. Use it as a context manager, or `close` it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._fd = os.open(
            folder / f"{name}{SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644
        )

    def write(self, *events: Event) -> None:
        """All of them with one write. Blocks as long as the page cache takes: microseconds."""
        data = b"".join([_encode(event) + b"\n" for event in events])
        if os.write(self._fd, data) != len(data):
            raise JournalError(f"journal {self.name} could not be written whole: disk full?")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class JournalReader:
    """Reads all journals of a folder, again and again, each line once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def new_events(self) -> Iterator[tuple[str, Event]]:
        """(journal, event) for every complete line since the last call."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            name = path.name.removesuffix(SUFFIX)
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            complete = data.rfind(b"\n") + 1
            self._offsets[path] = self._offsets.get(path, 0) + complete
            for line in data[:complete].splitlines():
                yield name, _event(name, line)


def read_all(folder: Path) -> list[tuple[str, Event]]:
    """Everything in the folder's journals, sorted by time.

    Raises `JournalError` for a line that is no event. A last line without its end is left out: its
    writer was killed within `write`, so what it meant to tell had not happened yet.
    """
    return sorted(JournalReader(folder).new_events(), key=lambda found: found[1].at)


def _event(name: str, line: bytes) -> Event:
    try:
        return _decode(line)
    except msgspec.MsgspecError as exc:
        raise JournalError(f"journal {name} has a line that is no event: {exc}") from None
