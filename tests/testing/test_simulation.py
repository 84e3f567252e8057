"""Simulations: what they show, that they find what is broken, and that they repeat."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from shove_actors import (
    MessageMetadata,
    Outcome,
    Retry,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
)
from shove_actors.backends import margins
from shove_actors.backends.memory import _fence, _lane
from shove_actors.testing import (
    Disconnect,
    FaultPlan,
    HistoryViolation,
    LateAck,
    Move,
    Rates,
    RestartServer,
    Simulation,
    Stall,
    at,
)


class Note(msgspec.Struct):
    number: int
    key: str


def _key(note: Note) -> str:
    return note.key


def topic(policy: SequenceFailure | None = SequenceFailure.SKIP, shards: int = 2) -> Topic[Note]:
    builder = TopologyBuilder("q")
    if policy is None:
        return Topic(Note, builder.hold_queue(1).dlq().build())
    builder = builder.sequenced(policy).routing_shards(shards)
    return SequencedTopic(Note, key=_key, topology=builder.hold_queue(1).dlq().build())


def simulation(plan: FaultPlan | None = None, **options: Any) -> Simulation[Note]:
    return Simulation(topic(**options), make=Note, plan=plan)


MOVES: tuple[Move, ...] = ("retry", "raise", "wait", "long", "hang", "linger", "die", "reject")


@pytest.mark.parametrize("policy", [None, SequenceFailure.SKIP, SequenceFailure.FAIL_ALL])
@pytest.mark.parametrize("move", MOVES)
def test_every_behaviour_of_a_handler(policy: SequenceFailure | None, move: Move) -> None:
    with simulation(policy=policy) as sim:
        for _ in range(2):
            sim.start_process()
        sim.publish(20, keys=4, script=(move, move), every=5)
        sim.deliver(10)
        if move == "die":
            sim.start_process()
        sim.finish()
        assert sim.checker.started >= 20 - 4 * (policy is SequenceFailure.FAIL_ALL) * 5


def test_no_time_passes_for_deliveries_that_cannot_come() -> None:
    with simulation(shards=1) as sim:
        sim.publish(3)
        assert sim.deliver(3) == 0  # there is nobody
        assert sim.trio.now == 0.0
        sim.start_process()
        assert sim.deliver(5) + sim.checker.started >= 3
        assert sim.trio.now < 60.0
        before = sim.trio.now
        assert sim.deliver(1) == 0  # there is nothing
        assert sim.trio.now == before
        sim.finish()


def test_two_hops_of_the_same_instant() -> None:
    """From two hold queues, where both were the first message: no copy of each other."""
    waits = Topic(Note, TopologyBuilder("q").hold_queue(5).hold_queue(30).dlq().build())

    async def handle(note: Note, metadata: MessageMetadata, context: object) -> Outcome:
        if metadata.retry_count:
            return Outcome.ACK
        return Outcome.RETRY if note.number else Retry(after=20)

    with Simulation(waits, make=Note, handler=handle) as sim:
        sim.start_process()
        sim.publish(2)
        sim.finish()


@pytest.mark.parametrize("sequenced", [False, True])
def test_a_topic_without_dead_letters(sequenced: bool) -> None:
    builder = TopologyBuilder("q")
    if sequenced:
        builder = builder.sequenced(SequenceFailure.FAIL_ALL).routing_shards(1)
        lossy = builder.allow_message_loss().build()
        loses: Topic[Note] = SequencedTopic(Note, key=_key, topology=lossy)
    else:
        loses = Topic(Note, builder.hold_queue(1).build())
    with Simulation(loses, make=Note, replays=True) as sim:
        sim.start_process()
        sim.publish_foreign("undecodable", key="k9")
        sim.publish(1, script=("reject",))
        sim.advance(1.0)
        sim.publish(1)
        sim.advance(1.0)
        if sequenced:
            assert sorted(sim.poisoned) == ["k0", "k9"]
            sim.release("k0")
            sim.advance(1.0)
        sim.publish(1)
        sim.finish()


def test_a_process_that_nobody_kills_goes_on() -> None:
    """Without a time-out nothing else would end the handler."""
    with Simulation(topic(), make=Note, options={"handler_timeout": None}) as sim:
        sim.start_process()
        sim.publish(4, script=("die",) * 3)
        sim.advance(100.0)
        sim.finish()


def test_a_poisoned_key_is_released() -> None:
    with simulation(policy=SequenceFailure.FAIL_ALL) as sim:
        sim.start_process()
        sim.publish(1, script=("reject",))
        sim.advance(1.0)
        assert sim.poisoned == ["k0"]
        sim.publish(1)
        sim.advance(1.0)
        assert sim.checker.started == 1
        sim.release("k0")
        sim.advance(1.0)
        sim.publish(1)
        sim.advance(1.0)
        assert sim.checker.started == 2
        sim.finish()


# No @given: within one example of Hypothesis, Trio's order of tasks goes on from run to run.
@pytest.mark.parametrize("seed", [1, 224, 900])
def test_a_simulation_repeats(seed: int) -> None:
    """Twice in one process, the very same history (PC-107, PC-108)."""
    histories = []
    for _ in range(2):
        random.seed(seed)
        plan = FaultPlan.seeded(seed, Rates(crash=0.01), spare=["publisher"])
        with simulation(plan, shards=1) as sim:
            sim.start_process()
            sim.publish(60, keys=3, script=("retry",), every=7)
            sim.deliver(30)
            sim.start_process()
            sim.advance(30.0)
            sim.finish()
            histories.append([str(event) for event in sim.history])
    assert histories[0] == histories[1]


def test_a_simulation_of_keyed_lanes_repeats() -> None:
    """Who has which shard depends on names, when several come at the same moment."""
    builder = (
        TopologyBuilder("q")
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(4)
        .keyed(max_in_flight=8)
    )
    keyed = SequencedTopic(Note, key=_key, topology=builder.hold_queue(1).dlq().build())
    histories = []
    for _ in range(4):
        random.seed(1)
        with Simulation(keyed, make=Note) as sim:
            for _ in range(3):
                sim.start_process()
            sim.publish(60, keys=12, script=("retry",), every=7)
            sim.advance(60.0)
            sim.finish()
            histories.append([str(event) for event in sim.history])
    assert all(history == histories[0] for history in histories)


def restarted_under_a_handler(ack_wait: float) -> None:
    """A handler that unwinds slowly, cut off from a server that is restarted and so gives its
    message away up to a second early."""
    options = {"ack_wait": ack_wait, "handler_timeout": 9.0}
    with Simulation(topic(shards=1), make=Note, options=options) as sim:
        sim.start_process()
        sim.advance(0.97)
        sim.publish(1, script=("linger", "ack"))
        [first] = sim.alive
        sim.start_process()
        sim.advance(1.02)  # older than what the fence gives up
        sim.fault(Disconnect(first, for_s=20.0))
        sim.fault(RestartServer())
        sim.advance(ack_wait)
        sim.finish()


@pytest.mark.parametrize("ack_wait", [1.0, 1.5, 2.0, 3.0])
def test_a_restarted_server_ends_leases_early(ack_wait: float) -> None:
    restarted_under_a_handler(ack_wait)


def test_the_simulation_finds_a_lease_that_forgets_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(margins, "RESTART_EARLY_S", 0.0)
    with pytest.raises(HistoryViolation, match="shard"):
        restarted_under_a_handler(2.0)


def test_the_simulation_finds_a_missing_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed server forgets a delivery and gives it to somebody else at once."""

    def run() -> None:
        with simulation(shards=1) as sim:
            sim.start_process()
            sim.publish(3, script=("ack",))
            sim.advance(0.05)
            sim.publish(2, script=("hang",))
            [first] = sim.alive
            sim.start_process()
            sim.advance(0.01)
            sim.fault(Disconnect(first, 5.0))
            sim.fault(RestartServer())
            sim.advance(5.0)
            sim.finish()

    run()
    monkeypatch.setattr(_fence.Fence, "fence_young", lambda self, held: None)
    with pytest.raises(HistoryViolation, match=r"\(I\)"):
        run()


