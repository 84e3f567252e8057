"""What journals say of one shard's handlers: did they overlap, and were they in order?"""

from __future__ import annotations

from collections import defaultdict
from math import inf

from .notes import Event


def intervals(events: list[Event], ended_at: dict[str, float]) -> list[tuple[Event, float]]:
    """(start, end) of each handler call; a killed process's calls end with the process."""
    ends: dict[tuple[str, int, int], float] = {
        (e.who, e.sequence, e.delivered): e.at for e in events if e.what != "start"
    }
    return [
        (e, ends.get((e.who, e.sequence, e.delivered), ended_at.get(e.who, inf)))
        for e in events
        if e.what == "start"
    ]


def overlaps(calls: list[tuple[Event, float]]) -> list[str]:
    """Calls that began while another one of their shard was running."""
    running: dict[int | None, tuple[str, float]] = {}
    found = []
    for start, end in calls:
        before, until = running.get(start.shard, ("", -inf))
        if start.at < until:
            found.append(f"{start.id} began on shard {start.shard} while {before} was running")
        if end > until:
            running[start.shard] = start.id, end
    return found


def out_of_order(calls: list[tuple[Event, float]], done: dict[int, int]) -> list[str]:
    """Messages first handled before every earlier one of their key was settled."""
    by_key: dict[str, dict[int, Event]] = defaultdict(dict)
    for start, _ in calls:
        by_key[start.key].setdefault(start.sequence, start)
    found = []
    for key, firsts in by_key.items():
        latest: float = -inf
        for sequence, start in sorted(firsts.items()):
            if start.at < latest:
                found.append(f"{start.id} of key {key} came too early")
            latest = max(latest, done.get(sequence, inf))
    return found
