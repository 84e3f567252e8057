"""Why a flight was handled twice: which blow did it.

A duplicate is a handler call beyond the first of its flight. Somebody gave the message up, or its
settle was lost, between the call before it and itself; the blows that fell in that time, or shortly
before it, explain it. A duplicate that no blow explains is a defect.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Final

from shove_actors.cli._journal import Ended, Event, Killed, Paused, Resumed, Started

UNEXPLAINED: Final = "unexplained"
#: What a server is resumed or started into takes so long to show: leases are looked after, workers
#: connect again.
ECHO_NS: Final = 1_500_000_000


@dataclass
class _Blow:
    who: str
    what: str
    begun: int
    ended: int


@dataclass
class _Call:
    who: str
    begun: int
    ended: int
    outcome: str


def explain(events: list[tuple[str, Event]]) -> Counter[str]:
    """How many duplicates each cause has."""
    blows, calls = _read(events)
    causes: Counter[str] = Counter()
    for attempts in calls.values():
        for before, again in itertools.pairwise(attempts):
            causes[_cause(before, again, blows)] += 1
    return causes


def _cause(before: _Call, again: _Call, blows: list[_Blow]) -> str:
    earlier = [blow for blow in blows if blow.begun <= again.begun]
    meanwhile = [blow for blow in earlier if blow.ended >= before.begun]
    # One that was over before, and is still felt, explains only what no other one does: another
    # process may well have been stopped meanwhile.
    echo = [blow for blow in earlier if blow.ended < before.begun <= blow.ended + ECHO_NS]
    return _blamed(before, meanwhile) or _blamed(before, echo) or UNEXPLAINED


def _blamed(before: _Call, blows: list[_Blow]) -> str | None:
    for blow in blows:
        if blow.who == before.who and blow.what == "killed":
            return "its worker was killed"
    for blow in blows:
        if blow.who == before.who and blow.what == "stopped":
            return "its worker was stopped"
    for what in ("killed", "stopped"):
        if any(blow.who == Killed.SERVER and blow.what == what for blow in blows):
            how = "cut off" if before.outcome == "interrupted" else "settle lost"
            return f"server {what}, {how}"
    return None


def _read(events: list[tuple[str, Event]]) -> tuple[list[_Blow], dict[int, list[_Call]]]:
    blows: list[_Blow] = []
    calls: dict[int, list[_Call]] = {}
    running: dict[tuple[str, int], _Call] = {}
    for who, event in events:
        if isinstance(event, Started):
            call = running[who, event.sequence] = _Call(who, event.at, event.at, "killed")
            calls.setdefault(event.row, []).append(call)
        elif isinstance(event, Ended):
            ended = running.pop((who, event.sequence), None)
            if ended is not None:
                ended.ended, ended.outcome = event.at, event.outcome
        elif isinstance(event, Killed):
            blows.append(_Blow(event.who, "killed", event.at, event.at))
        elif isinstance(event, Paused):
            blows.append(_Blow(event.who, "stopped", event.at, 1 << 62))
        elif isinstance(event, Resumed):
            for blow in reversed(blows):
                if blow.who == event.who and blow.what == "stopped":
                    blow.ended = event.at
                    break
    return blows, calls