def test_the_simulation_finds_a_settle_that_is_read_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run() -> None:
        with simulation(shards=1) as sim:
            sim.start_process()
            sim.publish(2, script=("ack", "hang"))
            sim.fault(LateAck(12.0))
            sim.publish(2, script=("ack", "hang"))
            sim.advance(0.1)
            sim.start_process()
            sim.advance(40.0)
            sim.finish()

    run()
    monkeypatch.setattr(_lane.MemoryLane, "_guard", lambda self, ticket, delivery: None)
    with pytest.raises(HistoryViolation):
        run()


def test_what_a_process_ended_with_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    from shove_actors.runtime._worker import Worker

    async def crash(self: Worker) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Worker, "run", crash)

    def run() -> None:
        with simulation() as sim:
            sim.start_process()
            sim.advance(600.0)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run()


def test_scripted_faults_are_part_of_the_story() -> None:
    plan = FaultPlan(at(1.0, Stall(None, 2.0)), at(2.0, RestartServer(down_s=1.0)))
    with simulation(plan) as sim:
        sim.start_process()
        sim.publish(50, keys=5)
        sim.advance(5.0)
        sim.finish()
        assert [e.detail for e in sim.history if e.kind == "fault"] == [
            "Stall(for_s=2.0)",
            "RestartServer(down_s=1.0)",
        ]
