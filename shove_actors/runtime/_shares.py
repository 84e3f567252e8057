"""How many shards of a keyed topic a process should have. Pure.

Every process that consumes the topic writes an entry of its own again and again, and looks at those
of the others. One whose entry has not changed for a lease, by our clock, counts as gone. The names
of the entries have an order that all see alike, and in which whoever has come later is later. The
process at place i of n (from 0) is to have ceil((shards - i) / n): these shares make up all shards,
each is shards / n rounded up or down, and they follow from who is there, and from nothing else. So:

* who has more than its share lets go of one after another (of the next one already while the others
  only wind down: their handlers may be slow), and only who has less stands by for those. A shard
  that is let go of finds somebody, as somebody has too few when one has too many;
* a process that comes, and so is the last, makes no other one's share larger, one that goes makes
  no other one's smaller. So no shard moves between two of those that stay.

Processes see each other come and go at slightly different times, and several may take what has
become free at once. Meanwhile a shard may be let go of once too often; nothing but time is lost by
that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class Presence:
    """Which of the others are there. `lease_s`: how long an entry may stay as it is."""

    __slots__ = ("_lease_s", "_own", "_seen")

    def __init__(self, own: str, lease_s: float) -> None:
        self._own = own
        self._lease_s = lease_s
        #: Revision of each entry, and since when it has had it.
        self._seen: dict[str, tuple[int, float]] = {}

    def saw(self, entries: Mapping[str, int], now: float) -> None:
        """All entries with their revisions, as they are now."""
        before = self._seen
        self._seen = {}
        for name, revision in entries.items():
            known = before.get(name)
            unchanged = known is not None and known[0] == revision
            self._seen[name] = known if unchanged and known is not None else (revision, now)

    def alive(self, now: float) -> int:
        """How many processes there are, this one included."""
        return self.place(now)[1]

    def place(self, now: float) -> tuple[int, int]:
        """How many of the others come before this one, and how many processes there are."""
        others = [n for n in self._seen if n != self._own and not self._is_stale(n, now)]
        return sum(name < self._own for name in others), 1 + len(others)

    def gone(self, now: float) -> dict[str, int]:
        """Entries that nobody will write again, with their revisions."""
        return {n: seen[0] for n, seen in self._seen.items() if self._is_stale(n, now)}

    def _is_stale(self, name: str, now: float) -> bool:
        return name != self._own and now - self._seen[name][1] > self._lease_s


@dataclass(frozen=True, slots=True)
class Share:
    """What to do: let go of one shard, keep one that is winding down, or stand by for others."""

    let_go: bool = False
    keep: bool = False
    stand_by: bool = False


def share_of(
    *, shards: int, place: int, processes: int, owned: int, leaving: int = 0, winding_down: int = 0
) -> Share:
    """`owned`: how many this process has, without the `leaving` ones it is letting go of, of which
    some are only `winding_down`. `place`: among the `processes`, from 0.
    """
    most = -(-(shards - place) // processes)
    if owned < most and winding_down:
        return Share(keep=True)
    return Share(let_go=owned > most and leaving == winding_down, stand_by=owned < most)
