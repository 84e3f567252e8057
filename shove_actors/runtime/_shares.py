"""How many shards of a keyed topic a process should have. Pure.

Every process that consumes the topic writes an entry of its own again and again, and looks at those
of the others. One whose entry has not changed for a lease, by our clock, counts as gone. With n
processes each is to have at most ceil(shards / n) shards: who has more lets go of one after
another, and only who has fewer stands by for those. So a shard that is let go of finds somebody
(n x share is never less than the number of shards), and nobody gets one too many.

Processes see each other come and go at slightly different times. Meanwhile a shard may be let go of
once too often; nothing but time is lost by that.
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
        others = [n for n in self._seen if n != self._own and not self._is_stale(n, now)]
        return 1 + len(others)

    def gone(self, now: float) -> dict[str, int]:
        """Entries that nobody will write again, with their revisions."""
        return {n: seen[0] for n, seen in self._seen.items() if self._is_stale(n, now)}

    def _is_stale(self, name: str, now: float) -> bool:
        return name != self._own and now - self._seen[name][1] > self._lease_s


@dataclass(frozen=True, slots=True)
class Share:
    """What to do: let go of one shard, or stand by for those that are not ours."""

    let_go: bool
    stand_by: bool


def share_of(*, shards: int, processes: int, owned: int, leaving: int) -> Share:
    """`owned`: how many this process has, without the `leaving` ones it is letting go of."""
    most = -(-shards // processes)
    return Share(let_go=owned > most and not leaving, stand_by=owned < most)
