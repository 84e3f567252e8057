"""What the machines draw, as stories: a process is hit at the worst moment.

Each of them is what notices one of the planted bugs (`properties/planted/`), said beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shove_actors import SequenceFailure
from shove_actors.backends import margins
from shove_actors.backends.memory._durable import Durable
from shove_actors.testing import (
    Crash,
    Disconnect,
    Fault,
    FaultPlan,
    HistoryViolation,
    LateAck,
    Move,
    RestartServer,
    Simulation,
    Stall,
    on,
)

from .test_simulation import Note, simulation, topic

SHARDS = [SequenceFailure.SKIP, SequenceFailure.FAIL_ALL]


def started(sim: Simulation[Any]) -> list[tuple[str, int]]:
    return [(e.process, e.attempt) for e in sim.history if e.kind == "started"]


def hit_in_its_handler(
    move: Move,
    fault: Callable[[str], Fault],
    policy: SequenceFailure | None = SequenceFailure.SKIP,
    *,
    count: int = 1,
) -> Simulation[Note]:
    """At an age of two seconds, with another process to go on."""
    options = {} if policy is not None else {"consumers": 1, "prefetch": 20}
    shape = {"policy": policy} if policy is None else {"policy": policy, "shards": 1}
    with Simulation(topic(**shape), make=Note, options=options) as sim:
        first = sim.start_process()
        sim.advance(0.97)  # the keeper's ticks do not fall on the end of the lease
        sim.publish(count, script=(move,))
        assert sim.busy == [first]
        sim.start_process()
        sim.advance(2.0)
        sim.fault(fault(first))
        sim.advance(12.0)
        sim.finish()
    return sim


@pytest.mark.parametrize("move", ["hang", "linger", "long"])
@pytest.mark.parametrize("policy", SHARDS)
def test_the_handler_of_a_silent_process_has_ended_before_the_next_begins(
    move: Move, policy: SequenceFailure
) -> None:
    """`lease-margin-zero`, `lost-lease-does-not-cancel`."""
    sim = hit_in_its_handler(move, lambda name: Stall(name, 20.0), policy)
    [first, second, *_] = [e for e in sim.history if e.kind in ("started", "ended")][1:3]
    assert first.kind == "ended"
    assert second.process == "worker-2"
    assert second.time > first.time


@pytest.mark.parametrize("policy", [None, *SHARDS])
def test_what_was_silent_hands_nothing_back_under_its_next_owner(
    policy: SequenceFailure | None,
) -> None:
    """`stale-settle`: what it sent at the end of its lease arrives while the next one is at it."""
    shape = {"policy": policy} if policy is None else {"policy": policy, "shards": 1}
    with Simulation(topic(**shape), make=Note) as sim:
        first = sim.start_process()
        sim.advance(0.97)
        sim.publish(1, script=("hang", "hang"))
        sim.start_process()
        sim.start_process()
        sim.fault(Stall(first, 11.0))
        sim.advance(15.0)
        begun = [e for e in sim.history if e.kind == "started"]
        assert len(begun) == 2
        sim.finish()


@pytest.mark.parametrize("fault", [Disconnect, Stall])
def test_what_waits_as_its_lease_is_lost_is_not_begun(fault: Callable[..., Fault]) -> None:
    """`starts-what-is-lost`."""
    sim = hit_in_its_handler("hang", lambda name: fault(name, 20.0), None, count=4)
    begun = [e for e in sim.history if e.kind == "started" and e.time < 13.0]
    assert [e.process for e in begun].count("worker-1") == 1


@pytest.mark.parametrize("policy", SHARDS)
@pytest.mark.parametrize("arrives", [False, True])
def test_an_attempt_is_noted_before_its_message_is_handed_back(
    policy: SequenceFailure, arrives: bool
) -> None:
    """`failure-noted-after-the-nak`: the process is killed as it hands it back."""
    with simulation(FaultPlan(), policy=policy, shards=1) as sim:
        sim.start_process()
        sim.start_process()
        sim.fault(Crash(after=arrives), event="nak")
        sim.publish(1, script=("retry",))
        sim.advance(12.0)
        sim.finish()
        assert [attempt for _, attempt in started(sim)] == [0, 1]
        [crash] = [h.step for h in sim.plan.happened]
        assert crash == on("nak", 1, Crash("worker-1", after=arrives))


def message_that_kills(*faults: Fault) -> Simulation[Note]:
    with simulation(shards=1) as sim:
        sim.publish(1, script=("die",) * 6)
        for number in range(7):
            while len(sim.alive) < 2:
                sim.start_process()
            if number == 2:
                for fault in faults:
                    sim.fault(fault)
            sim.advance(11.0)
        sim.finish()
        assert {e.detail for e in sim.history if e.kind == "dead"} == {"crashed"}
    return sim


def test_a_message_that_kills_is_given_up() -> None:
    """`suspect-note-not-written`: once per delivery of its budget, and once under suspicion."""
    assert len(started(message_that_kills())) == 2 + 2


def test_a_restart_of_the_server_does_not_spare_it() -> None:
    assert len(started(message_that_kills(RestartServer()))) == 2 + 2


@pytest.mark.parametrize("down_s", [0.0, 0.05])
def test_a_killed_server_gives_nothing_away_that_somebody_unwinds_from(down_s: float) -> None:
    """It has forgotten the last delivery, and the handler that had it takes a moment to end."""

    def run() -> None:
        with simulation(shards=1) as sim:
            for _ in range(3):
                sim.start_process()
            sim.publish(2)
            sim.publish(4, script=("linger",))
            sim.advance(0.05)
            [first] = sim.busy
            sim.fault(RestartServer(down_s=down_s))
            sim.advance(1.0)
            sim.finish()
            begun = [e for e in sim.history if e.kind == "started" and e.time > 0.05]
            assert first not in (begun[0].process,) or begun[0].time > 0.05 + down_s

    run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(margins, "RESTART_GRACE_S", 0.0)
        with pytest.raises(HistoryViolation, match=r"\(I\)"):
            run()


def test_a_process_that_starts_after_a_kill_lets_others_unwind_first() -> None:
    """It was connected to no server before, and the durable tells what it has to know."""

    def run() -> None:
        with simulation(shards=1) as sim:
            first = sim.start_process()
            sim.publish(2)
            sim.publish(4, script=("linger",))
            sim.advance(0.05)
            assert sim.busy == [first]
            sim.fault(RestartServer(down_s=0.0))
            sim.start_process()
            sim.advance(1.0)
            sim.finish()

    run()
    with pytest.MonkeyPatch.context() as patch:
        never = property(lambda _: False, lambda _, value: None)
        patch.setattr(Durable, "silent", never, raising=False)
        with pytest.raises(HistoryViolation, match=r"\(I\)"):
            run()


def test_dead_letters_are_replayed_in_their_order() -> None:
    """`replay-in-reverse`."""
    shape = topic(SequenceFailure.FAIL_ALL, 1)
    with Simulation(shape, make=Note, replays=True) as sim:
        sim.start_process()
        sim.publish(3, script=("reject",), every=3)
        sim.advance(5.0)
        sim.release("k0")
        sim.advance(5.0)
        sim.finish()
        replayed = [e.id for e in sim.history if e.kind == "started" and e.detail == "replay"]
        assert replayed == ["m0", "m1", "m2"]
        assert sim.poisoned == []


def test_what_a_dead_process_settles_late_has_no_effect() -> None:
    """Its task, which does not know it, acknowledges in the same step."""
    with simulation(shards=2) as sim:
        sim.start_process()
        sim.publish(1, script=("wait",))
        sim.advance(0.05)
        [first] = sim.busy
        sim.publish(8, keys=8, script=("die",))
        sim.fault(LateAck(by_s=0.05))
        sim.advance(2.0)
        assert first not in sim.alive
        sim.start_process()
        sim.finish()
