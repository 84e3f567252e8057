"""Trees, lines and tables as plain text. Pure: no terminal, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from shove_actors.actors import Crashed, Killed, Kind, Returned, TreeNode
from shove_actors.runtime._tree import RuleNode

from ._progress import Snapshot
from ._verdict import Verdict

#: Trunk, branch, last branch, nothing; and the same for terminals that have only ASCII.
BOX = ("│  ", "├─ ", "└─ ", "   ")
ASCII = ("|  ", "|- ", "`- ", "   ")


N = TypeVar("N", TreeNode, RuleNode)


def tree_lines(root: TreeNode, *, ascii_only: bool = False) -> list[str]:
    """The tree with box characters; per node its state, and what is out of the ordinary.

    That is: how often it was restarted, what ended its last run, how many messages wait.
    """
    return _draw(root, _state, ASCII if ascii_only else BOX)


def rule_lines(root: RuleNode, *, ascii_only: bool = False) -> list[str]:
    """The tree with the rules of each node beside it, aligned."""
    marks = ASCII if ascii_only else BOX
    names = _draw(root, lambda node: node.name, marks)
    width = max(map(len, names))
    rules = [node.rules for node in root.walk()]
    return [f"{name:<{width}}  {rule}" for name, rule in zip(names, rules, strict=True)]


def _draw(root: N, label: Callable[[N], str], marks: Sequence[str]) -> list[str]:
    return [label(root), *_below(root, label, marks, "")]


def _below(node: N, label: Callable[[N], str], marks: Sequence[str], indent: str) -> Iterator[str]:
    trunk, branch, last_branch, nothing = marks
    for index, child in enumerate(node.children):
        last = index == len(node.children) - 1
        yield f"{indent}{last_branch if last else branch}{label(child)}"
        yield from _below(child, label, marks, indent + (nothing if last else trunk))


def _state(node: TreeNode) -> str:
    parts = [node.name, node.state.value]
    if node.restarts:
        parts.append(f"{node.restarts} restart{'s' if node.restarts > 1 else ''}")
    if node.last_exit is not None:
        parts.append(f"last {_exit(node)}")
    if node.kind is Kind.WORKER and node.mailbox_depth:
        parts.append(f"mailbox {node.mailbox_depth:,}/{node.mailbox_capacity:,}")
    return "  ".join(parts)


def _exit(node: TreeNode) -> str:
    """How the last run ended: of an error its type, because its text may hold data."""
    if isinstance(node.last_exit, Crashed):
        return f"crashed with {type(node.last_exit.error).__name__}"
    if isinstance(node.last_exit, Returned):
        return "returned"
    return "killed" if isinstance(node.last_exit, Killed) else "stopped"


def tree_state(node: TreeNode) -> dict[str, Any]:
    """A tree as JSON. Of an error its type only: its text may hold data."""
    return {
        "name": node.name,
        "kind": node.kind.value,
        "state": node.state.value,
        "restarts": node.restarts,
        "mailbox": node.mailbox_depth,
        "capacity": node.mailbox_capacity,
        "last_exit": None if node.last_exit is None else _exit(node),
        "children": [tree_state(child) for child in node.children],
    }


def rule_state(node: RuleNode) -> dict[str, Any]:
    """The rules as JSON."""
    return {
        "name": node.name,
        "rules": node.rules,
        "children": [rule_state(child) for child in node.children],
    }


def progress_line(now: Snapshot) -> str:
    """One line for a log."""
    line = (
        f"{now.elapsed_s:6.1f} s  published {now.published:,} ({now.rates.published:,.0f}/s)  "
        f"handled {now.handled:,} ({now.rates.handled:,.0f}/s)  dead {now.dead:,}"
    )
    return "  ".join([line, *now.workers])


def verdict_rows(verdict: Verdict, *, chaos: bool) -> list[tuple[str, str]]:
    """What the final table shows: (what, value)."""
    in_flight = "held" if verdict.overlaps == 0 else f"BROKEN {verdict.overlaps:,} times"
    rows = [
        ("published", f"{verdict.published:,}"),
        ("acknowledged", f"{verdict.acknowledged:,}"),
        ("dead-lettered", f"{verdict.dead_lettered:,}"),
        ("order violations", f"{verdict.order_violations:,}"),
        ("at most one in flight per shard", in_flight),
        ("lost", f"{verdict.lost:,}"),
        ("redelivered", f"{verdict.redelivered:,}"),
    ]
    if chaos:
        rows.append(("server killed", f"{verdict.server_kills:,} times"))
        rows.append(("consumer process killed", f"{verdict.worker_kills:,} times"))
    return rows


def table_lines(rows: list[tuple[str, str]]) -> list[str]:
    """Aligned with dots, numbers to the right."""
    left = max(len(what) for what, _ in rows) + 2
    right = max(len(value) for _, value in rows)
    return [f"  {what + ' ':.<{left}} {value:>{right}}" for what, value in rows]
