"""Found by the machines: what a message must not be charged with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shove_actors import SequenceFailure
from shove_actors.testing import Crash, DeleteConsumer, FaultPlan, LoseAck, on

from .test_simulation import simulation


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
