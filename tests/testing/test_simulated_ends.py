"""Found by the machines: what a message must not be charged with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from shove_actors import MessageMetadata, Outcome, Retry, SequenceFailure
from shove_actors.testing import (
    Crash,
    DeleteConsumer,
    FaultPlan,
    LoseAck,
    Rates,
    Simulation,
    at,
    on,
)
from shove_actors.testing._foreign import ALL_FOREIGN, Foreign
from shove_actors.testing._simulation import PUBLISHER

from .test_simulation import Note, simulation, topic


@pytest.mark.parametrize("policy", [None, SequenceFailure.SKIP, SequenceFailure.FAIL_ALL])
def test_a_stop_in_the_instant_in_which_a_message_arrives_costs_it_nothing(
    policy: SequenceFailure | None,
) -> None:
    """The consumer has been woken up for it, and has not had its turn."""
    with simulation(policy=policy, shards=1) as sim:
        first = sim.start_process()
        [(lane, _)] = sim.processes[first].lanes()
        take: Callable[..., None] = lane._take  # type: ignore[attr-defined]

        def stopped_meanwhile(*args: Any) -> None:
            take(*args)
            for registration in sim.processes[first].group._registrations:  # type: ignore[union-attr]
                for worker in registration.workers:
                    worker.stop()

        lane._take = stopped_meanwhile  # type: ignore[attr-defined]
        sim.publish(1, script=("wait",))
        assert not [e for e in sim.history if e.kind == "started"]
        sim.stop_process(first)
        sim.finish()
        attempts = [(e.process, e.attempt) for e in sim.history if e.kind == "started"]
        assert attempts == [("worker-2", 0)]


def test_a_suspect_whose_acknowledgement_is_lost_has_killed_nobody() -> None:
    """It was delivered more often than its budget, so that its next attempt is noted. It ends, and
    the server does not learn it."""
    plan = FaultPlan(*(on("deliver", n, Crash()) for n in (1, 2, 3)), on("ack", 1, LoseAck()))
    with simulation(plan, policy=None) as sim:
        sim.start_process()
        sim.publish(1)
        for _ in range(3):
            sim.start_process()
            sim.advance(10.0)
        sim.advance(15.0)
        sim.finish()
        kinds = [e.kind for e in sim.history if e.id]
        assert kinds.count("suspected") >= 2
        assert "dead" not in kinds
        assert kinds.count("started") == 2


def test_a_later_message_of_a_poisoned_key_has_had_no_retries() -> None:
    with simulation(policy=SequenceFailure.FAIL_ALL, shards=1) as sim:
        sim.start_process()
        sim.publish(2, script=("retry", "reject"), every=2)
        sim.advance(5.0)
        sim.finish()
        letters = [m.header_block for m in sim.server.streams["q-dlq"].messages.values()]
        first, later = letters
        assert b"Shove-Retry-Count: 1" in first
        assert b"sequence_failed" in later
        assert b"Shove-Retry-Count: 1" not in later


def test_who_starts_as_a_durable_is_deleted_waits_for_its_first_message_too() -> None:
    """Nothing has left the stream yet, so that it does not look as if somebody had read it."""
    with simulation(shards=1) as sim:
        sim.start_process()
        sim.publish(1, script=("linger", "ack"))
        sim.advance(0.05)
        sim.fault(DeleteConsumer("q", "q-shard-0"))
        sim.start_process()
        sim.finish()
        runs = [e.process for e in sim.history if e.kind == "started"]
        assert len(runs) == 2


def test_what_is_put_off_comes_after_the_delay_of_the_first_hold_queue() -> None:
    with simulation(policy=None) as sim:
        sim.start_process()
        sim.publish(1, script=("defer", "defer"))
        sim.finish()
        begun = [e.time for e in sim.history if e.kind == "started"]
        assert len(begun) == 3
        assert all(1.0 <= later - before < 2.0 for before, later in pairwise(begun))


def test_a_handler_that_always_puts_off_is_told() -> None:
    """It would go on for ever: DEFER has no budget."""

    async def later(note: Note) -> Outcome:
        return Outcome.DEFER

    with Simulation(topic(None), make=Note, handler=later) as sim:
        sim.publish(1)
        with pytest.raises(
            AssertionError, match=r"message m0 never comes to an end: .* with defer"
        ):
            sim.finish()


@pytest.mark.parametrize("policy", [None, SequenceFailure.SKIP])
def test_a_long_delay_is_waited_for(policy: SequenceFailure | None) -> None:
    """Longer than anything may take otherwise, in place or in a hold queue."""

    async def later(note: Note, metadata: MessageMetadata) -> Outcome:
        return Outcome.ACK if metadata.retry_count else Retry(after=3000.0)

    with Simulation(topic(policy), make=Note, handler=later) as sim:
        sim.publish(2)
        sim.finish()
        assert sim.trio.now >= 3000.0
        assert sorted(e.attempt for e in sim.history if e.kind == "started") == [0, 0, 1, 1]


def test_a_handler_whose_time_is_up_and_that_goes_on_is_told() -> None:
    with simulation(policy=None) as sim:
        sim.start_process()
        [registration] = sim.processes["worker-1"].group._registrations  # type: ignore[union-attr]
        registration.clock.timeout_s = None
        sim.publish(1, script=("hang",))
        with pytest.raises(AssertionError, match=r"m0 .*21(\.2)? s.* is 20 s"):
            sim.advance(30.0)


@pytest.mark.parametrize(
    "plan",
    [
        FaultPlan(at(0.5, Crash())),
        FaultPlan(on("publish", 3, Crash())),
        FaultPlan.seeded(1, Rates.only(crash=1.0)),
    ],
    ids=["moment", "event", "drawn"],
)
def test_the_publisher_is_never_killed(plan: FaultPlan) -> None:
    """A crash that names nobody is of somebody else; an event's, of the next one's."""
    with Simulation(topic(None), make=Note, plan=plan, revive=True) as sim:
        sim.start_process()
        sim.publish(5)
        sim.advance(1.0)
        sim.publish(1, script=("retry",))
        sim.advance(10.0)
        sim.finish()
        killed = {e.process for e in sim.history if e.kind == "crashed"}
    assert killed
    assert PUBLISHER not in killed


def test_a_fault_in_between_does_not_end_what_is_drawn() -> None:
    plan = FaultPlan.seeded(1, Rates.only(lose_ack=0.2))
    with Simulation(topic(), make=Note, plan=plan) as sim:
        sim.start_process()
        sim.publish(40, keys=10)
        sim.fault(LoseAck())
        sim.deliver(40)
        assert len(plan.happened) > 3
        sim.finish()


@pytest.mark.parametrize("policy", [None, SequenceFailure.SKIP, SequenceFailure.FAIL_ALL])
@pytest.mark.parametrize("kind", ALL_FOREIGN)
def test_what_nobody_of_the_topic_would_send(policy: SequenceFailure | None, kind: Foreign) -> None:
    options = {"max_message_size": 2000}
    with Simulation(topic(policy), make=Note, options=options, replays=True) as sim:
        sim.start_process()
        assert sim.foreign_kinds == ALL_FOREIGN
        sim.publish_foreign(kind)
        sim.publish(2)
        sim.advance(1.0)
        poisoned = ["k0"] if policy is SequenceFailure.FAIL_ALL else []
        assert sim.poisoned == poisoned
        for key in poisoned:
            sim.release(key)  # the replay stops at it
        sim.advance(5.0)
        assert sim.poisoned == poisoned
        sim.finish()
        letters = {e.id: e.detail for e in sim.history if e.kind == "dead"}
        assert letters.pop("foreign-1") == kind
        assert letters == ({"m0": "sequence_failed", "m1": "sequence_failed"} if poisoned else {})
        assert not [e for e in sim.history if e.kind == "started" and e.id == "foreign-1"]
        assert f"sim.publish_foreign('{kind}')" in sim.program()
