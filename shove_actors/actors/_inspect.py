"""A picture of the tree at one moment. Reads state, asks nobody, never waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._exit import Exit
from ._slot import Slot, State
from ._spec import Kind


@dataclass(frozen=True, kw_only=True)
class TreeNode:
    """One slot and what is below it."""

    name: str
    """The child's id; the system's name at the root."""
    path: str
    kind: Kind
    state: State
    incarnation: int
    """Number of the present or last run; 0 before the first."""
    restarts: int
    mailbox_depth: int
    mailbox_capacity: int
    """0 for a supervisor, which has no mailbox."""
    last_exit: Exit | None
    children: tuple[TreeNode, ...]

    def walk(self) -> Iterator[TreeNode]:
        """This node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def find(self, path: str) -> TreeNode | None:
        """The node with this path, or None."""
        return next((node for node in self.walk() if node.path == path), None)

    def count(self) -> dict[State, int]:
        """How many workers are in each state; states with none are left out."""
        counts: dict[State, int] = {}
        for node in self.walk():
            if node.kind is Kind.WORKER:
                counts[node.state] = counts.get(node.state, 0) + 1
        return counts


def snapshot(slot: Slot) -> TreeNode:
    """The tree from `slot` down."""
    statistics = slot.mailbox.statistics()
    worker = slot.spec.kind is Kind.WORKER
    return TreeNode(
        name=slot.spec.id,
        path=slot.path,
        kind=slot.spec.kind,
        state=slot.state,
        incarnation=slot.incarnations,
        restarts=max(0, slot.incarnations - 1),
        mailbox_depth=statistics.depth if worker else 0,
        mailbox_capacity=statistics.capacity if worker else 0,
        last_exit=slot.last_exit,
        children=tuple(snapshot(child) for child in slot.children.values()),
    )
