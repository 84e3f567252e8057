"""The verdict on hand-made journals: a good one, and one with each kind of fault.

Every test starts from the same good history and spoils one thing, so a check that sees nothing
would fail its test.
"""

from __future__ import annotations

import pytest

from shove_actors.cli._flights import Expected
from shove_actors.cli._journal import Dead, Ended, Event, Killed, Published, Started
from shove_actors.cli._verdict import Verdict, judge

Line = tuple[str, Event]

#: Flights 1 and 3 of aircraft A, 2 of aircraft B, which never departed. One shard, two processes.
EXPECTED = Expected(published=3, acknowledged=2, dead_lettered=1)


def receipt(row: int, key: str, at: int, sequence: int | None = None) -> Line:
    where = sequence if sequence is not None else 100 + row
    return "publisher", Published(row=row, key=key, sequence=where, at=at)


def start(who: str, row: int, key: str, at: int, *, shard: int = 0, sequence: int = 0) -> Line:
    return who, Started(
        row=row, key=key, sequence=sequence or 100 + row, shard=shard, delivered=1, at=at
    )


def end(who: str, row: int, at: int, outcome: str = "ack") -> Line:
    return who, Ended(row=row, sequence=100 + row, outcome=outcome, at=at)


def dead(row: int, at: int) -> Line:
    return "main", Dead(row=row, sequence=100 + row, reason="rejected", at=at)


def killed(who: str, at: int) -> Line:
    return "chaos", Killed(who=who, at=at)


def good() -> list[Line]:
    return [
        receipt(1, "A", 1), receipt(2, "B", 2), receipt(3, "A", 3),
        start("p", 1, "A", 10), end("p", 1, 20),
        start("q", 2, "B", 30), end("q", 2, 40, "reject"),
        dead(2, 45),
        start("p", 3, "A", 50), end("p", 3, 60),
    ]  # fmt: skip


def verdict_on(lines: list[Line]) -> Verdict:
    return judge(sorted(lines, key=lambda line: line[1].at))


def without(lines: list[Line], row: int, kind: type) -> list[Line]:
    kept = [line for line in lines if not (isinstance(line[1], kind) and line[1].row == row)]
    assert len(kept) < len(lines)
    return kept


def test_a_good_history() -> None:
    verdict = verdict_on(good())
    assert verdict.mistakes(EXPECTED) == []
    assert (verdict.published, verdict.acknowledged, verdict.dead_lettered) == (3, 2, 1)
    assert verdict.redelivered == 0


def test_nothing_at_all_is_not_good() -> None:
    assert "published is 0, not 3" in verdict_on([]).mistakes(EXPECTED)


def test_not_published() -> None:
    assert "published is 2, not 3" in verdict_on(without(good(), 2, Published)).mistakes(EXPECTED)


def test_a_flight_that_nobody_handled_is_lost() -> None:
    lines = without(without(good(), 3, Started), 3, Ended)
    verdict = verdict_on(lines)
    assert verdict.lost == 1
    assert "lost: flight 3, stored as 103" in verdict.mistakes(EXPECTED)


def test_a_rejected_flight_that_no_dead_letter_shows_is_lost() -> None:
    verdict = verdict_on(without(good(), 2, Dead))
    assert (verdict.lost, verdict.dead_lettered) == (1, 0)
    assert verdict.mistakes(EXPECTED)


def test_a_handling_that_was_killed_acknowledges_nothing() -> None:
    verdict = verdict_on([*without(good(), 3, Ended), killed("p", 55)])
    assert (verdict.lost, verdict.acknowledged, verdict.worker_kills) == (1, 1, 1)


def test_interrupted_is_not_acknowledged() -> None:
    lines = [*without(good(), 3, Ended), end("p", 3, 60, "interrupted")]
    verdict = verdict_on(lines)
    assert (verdict.lost, verdict.acknowledged) == (1, 1)


def test_a_later_flight_of_the_aircraft_came_first() -> None:
    lines = [receipt(1, "A", 1), receipt(2, "A", 2)]
    lines += [start("p", 2, "A", 10), end("p", 2, 20), start("p", 1, "A", 30), end("p", 1, 40)]
    verdict = verdict_on(lines)
    assert verdict.order_violations == 1
    assert verdict.overlaps == 0
    assert "order: flight 2 of key 'A' was handled before flight 1 was settled" in (
        verdict.examples
    )


def test_a_later_flight_began_before_the_earlier_one_was_settled() -> None:
    lines = [receipt(1, "A", 1), receipt(2, "A", 2)]
    lines += [start("p", 1, "A", 10), start("q", 2, "A", 15, shard=1)]
    lines += [end("p", 1, 20), end("q", 2, 25)]
    assert verdict_on(lines).order_violations == 1


def test_a_later_flight_while_the_earlier_one_waits_for_its_redelivery() -> None:
    lines = [receipt(1, "A", 1), receipt(2, "A", 2)]
    lines += [start("p", 1, "A", 10), killed("p", 12)]
    lines += [start("q", 2, "A", 15), end("q", 2, 20)]
    lines += [start("q", 1, "A", 30), end("q", 1, 40)]
    verdict = verdict_on(lines)
    assert (verdict.order_violations, verdict.overlaps, verdict.lost) == (1, 0, 0)


