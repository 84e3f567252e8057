"""Invariant: routing is total, loses nothing by itself, and every budget ends.

For all outcomes, facts, topologies and limits:

* there is a verdict, and it fits the topology (a hop only to one of its holds, no hop in a lane,
  Dead exactly where there is a dead-letter queue);
* a message is given up only for REJECT or a used-up budget;
* the ids of a hop are a function of the stored copy and the count;
* whatever handlers answer, a message that is never acknowledged nor deferred reaches its end within
  `max_retries + 1` attempts, in the same number on every kind of topology.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
    route,
)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    builder = TopologyBuilder("q").allow_message_loss()
    if draw(st.booleans()):
        builder = builder.sequenced(SequenceFailure.SKIP)
    for delay_ms in sorted(draw(st.sets(st.integers(1, 100_000), max_size=3))):
        builder = builder.hold_queue(delay_ms / 1000)
    if draw(st.booleans()):
        builder = builder.dlq()
    return builder.build()


_DELAYS = st.none() | st.floats(0.001, 1e6)
OUTCOMES = st.one_of(
    st.just(Outcome.ACK),
    st.builds(Retry, after=_DELAYS, reason=st.none() | st.text(max_size=5)),
    st.builds(Reject, reason=st.none() | st.text(max_size=5)),
    st.builds(Defer, after=_DELAYS),
    st.just(Unaudited()),
)
FACTS = st.builds(
    DeliveryFacts,
    message_id=st.text(max_size=5),
    origin=st.just("7.1"),
    retry_count=st.integers(0, 12),
    defer_count=st.integers(0, 12),
    num_delivered=st.integers(1, 15),
    returned=st.integers(0, 15),
    cause=st.sampled_from(["outcome", "raised", "timeout", "invalid"]),
)
LIMITS = st.builds(
    Limits,
    max_retries=st.integers(0, 11),
    max_deliveries=st.none() | st.integers(1, 12),
    default_delay_s=st.floats(0.001, 100),
)


@given(outcome=OUTCOMES, facts=FACTS, topology=topologies(), limits=LIMITS)
def test_every_outcome_has_a_verdict_that_fits(
    outcome: Outcome, facts: DeliveryFacts, topology: Topology, limits: Limits
) -> None:
    verdict = route(outcome, facts, topology, limits)
    assert route(outcome, facts, topology, limits) == verdict
    assert isinstance(verdict, Ack) == (outcome == Outcome.ACK)
    if isinstance(verdict, Hop):
        assert not topology.sequenced
        assert verdict.hold in topology.holds
        retried = isinstance(outcome, Retry)
        assert verdict.retry_count == facts.retry_count + retried
        assert verdict.defer_count == facts.defer_count + (not retried)
        kind = f"r{verdict.retry_count}" if retried else f"d{verdict.defer_count}"
        assert verdict.msg_id == f"{facts.message_id}@7.1-{kind}"
    elif isinstance(verdict, Nak):
        assert topology.sequenced or not topology.holds
        assert verdict.delay_s > 0
        assert verdict.warn_defer == (topology.sequenced and isinstance(outcome, Defer))
        assert verdict.counted == (
            isinstance(outcome, Retry) or (topology.sequenced and isinstance(outcome, Defer))
        )
    elif isinstance(verdict, (Dead, Discard)):
        assert isinstance(verdict, Dead) == (topology.dlq is not None)


@given(outcome=OUTCOMES, facts=FACTS, topology=topologies(), limits=LIMITS)
def test_a_message_is_given_up_only_for_reject_or_a_used_up_budget(
    outcome: Outcome, facts: DeliveryFacts, topology: Topology, limits: Limits
) -> None:
    verdict = route(outcome, facts, topology, limits)
    given_up = isinstance(verdict, (Dead, Discard))
    if isinstance(outcome, Reject):
        assert given_up
    elif isinstance(outcome, Unaudited):
        assert not given_up  # SW-60: finished work never dies of a missing audit record
    elif given_up:
        assert isinstance(verdict, (Dead, Discard))
        assert verdict.reason is DeathReason.MAX_RETRIES_EXCEEDED
        assert effective_retry_count(facts, topology) >= limits.max_retries
        assert isinstance(outcome, Retry) or topology.sequenced
    elif isinstance(outcome, Retry):
        assert effective_retry_count(facts, topology) < limits.max_retries


@given(facts=FACTS, topology=topologies(), limits=LIMITS)
def test_before_handling_gives_up_exactly_beyond_the_redelivery_budget(
    facts: DeliveryFacts, topology: Topology, limits: Limits
) -> None:
    verdict = before_handling(facts, topology, limits)
    again = max(0, facts.num_delivered - 1 - facts.returned)
    if again == 0:
        assert verdict is None
        return
    by_nak = topology.sequenced or not topology.holds
    used = again + (facts.retry_count if by_nak else 0)
    budget = limits.max_retries if limits.max_deliveries is None else limits.max_deliveries - 1
    assert (verdict is not None) == (used > budget)
    if verdict is not None:
        assert isinstance(verdict, (Dead, Discard))
        assert verdict.reason is DeathReason.CRASHED
        assert isinstance(verdict, Dead) == (topology.dlq is not None)


@given(
    topology=topologies(),
    max_retries=st.integers(0, 6),
    delays=st.lists(_DELAYS, min_size=8, max_size=8),
    drains=st.lists(st.integers(0, 2), min_size=8, max_size=8),
)
def test_every_life_without_an_ack_ends_after_the_same_number_of_attempts(
    topology: Topology, max_retries: int, delays: list[float | None], drains: list[int]
) -> None:
    """Deliveries handed back by a drain in between cost nothing, wherever they happen."""
    limits = Limits(max_retries=max_retries)
    retry_count, num_delivered, returned = 0, 1, 0
    for attempt, (delay, drained) in enumerate(zip(delays, drains, strict=True), start=1):
        num_delivered += drained
        returned += drained
        facts = DeliveryFacts(
            message_id="m",
            origin="7.1",
            retry_count=retry_count,
            num_delivered=num_delivered,
            returned=returned,
        )
        assert before_handling(facts, topology, limits) is None
        assert effective_retry_count(facts, topology) == attempt - 1
        verdict = route(Retry(after=delay), facts, topology, limits)
        if isinstance(verdict, (Dead, Discard)):
            assert attempt == max_retries + 1
            return
        if isinstance(verdict, Hop):
            retry_count, num_delivered, returned = verdict.retry_count, 1, 0
        else:
            num_delivered += 1
    raise AssertionError("the message never came to an end")
