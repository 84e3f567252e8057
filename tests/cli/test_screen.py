"""What a run shows, on a terminal with and without rich, and in a pipe."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shove_actors.actors import (
    Crashed,
    Exit,
    Killed,
    Kind,
    Returned,
    State,
    Stopped,
    TreeNode,
)
from shove_actors.cli import _journal
from shove_actors.cli._journal import Dead, Ended, Journal, Published, Started, now
from shove_actors.cli._progress import Progress, Rates, Snapshot
from shove_actors.cli._render import (
    progress_line,
    rule_lines,
    table_lines,
    tree_lines,
    verdict_rows,
)
from shove_actors.cli._screen import (
    RICH_MISSING,
    PlainScreen,
    RichScreen,
    make_screen,
    write_lines,
)
from shove_actors.cli._verdict import judge
from shove_actors.runtime._tree import RuleNode


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def node(name: str, *children: TreeNode, depth: int = 0, restarts: int = 0) -> TreeNode:
    return TreeNode(
        name=name,
        path=name,
        kind=Kind.SUPERVISOR if children else Kind.WORKER,
        state=State.RUNNING,
        incarnation=restarts + 1,
        restarts=restarts,
        mailbox_depth=depth,
        mailbox_capacity=64,
        last_exit=None,
        children=children,
    )


TREE = node("broker", node("bridge", restarts=2), node("services", node("publisher", depth=7)))


def snapshot(elapsed_s: float = 2.0, handled: int = 5, done: bool = False) -> Snapshot:
    return Snapshot(
        total=10,
        elapsed_s=elapsed_s,
        published=10,
        handled=handled,
        dead=1,
        calls=6,
        rates=Rates(published=1234.0, handled=5.0, dead=0.0),
        tree=TREE,
        workers=("worker-1 pid 5: 6 calls",),
        done=done,
    )


def test_a_pipe_gets_plain_lines() -> None:
    assert isinstance(make_screen(plain=False, out=io.StringIO()), PlainScreen)


def test_a_terminal_gets_the_live_view_unless_it_asks_for_lines() -> None:
    assert isinstance(make_screen(plain=False, out=Terminal()), RichScreen)
    assert isinstance(make_screen(plain=True, out=Terminal()), PlainScreen)


def test_without_rich_it_says_what_to_install_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert isinstance(make_screen(plain=False, out=Terminal()), PlainScreen)
    assert capsys.readouterr().err.strip() == RICH_MISSING
    assert "pip install shove-actors[demo]" in RICH_MISSING


def test_the_live_view_shows_numbers_workers_and_tree() -> None:
    out = Terminal()
    with make_screen(plain=False, out=out) as screen:
        assert isinstance(screen, RichScreen)
        screen.update(snapshot())
        screen.note("killed [the] server")
        screen.verdict(judge([]), chaos=True, mistakes=["lost is [1], not 0"])
    shown = out.getvalue()
    for text in ("5 / 10", "1,234/s", "publisher", "worker-1 pid 5", "killed [the] server"):
        assert text in shown
    assert "WRONG: lost is [1], not 0" in shown


def test_plain_lines_come_once_a_second_and_at_the_end() -> None:
    out = io.StringIO()
    screen = PlainScreen(out)
    screen.update(snapshot(0.0, handled=0))
    screen.update(snapshot(0.5))
    screen.update(snapshot(0.6, done=True))
    screen.update(snapshot(0.7, done=True))
    screen.update(snapshot(1.7, done=True))
    lines = [line for line in out.getvalue().splitlines() if "published" in line]
    assert [line.split()[0] for line in lines] == ["0.0", "0.6", "1.7"]
    assert out.getvalue().count("├─ bridge") == 1


def test_a_tree_shows_states_restarts_and_full_mailboxes() -> None:
    assert tree_lines(TREE) == [
        "broker  running",
        "├─ bridge  running  2 restarts",
        "└─ services  running",
        "   └─ publisher  running  mailbox 7/64",
    ]


def test_a_tree_says_what_ended_the_last_run() -> None:
    exits: list[tuple[Exit, str]] = [
        (Crashed(error=ValueError("4111 1111 1111 1111")), "last crashed with ValueError"),
        (Returned(), "last returned"),
        (Stopped(), "last stopped"),
        (Killed(), "last killed"),
    ]
    for exit_, said in exits:
        ended = replace(node("lane", restarts=1), last_exit=exit_)
        assert tree_lines(ended) == [f"lane  running  1 restart  {said}"]


def test_a_terminal_without_box_characters_gets_a_tree_all_the_same() -> None:
    assert tree_lines(TREE, ascii_only=True) == [
        "broker  running",
        "|- bridge  running  2 restarts",
        "`- services  running",
        "   `- publisher  running  mailbox 7/64",
    ]
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    PlainScreen(out).update(snapshot())
    assert b"\n|- bridge" in raw.getvalue()
    write_lines(out, ["caf\xe9"])
    assert raw.getvalue().endswith(b"caf\\xe9\n")


def test_rules_are_aligned() -> None:
    leaf = RuleNode(name="publisher", rules="grace 10 s", children=())
    root = RuleNode(name="broker", rules="rest_for_one", children=(leaf,))
    assert rule_lines(root) == ["broker        rest_for_one", "└─ publisher  grace 10 s"]


def test_the_last_table() -> None:
    rows = verdict_rows(judge([("chaos", _journal.Killed(who="server", at=1))]), chaos=True)
    assert ("at most one in flight per shard", "held") in rows
    assert ("server killed", "1 times") in rows
    assert len({len(line) for line in table_lines(rows)}) == 1


def test_a_line_names_everything() -> None:
    line = progress_line(snapshot())
    assert "published 10 (1,234/s)" in line
    assert line.endswith("worker-1 pid 5: 6 calls")


def test_progress_counts_flights_once_and_knows_when_all_are_accounted_for(tmp_path: Path) -> None:
    progress = Progress(tmp_path, total=2)
    with Journal(tmp_path, "a") as journal:
        for row in (1, 2):
            journal.write(Published(row=row, key="", sequence=row, at=now()))
        progress.read()
        assert progress.share() == 0.5
        for delivered in (1, 2):
            journal.write(
                Started(row=1, key="", sequence=1, shard=0, delivered=delivered, at=now())
            )
            progress.read()
            assert progress.running("a") == 1
            journal.write(Ended(row=1, sequence=1, outcome="ack", at=now()))
        journal.write(Started(row=2, key="", sequence=2, shard=0, delivered=1, at=now()))
        journal.write(Ended(row=2, sequence=2, outcome="reject", at=now()))
        progress.read()
        assert (progress.handled, progress.calls_of("a"), progress.running("a")) == (2, 3, 0)
        assert progress.share() == 1.0
        assert not progress.done
        journal.write(Dead(row=2, sequence=2, reason="rejected", at=now()))
    progress.read()
    assert progress.done
    assert progress.snapshot(None).done
