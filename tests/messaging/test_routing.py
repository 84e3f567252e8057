"""route and before_handling: the table, line by line, and its boundaries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shove_actors.messaging import (
    Ack,
    Dead,
    DeathReason,
    Defer,
    DeliveryFacts,
    Discard,
    Hop,
    Limits,
    Nak,
    Outcome,
    Reject,
    Retry,
    SequenceFailure,
    Topology,
    TopologyBuilder,
    Unaudited,
    before_handling,
    effective_retry_count,
    give_up,
    route,
)

HOLDS = TopologyBuilder("q").hold_queue(5).hold_queue(30).dlq().build()
HOLDS_NO_DLQ = TopologyBuilder("q").hold_queue(5).hold_queue(30).build()
BARE = TopologyBuilder("q").dlq().build()
BARE_NO_DLQ = TopologyBuilder("q").build()
LANES = (
    TopologyBuilder("q").sequenced(SequenceFailure.SKIP).hold_queue(2).hold_queue(9).dlq().build()
)
LANES_NO_HOLD = (
    TopologyBuilder("q").sequenced(SequenceFailure.SKIP).dlq().allow_message_loss().build()
)
LANES_NO_DLQ = TopologyBuilder("q").sequenced(SequenceFailure.SKIP).allow_message_loss().build()

KINDS = ["holds", "bare", "lanes", "lanes without holds"]
LIMITS = Limits(max_retries=3)
EXHAUSTED = DeathReason.MAX_RETRIES_EXCEEDED


def facts(**kwargs: Any) -> DeliveryFacts:
    return DeliveryFacts(message_id="m", origin="7.1", **kwargs)


def hop(index: int, msg_id: str, retry: int, defer: int, due: float | None = None) -> Hop:
    return Hop(
        hold=HOLDS.holds[index],
        msg_id=msg_id,
        retry_count=retry,
        defer_count=defer,
        due_after_s=due,
    )


ROWS: list[tuple[str, Outcome, DeliveryFacts, Topology, object]] = [
    # acknowledged: whatever the counts say
    ("ack", Outcome.ACK, facts(), HOLDS, Ack()),
    ("ack beyond the budget", Outcome.ACK, facts(retry_count=99, num_delivered=9), LANES, Ack()),
    # rejected: at once
    (
        "reject",
        Reject(reason="no account"),
        facts(),
        HOLDS,
        Dead(reason=DeathReason.REJECTED, cause="reject", detail="no account"),
    ),
    (
        "reject in a lane",
        Outcome.REJECT,
        facts(detail="d"),
        LANES,
        Dead(reason=DeathReason.REJECTED, cause="reject", detail="d"),
    ),
    (
        "reject without dead letters",
        Outcome.REJECT,
        facts(),
        BARE_NO_DLQ,
        Discard(reason=DeathReason.REJECTED, cause="reject"),
    ),
    # retries as hops
    ("first retry", Outcome.RETRY, facts(), HOLDS, hop(0, "m@7.1-r1", 1, 0)),
    ("second", Outcome.RETRY, facts(retry_count=1), HOLDS, hop(1, "m@7.1-r2", 2, 0)),
    ("third, last hold", Outcome.RETRY, facts(retry_count=2), HOLDS, hop(1, "m@7.1-r3", 3, 0)),
    (
        "budget used up",
        Outcome.RETRY,
        facts(retry_count=3),
        HOLDS,
        Dead(reason=EXHAUSTED, cause="retry"),
    ),
    (
        "crashes do not cost retries",
        Outcome.RETRY,
        facts(num_delivered=4),
        HOLDS,
        hop(0, "m@7.1-r1", 1, 0),
    ),
    (
        "deferrals do not cost retries",
        Outcome.RETRY,
        facts(defer_count=50),
        HOLDS,
        hop(0, "m@7.1-r1", 1, 50),
    ),
    ("own delay", Retry(after=6), facts(), HOLDS, hop(1, "m@7.1-r1", 1, 0, 6)),
    (
        "own short delay",
        Retry(after=1),
        facts(retry_count=2),
        HOLDS,
        hop(0, "m@7.1-r3", 3, 0, 1),
    ),
    (
        "own delay beyond every hold",
        Retry(after=3600),
        facts(),
        HOLDS,
        hop(1, "m@7.1-r1", 1, 0, 3600),
    ),
    (
        "own delay does not widen the budget",
        Retry(after=1, reason="busy"),
        facts(retry_count=3),
        HOLDS,
        Dead(reason=EXHAUSTED, cause="retry", detail="busy"),
    ),
    (
        "raised",
        Outcome.RETRY,
        facts(retry_count=3, cause="raised", detail="ValueError"),
        HOLDS,
        Dead(reason=EXHAUSTED, cause="raised", detail="ValueError"),
    ),
    (
        "timed out",
        Outcome.RETRY,
        facts(retry_count=3, cause="timeout"),
        HOLDS,
        Dead(reason=EXHAUSTED, cause="timeout"),
    ),
    (
        "returned nonsense",
        Outcome.RETRY,
        facts(retry_count=3, cause="invalid"),
        HOLDS_NO_DLQ,
        Discard(reason=EXHAUSTED, cause="invalid"),
    ),
    # deferrals as hops
    ("defer", Outcome.DEFER, facts(), HOLDS, hop(0, "m@7.1-d1", 0, 1)),
    (
        "defer again, retries kept",
        Outcome.DEFER,
        facts(retry_count=2, defer_count=4),
        HOLDS,
        hop(0, "m@7.1-d5", 2, 5),
    ),
    (
        "defer with the retry budget used up",
        Outcome.DEFER,
        facts(retry_count=3),
        HOLDS,
        hop(0, "m@7.1-d1", 3, 1),
    ),
    ("defer, own delay", Defer(after=10), facts(), HOLDS, hop(1, "m@7.1-d1", 0, 1, 10)),
    # no hold queues: in place
    ("nak", Outcome.RETRY, facts(), BARE, Nak(delay_s=1.0)),
    ("nak, own delay", Retry(after=60), facts(), BARE, Nak(delay_s=60)),
    ("nak counts", Outcome.RETRY, facts(num_delivered=3), BARE, Nak(delay_s=1.0)),
    (
        "nak budget used up",
        Outcome.RETRY,
        facts(num_delivered=4),
        BARE,
        Dead(reason=EXHAUSTED, cause="retry"),
    ),
    (
        "returned deliveries are free",
        Outcome.RETRY,
        facts(num_delivered=4, returned=1),
        BARE,
        Nak(delay_s=1.0),
    ),
    ("nak defer", Outcome.DEFER, facts(), BARE, Nak(delay_s=1.0, counted=False)),
    (
        "nak defer, own delay, any count",
        Defer(after=60),
        facts(num_delivered=99),
        BARE_NO_DLQ,
        Nak(delay_s=60, counted=False),
    ),
    # sequenced: in place, as long as the hold queue of that retry
    ("lane", Outcome.RETRY, facts(), LANES, Nak(delay_s=2.0)),
    ("lane, second", Outcome.RETRY, facts(num_delivered=2), LANES, Nak(delay_s=9.0)),
    ("lane, third", Outcome.RETRY, facts(num_delivered=3), LANES, Nak(delay_s=9.0)),
    (
        "lane, header counts",
        Outcome.RETRY,
        facts(retry_count=1, num_delivered=2),
        LANES,
        Nak(delay_s=9.0),
    ),
    (
        "lane budget used up",
        Outcome.RETRY,
        facts(retry_count=1, num_delivered=3),
        LANES,
        Dead(reason=EXHAUSTED, cause="retry"),
    ),
    ("lane, own delay", Retry(after=60), facts(), LANES, Nak(delay_s=60)),
    ("lane without holds", Outcome.RETRY, facts(), LANES_NO_HOLD, Nak(delay_s=1.0)),
    ("lane defer", Outcome.DEFER, facts(), LANES, Nak(delay_s=2.0, warn_defer=True)),
    ("lane defer, own delay", Defer(after=7), facts(), LANES, Nak(delay_s=7, warn_defer=True)),
    (
        "lane defer costs a retry",
        Outcome.DEFER,
        facts(num_delivered=4),
        LANES,
        Dead(reason=EXHAUSTED, cause="defer"),
    ),
    (
        "lane without dead letters",
        Outcome.RETRY,
        facts(num_delivered=4),
        LANES_NO_DLQ,
        Discard(reason=EXHAUSTED, cause="retry"),
    ),
]


@pytest.mark.parametrize(
    ("outcome", "given", "topology", "verdict"),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
def test_table(outcome: Outcome, given: DeliveryFacts, topology: Topology, verdict: object) -> None:
    assert route(outcome, given, topology, LIMITS) == verdict


@pytest.mark.parametrize("topology", [HOLDS, BARE, LANES, LANES_NO_HOLD], ids=KINDS)
@pytest.mark.parametrize("max_retries", [0, 1, 2, 10])
def test_max_retries_means_retries_after_the_first_attempt(
    topology: Topology, max_retries: int
) -> None:
    """SW-09: one definition for every kind of topology, boundaries included."""
    limits = Limits(max_retries=max_retries)
    retry_count, num_delivered, attempts = 0, 1, 0
    while True:
        now = facts(retry_count=retry_count, num_delivered=num_delivered)
        assert before_handling(now, topology, limits) is None
        attempts += 1
        assert effective_retry_count(now, topology) == attempts - 1
        verdict = route(Outcome.RETRY, now, topology, limits)
        if isinstance(verdict, Hop):
            retry_count, num_delivered = verdict.retry_count, 1
        elif isinstance(verdict, Nak):
            num_delivered += 1
        else:
            assert verdict == Dead(reason=EXHAUSTED, cause="retry")
            break
    assert attempts == max_retries + 1


@pytest.mark.parametrize("topology", [HOLDS, BARE, LANES], ids=KINDS[:3])
@pytest.mark.parametrize("max_retries", [0, 1, 2])
def test_a_message_that_ends_its_process_every_time_is_dead_in_the_end(
    topology: Topology, max_retries: int
) -> None:
    """SW-10: no outcome ever comes, only the server counts."""
    limits = Limits(max_retries=max_retries)
    for num_delivered in range(1, max_retries + 2):
        assert before_handling(facts(num_delivered=num_delivered), topology, limits) is None
    verdict = before_handling(facts(num_delivered=max_retries + 2), topology, limits)
    assert isinstance(verdict, Dead)
    assert (verdict.reason, verdict.cause) == (DeathReason.CRASHED, "crash")


def test_crashes_and_retries_share_a_budget_only_where_the_server_counts_both() -> None:
    now = facts(retry_count=3, num_delivered=2)
    assert before_handling(now, HOLDS, LIMITS) is None
    verdict = before_handling(now, BARE, LIMITS)
    assert isinstance(verdict, Dead)
    assert verdict.reason is DeathReason.CRASHED


def test_a_first_delivery_has_never_crashed_anything() -> None:
    """Also when a smaller budget was configured while the message was on its way."""
    assert before_handling(facts(retry_count=99), BARE, LIMITS) is None
    assert before_handling(facts(retry_count=99, num_delivered=3, returned=2), BARE, LIMITS) is None


def test_a_drain_costs_nothing() -> None:
    for topology in (HOLDS, BARE, LANES):
        assert before_handling(facts(num_delivered=50, returned=49), topology, LIMITS) is None


def test_max_deliveries_is_the_budget_of_one_copy() -> None:
    tight = Limits(max_retries=10, max_deliveries=2)
    for topology in (HOLDS, BARE):
        assert before_handling(facts(num_delivered=2), topology, tight) is None
        assert before_handling(facts(num_delivered=3), topology, tight) is not None
    wide = Limits(max_retries=0, max_deliveries=5)
    assert before_handling(facts(num_delivered=5), HOLDS, wide) is None
    assert before_handling(facts(num_delivered=6), HOLDS, wide) is not None


def test_a_crash_without_dead_letters_is_discarded() -> None:
    verdict = before_handling(facts(num_delivered=9), BARE_NO_DLQ, LIMITS)
    assert isinstance(verdict, Discard)
    assert verdict.reason is DeathReason.CRASHED


@pytest.mark.parametrize("reason", DeathReason)
def test_pc080_without_dead_letters_every_death_is_an_explicit_discard(
    reason: DeathReason,
) -> None:
    assert give_up(HOLDS, reason, "c", "d") == Dead(reason=reason, cause="c", detail="d")
    assert give_up(BARE_NO_DLQ, reason, "c", "d") == Discard(reason=reason, cause="c", detail="d")


def test_pc036_a_retry_of_a_sequenced_topic_never_leaves_its_place() -> None:
    """A copy would go to the tail of the lane, and later messages of the key would run first."""
    for topology in (LANES, LANES_NO_HOLD, LANES_NO_DLQ):
        for outcome in (Outcome.RETRY, Retry(after=5), Outcome.DEFER, Defer(after=5)):
            for delivered in (1, 2, 3):
                verdict = route(outcome, facts(num_delivered=delivered), topology, LIMITS)
                assert isinstance(verdict, Nak)


@pytest.mark.parametrize(
    ("topology", "verdict"),
    [
        (HOLDS, replace(hop(0, "m@7.1-d3", 3, 3), counted=False)),
        (BARE, Nak(delay_s=1.0, counted=False)),
        (LANES, Nak(delay_s=2.0, counted=False)),
        (LANES_NO_HOLD, Nak(delay_s=1.0, counted=False)),
        (HOLDS_NO_DLQ, replace(hop(0, "m@7.1-d3", 3, 3), counted=False)),
    ],
)
@pytest.mark.parametrize("cause", ["outcome", "raised", "timeout"])
def test_sw60_a_missing_audit_record_costs_nothing(
    topology: Topology, verdict: object, cause: Any
) -> None:
    """Not even at the end of every budget."""
    given = facts(retry_count=3, defer_count=2, num_delivered=99, cause=cause)
    assert route(Unaudited(), given, topology, LIMITS) == verdict


def test_an_interruption_that_a_handler_returns_is_a_retry() -> None:
    for topology in (HOLDS, BARE, LANES):
        assert route(Outcome.INTERRUPTED, facts(), topology, LIMITS) == route(
            Outcome.RETRY, facts(), topology, LIMITS
        )


def test_verdicts_and_facts_are_frozen_and_keyword_only() -> None:
    with pytest.raises(AttributeError):
        facts().retry_count = 0  # type: ignore[misc]
    with pytest.raises(TypeError):
        Nak(1.0)  # type: ignore[misc]