def test_one_early_flight_is_one_violation_however_often_it_is_handled() -> None:
    lines = [receipt(1, "A", 1), receipt(2, "A", 2), receipt(3, "A", 3)]
    lines += [start("p", 2, "A", 10), end("p", 2, 11), start("p", 2, "A", 12), end("p", 2, 13)]
    lines += [start("p", 1, "A", 20), end("p", 1, 21), start("p", 3, "A", 30), end("p", 3, 31)]
    assert verdict_on(lines).order_violations == 1


def test_other_keys_may_overtake() -> None:
    lines = [receipt(1, "A", 1), receipt(2, "B", 2)]
    lines += [start("p", 2, "B", 10), end("p", 2, 20), start("p", 1, "A", 30), end("p", 1, 40)]
    assert verdict_on(lines).order_violations == 0


def test_the_empty_key_is_a_key() -> None:
    lines = [receipt(1, "", 1), receipt(2, "", 2)]
    lines += [start("p", 2, "", 10), end("p", 2, 20), start("p", 1, "", 30), end("p", 1, 40)]
    assert verdict_on(lines).order_violations == 1


def test_a_settled_flight_that_comes_again_after_a_later_one_is_no_violation() -> None:
    lines = [*good(), start("q", 1, "A", 70), end("q", 1, 80)]
    verdict = verdict_on(lines)
    assert verdict.mistakes(EXPECTED) == []
    assert verdict.redelivered == 1


def test_two_processes_at_once_in_one_shard() -> None:
    lines = without(good(), 2, Started)
    lines.append(start("q", 2, "B", 15))
    verdict = verdict_on(lines)
    assert verdict.overlaps == 1
    assert "in flight: flight 2 began on shard 0 while flight 1 was running" in verdict.examples


def test_other_shards_may_run_at_once() -> None:
    lines = without(good(), 2, Started)
    lines.append(start("q", 2, "B", 15, shard=1))
    assert verdict_on(lines).mistakes(EXPECTED) == []


def test_the_same_message_twice_at_once() -> None:
    lines = [*good(), start("q", 3, "A", 55), end("q", 3, 58)]
    verdict = verdict_on(lines)
    assert (verdict.overlaps, verdict.redelivered) == (1, 1)


def test_a_long_handling_overlaps_with_every_one_inside_it() -> None:
    lines = [receipt(n, str(n), n) for n in (1, 2, 3)]
    lines += [start("p", 1, "1", 10), end("p", 1, 100)]
    lines += [start("q", 2, "2", 20), end("q", 2, 30), start("q", 3, "3", 40), end("q", 3, 50)]
    assert verdict_on(lines).overlaps == 2


@pytest.mark.parametrize(("dies_at", "overlaps"), [(69, 0), (71, 1)])
def test_a_killed_handler_runs_until_its_process_is_dead(dies_at: int, overlaps: int) -> None:
    lines = [*without(good(), 3, Ended), killed("p", dies_at)]
    lines += [start("q", 3, "A", 70), end("q", 3, 80)]
    verdict = verdict_on(lines)
    assert verdict.overlaps == overlaps
    assert (verdict.lost, verdict.redelivered) == (0, 1)


def test_a_kill_does_not_end_the_handlers_of_others() -> None:
    lines = [*without(good(), 3, Ended), killed("q", 65), start("q2", 3, "A", 70), end("q2", 3, 80)]
    assert verdict_on(lines).overlaps == 1


def test_a_handler_that_never_ended_in_a_living_process_is_still_in_flight() -> None:
    lines = [*without(good(), 1, Ended)]
    verdict = verdict_on(lines)
    assert verdict.overlaps == 2
    assert verdict.order_violations == 1


def test_acknowledged_and_dead() -> None:
    verdict = verdict_on([*good(), dead(1, 90)])
    assert verdict.acknowledged_and_dead == 1
    assert "acknowledged and dead-lettered is 1, not 0" in verdict.mistakes(EXPECTED)


def test_handled_without_a_receipt() -> None:
    lines = [*good(), start("p", 1, "A", 70, sequence=999)]
    lines.append(("p", Ended(row=1, sequence=999, outcome="ack", at=80)))
    verdict = verdict_on(lines)
    assert verdict.without_receipt == 1
    assert verdict.mistakes(EXPECTED)


def test_stored_twice() -> None:
    verdict = verdict_on([*good(), receipt(1, "A", 5, sequence=101), receipt(1, "A", 6, 200)])
    assert verdict.stored_twice == 1
    assert "published is 4, not 3" in verdict.mistakes(EXPECTED)


def test_kills_are_counted_by_kind() -> None:
    verdict = verdict_on([*good(), killed("server", 5), killed("server", 6), killed("r", 7)])
    assert (verdict.server_kills, verdict.worker_kills) == (2, 1)
