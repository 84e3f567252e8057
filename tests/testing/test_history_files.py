"""Histories in files that are continued, also behind a line that was cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from shove_actors.testing import Event, History

FIRST = History([Event("opened", 1.0, "w1")]).to_lines()
NEXT = Event("opened", 2.0, "w2")


@pytest.mark.parametrize(
    ("end", "kept"),
    [
        (b"", 1),
        (b'{"kind":"started","time":1.5,"pro', 1),
        (b'{"ki', 1),
        (b'{"kind":"closed","time":1.5,"process":"w1"}', 2),  # all of it but its end
        (b'{"kind":"started","process":"' + b"w" * 200_000, 1),
    ],
)
@pytest.mark.parametrize("before", [b"", FIRST, FIRST * 5_000])
def test_what_is_appended_has_a_line_of_its_own(
    before: bytes, end: bytes, kept: int, tmp_path: Path
) -> None:
    path = tmp_path / "one.jsonl"
    path.write_bytes(before + end)
    history = History(path=path)
    history.add(NEXT)
    history.close()
    found = History.read(path)
    assert len(found) == before.count(b"\n") + kept
    assert found[len(found) - 1] == NEXT
    assert path.read_bytes().startswith(before)


def test_a_file_of_something_else_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"milk\nbread")
    History(path=path).close()
    assert path.read_bytes() == b"milk\nbread\n"


def test_a_new_file_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    History(path=path).close()
    assert path.read_bytes() == b""
