"""Evidence is complete lines, each read once, and damage is not passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from shove_actors.cli._journal import (
    SUFFIX,
    Dead,
    Ended,
    Journal,
    JournalError,
    JournalReader,
    Killed,
    Published,
    Started,
    read_all,
)

EVENTS = [
    Published(row=1, key="N1 \t\n\u2028", sequence=7, at=1),
    Started(row=1, key="N1", sequence=7, shard=3, delivered=2, at=2),
    Ended(row=1, sequence=7, outcome="reject", at=3),
    Dead(row=1, sequence=7, reason="rejected", at=4),
    Killed(who="worker-1", at=5),
]


def test_what_was_written_is_read_in_the_order_of_time(tmp_path: Path) -> None:
    with Journal(tmp_path, "b") as late, Journal(tmp_path, "a") as early:
        late.write(*EVENTS[3:])
        early.write(*EVENTS[:3])
    assert read_all(tmp_path) == [("a", e) for e in EVENTS[:3]] + [("b", e) for e in EVENTS[3:]]


def test_every_line_is_read_once_and_only_when_it_is_complete(tmp_path: Path) -> None:
    reader = JournalReader(tmp_path)
    with Journal(tmp_path, "a") as journal:
        journal.write(EVENTS[0])
        assert list(reader.new_events()) == [("a", EVENTS[0])]
        assert list(reader.new_events()) == []
        journal.write(EVENTS[1])
        path = tmp_path / f"a{SUFFIX}"
        whole = path.read_bytes()
        path.write_bytes(whole[:-5])
        assert list(reader.new_events()) == []
        path.write_bytes(whole)
        assert list(reader.new_events()) == [("a", EVENTS[1])]


def test_a_torn_last_line_had_not_happened_yet(tmp_path: Path) -> None:
    with Journal(tmp_path, "a") as journal:
        journal.write(*EVENTS)
    path = tmp_path / f"a{SUFFIX}"
    path.write_bytes(path.read_bytes()[:-3])
    assert read_all(tmp_path) == [("a", event) for event in EVENTS[:-1]]


@pytest.mark.parametrize("line", [b"{}", b"nonsense", b'{"type":"ended","row":"x"}', b""])
def test_a_line_that_is_no_event_spoils_the_evidence(tmp_path: Path, line: bytes) -> None:
    (tmp_path / f"a{SUFFIX}").write_bytes(line + b"\n")
    with pytest.raises(JournalError, match="journal a"):
        read_all(tmp_path)


def test_two_processes_cannot_share_a_journal(tmp_path: Path) -> None:
    with Journal(tmp_path, "a"), pytest.raises(FileExistsError):
        Journal(tmp_path, "a")
