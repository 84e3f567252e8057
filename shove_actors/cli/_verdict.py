"""The verdict on a run, from the journals alone.

    published      distinct stream sequences that the server's receipts named
    acknowledged   distinct flights whose handler ended with ACK
    dead-lettered  distinct flights that the consumer of the dead-letter queue saw
    lost           published, and neither
    redelivered    handler calls beyond the first of their flight
    order          for one key, a flight whose handler was first called before every earlier flight
                   of that key (by the order of publishing) had an ended handling
    in flight      handler calls of one shard that overlapped, whichever process they ran in

A handler that was killed in the middle counts as running until its process was certainly dead; one
that never ended although its process was not killed counts as running for ever. Neither the input
nor any counter of the library is asked.

Of a process that was stopped (SIGSTOP) nothing runs. A handler that it was stopped in runs until
then and from when it was resumed, with two exceptions, because no program can know that it was
stopped before it runs again:

    unwinding      cancelled where it slept, within `UNWIND_NS` of the resumption: not running
    in step        stopped within a few instructions (it had woken up already, or not yet gone to
                   sleep) and at an end within `STEP_NS`: counted apart, since nothing in a process
                   can prevent it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from ._flights import Expected
from ._journal import Dead, Ended, Event, Killed, Paused, Published, Resumed, Started

SETTLING = ("ack", "reject")
UNWIND_NS = 500_000_000
STEP_NS = 20_000_000
#: How many violations of one kind are described.
_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """See the module. `examples` describes the first violations of each kind."""

    published: int
    acknowledged: int
    dead_lettered: int
    order_violations: int
    overlaps: int
    lost: int
    redelivered: int
    acknowledged_and_dead: int
    without_receipt: int
    stored_twice: int
    server_kills: int
    worker_kills: int
    #: Overlaps by what a stopped process was in the very middle of.
    in_step: int = 0
    examples: tuple[str, ...] = field(default=())

    def mistakes(self, expected: Expected) -> list[str]:
        """What is not as it must be, one line each; empty for a good run."""
        found = [
            f"{what} is {got:,}, not {wanted:,}"
            for what, got, wanted in (
                ("published", self.published, expected.published),
                ("acknowledged", self.acknowledged, expected.acknowledged),
                ("dead-lettered", self.dead_lettered, expected.dead_lettered),
                ("order violations", self.order_violations, 0),
                ("handlers of one shard that overlapped", self.overlaps, 0),
                ("lost", self.lost, 0),
                ("acknowledged and dead-lettered", self.acknowledged_and_dead, 0),
                ("handled without a receipt", self.without_receipt, 0),
                ("stored twice", self.stored_twice, 0),
            )
            if got != wanted
        ]
        return [*found, *self.examples] if found else []


@dataclass
class _Call:
    """One call of a handler."""

    start: Started
    end: float = inf
    outcome: str = ""
    woke: int = 0
    #: When its process was stopped and resumed meanwhile.
    pauses: list[tuple[float, float]] = field(default_factory=list)
    #: When its process was last resumed before it began.
    after: float = -inf

    def spans(self) -> list[tuple[float, float, bool]]:
        """(from, to, whether in step): when it ran."""
        found: list[tuple[float, float, bool]] = []
        begun: float = self.start.at
        for stopped, resumed in self.pauses:
            found.append((begun, stopped, False))
            begun = resumed
        rest = self.end - begun
        if not self.pauses:
            hardly = begun - self.after < STEP_NS and self.outcome == "interrupted"
            found.append((begun, self.end, hardly and rest < UNWIND_NS))
        elif self.outcome == "interrupted" and rest < UNWIND_NS:
            pass
        else:
            done_waiting = 0 < self.woke < self.pauses[-1][0]
            found.append((begun, self.end, done_waiting and rest < STEP_NS))
        return found


def judge(events: Iterable[tuple[str, Event]]) -> Verdict:
    """The verdict on (journal, event) pairs, which are in the order of their times."""
    receipts: dict[int, Published] = {}
    rows: dict[int, set[int]] = defaultdict(set)
    calls: list[_Call] = []
    running: dict[tuple[str, int], _Call] = {}
    dead: set[int] = set()
    dead_sequences: set[int] = set()
    kills: list[str] = []
    resumed: dict[str, float] = {}
    for who, event in events:
        if isinstance(event, Published):
            receipts[event.sequence] = event
            rows[event.row].add(event.sequence)
        elif isinstance(event, Started):
            call = _Call(event, after=resumed.get(who, -inf))
            calls.append(call)
            running[who, event.sequence] = call
        elif isinstance(event, Ended):
            found = running.pop((who, event.sequence), None)
            if found is not None:
                found.end, found.outcome, found.woke = event.at, event.outcome, event.woke
        elif isinstance(event, Dead):
            dead.add(event.row)
            dead_sequences.add(event.sequence)
        elif isinstance(event, Paused):
            for place, call in running.items():
                if place[0] == event.who:
                    call.pauses.append((event.at, inf))
        elif isinstance(event, Resumed):
            resumed[event.who] = event.at
            for place, call in running.items():
                if place[0] == event.who and call.pauses:
                    call.pauses[-1] = call.pauses[-1][0], event.at
        elif isinstance(event, Killed):
            kills.append(event.who)
            for place in [place for place in running if place[0] == event.who]:
                running.pop(place).end = event.at
    acknowledged = {call.start.row for call in calls if call.outcome == "ack"}
    seen = {call.start.sequence for call in calls} | dead_sequences
    done = {call.start.sequence for call in calls if call.outcome == "ack"} | dead_sequences
    lost = sorted(sequence for sequence in receipts if sequence not in done)
    order = _order_violations(calls, receipts.values(), dead)
    overlaps, in_step = _overlaps(calls)
    examples = [
        *order[:_EXAMPLES],
        *overlaps[:_EXAMPLES],
        *(f"lost: flight {receipts[s].row}, stored as {s}" for s in lost[:_EXAMPLES]),
    ]
    servers = kills.count(Killed.SERVER)
    return Verdict(
        published=len(receipts),
        acknowledged=len(acknowledged),
        dead_lettered=len(dead),
        order_violations=len(order),
        overlaps=len(overlaps),
        lost=len(lost),
        redelivered=len(calls) - len({call.start.row for call in calls}),
        acknowledged_and_dead=len(acknowledged & dead),
        without_receipt=len(seen - receipts.keys()),
        stored_twice=sum(len(sequences) > 1 for sequences in rows.values()),
        server_kills=servers,
        worker_kills=len(kills) - servers,
        in_step=in_step,
        examples=tuple(examples),
    )


def _order_violations(
    calls: list[_Call], receipts: Iterable[Published], dead: set[int]
) -> list[str]:
    """One text per flight that was first handled too early."""
    first: dict[int, float] = {}
    settled: dict[int, float] = {}
    by_key: dict[str, set[int]] = defaultdict(set)
    for receipt in receipts:
        by_key[receipt.key].add(receipt.row)
    for call in calls:
        row = call.start.row
        by_key[call.start.key].add(row)
        first[row] = min(call.start.at, first.get(row, inf))
        if call.outcome in SETTLING:
            settled[row] = min(call.end, settled.get(row, inf))
    found = []
    for key, members in by_key.items():
        latest, latest_row = -inf, 0
        for row in sorted(members):
            if row in dead and row not in first:
                continue  # died without a handler: when it was settled, nobody saw
            if first.get(row, inf) < latest:
                found.append(
                    f"order: flight {row} of key {key!r} was handled before flight {latest_row} "
                    "was settled"
                )
            if settled.get(row, inf) > latest:
                latest, latest_row = settled.get(row, inf), row
    return found


def _overlaps(calls: list[_Call]) -> tuple[list[str], int]:
    """One text per call that ran while another of its shard did; and how many did so in step."""
    found, in_step = [], 0
    last: dict[int, tuple[_Call, float, bool]] = {}
    spans = [(span, call) for call in calls for span in call.spans()]
    for (begun, end, step), call in sorted(spans, key=lambda item: item[0][0]):
        shard = call.start.shard
        before, until, before_step = last.get(shard, (call, -inf, False))
        if before is not call and begun < until:
            if step or before_step:
                in_step += 1
            else:
                found.append(
                    f"in flight: flight {call.start.row} began on shard {shard} while "
                    f"flight {before.start.row} was running"
                )
        if end > until:
            last[shard] = call, end, step
    return found, in_step
