"""Trees, lines and tables as plain text. Pure: no terminal, no clock."""

from __future__ import annotations

from collections.abc import Iterator

from shove_actors.actors import Kind, TreeNode

from ._progress import Snapshot
from ._verdict import Verdict


def tree_lines(root: TreeNode) -> list[str]:
    """The tree with box characters; per node its state, restarts and mailbox."""
    return [_node(root), *_below(root, "")]


def _below(node: TreeNode, indent: str) -> Iterator[str]:
    for index, child in enumerate(node.children):
        last = index == len(node.children) - 1
        yield f"{indent}{'└─ ' if last else '├─ '}{_node(child)}"
        yield from _below(child, indent + ("   " if last else "│  "))


def _node(node: TreeNode) -> str:
    parts = [node.name, node.state.value]
    if node.restarts:
        parts.append(f"{node.restarts} restart{'s' if node.restarts > 1 else ''}")
    if node.kind is Kind.WORKER and node.mailbox_depth:
        parts.append(f"mailbox {node.mailbox_depth:,}/{node.mailbox_capacity:,}")
    return "  ".join(parts)


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
