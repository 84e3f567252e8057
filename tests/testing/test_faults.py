"""Fault plans: what they do, when, and that a drawn one can be played again."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing

from shove_actors import MemoryConfig, MemoryServer, Outcome, Topic, TopologyBuilder, open_broker
from shove_actors._errors import UsageError
from shove_actors.testing import (
    Crash,
    DeleteConsumer,
    DeliverTwice,
    Disconnect,
    FaultPlan,
    Happened,
    LateAck,
    LatePuback,
    LoseAck,
    LosePuback,
    LoseRenewal,
    Rates,
    RestartServer,
    Slow,
    Stall,
    StreamFull,
    at,
    on,
)

Clock = trio.testing.MockClock


class Order(msgspec.Struct):
    number: int


ORDERS = Topic(Order, TopologyBuilder("q").hold_queue(1).dlq().build())


async def run(
    plan: FaultPlan, *, count: int = 6, seconds: float = 100.0
) -> list[tuple[float, int]]:
    """Publishes `count` orders, consumes them for a while; when which was handled."""
    server = MemoryServer()
    seen: list[tuple[float, int]] = []

    async def handle(order: Order) -> Outcome:
        seen.append((round(trio.current_time() - start, 3), order.number))
        return Outcome.ACK

    start = trio.current_time()
    async with open_broker(MemoryConfig(server=server, name="pub")) as pub:
        await pub.declare(ORDERS)
        plan.install(server)
        with trio.CancelScope() as scope:
            async with (
                open_broker(MemoryConfig(server=server, name="w")) as worker,
                trio.open_nursery() as nursery,
            ):
                group = worker.consumer_group()
                group.register(ORDERS, handle, ack_wait=10.0)
                await nursery.start(group.serve)
                for number in range(count):
                    await pub.publisher().publish(ORDERS, Order(number))
                    await trio.sleep(1.0)
                await trio.sleep(seconds)
                scope.cancel()
    return seen


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        # The second acknowledgement is lost: its message comes again after its ack wait.
        (on("ack", 2, LoseAck()), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (11, 1)]),
        (on("ack", 2, LateAck(3.0)), [(n, n) for n in range(6)]),
        (on("ack", 2, LateAck(12.0)), [*[(n, n) for n in range(6)], (11, 1)]),
        # A moment: the next acknowledgement.
        (at(2.5, LoseAck()), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (13, 3)]),
        (at(1.5, Disconnect("w", 2.0)), [(0, 0), (1, 1), (3.5, 2), (3.5, 3), (4, 4), (5, 5)]),
        (at(1.5, Stall("w", 2.0)), [(0, 0), (1, 1), (3.5, 2), (3.5, 3), (4, 4), (5, 5)]),
        (at(1.5, Slow("w", 0.25, 1.0)), [(0, 0), (1, 1), (2.25, 2), (3.25, 3), (4, 4), (5, 5)]),
        (at(1.5, RestartServer()), [(n, n) for n in range(6)]),
        (at(1.5, DeleteConsumer("q", "q-consumer")), [(n, n) for n in range(6)]),
        (on("renew", 1, LoseRenewal()), [(n, n) for n in range(6)]),
        # Killed when it acknowledges: nobody is left.
        (on("ack", 3, Crash()), [(0, 0), (1, 1), (2, 2)]),
    ],
    ids=repr,
)
async def test_what_a_step_does(
    step: object, expected: list[tuple[float, int]], autojump_clock: Clock
) -> None:
    plan = FaultPlan(step)  # type: ignore[arg-type]
    seen = await run(plan)
    times = [(pytest.approx(when, abs=0.01), number) for when, number in expected]
    if isinstance(getattr(step, "fault", None), Slow):
        assert [number for _, number in seen] == [number for _, number in expected]
    else:
        assert seen == times


async def test_a_crash_before_and_after_its_event(autojump_clock: Clock) -> None:
    for after, left in ((False, 1), (True, 0)):
        server = MemoryServer()
        plan = FaultPlan(on("ack", 1, Crash(after=after)))

        async def handle(order: Order) -> Outcome:
            return Outcome.ACK

        async with open_broker(MemoryConfig(server=server, name="pub")) as pub:
            await pub.declare(ORDERS)
            plan.install(server)
            with trio.CancelScope() as scope:
                async with (
                    open_broker(MemoryConfig(server=server, name="w")) as worker,
                    trio.open_nursery() as nursery,
                ):
                    group = worker.consumer_group()
                    group.register(ORDERS, handle)
                    await nursery.start(group.serve)
                    await pub.publisher().publish(ORDERS, Order(1))
                    await trio.sleep(1)
                    scope.cancel()
            assert len(server.messages("q")) == left
            assert [h.process for h in plan.happened] == ["w"]


async def test_publishing_under_a_plan(autojump_clock: Clock) -> None:
    """Lost and late answers are asked for again, and nothing is stored twice."""
    server = MemoryServer()
    plan = FaultPlan(
        on("publish", 1, LosePuback()),
        on("publish", 3, LatePuback(1.0)),
        at(5.0, StreamFull("q", 2.0)),
    )
    async with open_broker(MemoryConfig(server=server, name="pub")) as broker:
        await broker.declare(ORDERS)
        plan.install(server)
        publisher = broker.publisher()
        receipts = [await publisher.publish(ORDERS, Order(n)) for n in range(3)]
        assert [receipt.sequence for receipt in receipts] == [1, 2, 3]
        assert receipts[0].duplicate
        await trio.sleep_until(5.5)
        with pytest.raises(Exception, match="fault plan"):
            await publisher.publish(ORDERS, Order(9))
        await trio.sleep_until(7.5)
        await publisher.publish(ORDERS, Order(10))
        assert len(server.messages("q")) == 4


async def test_a_drawn_plan_repeats_and_replays(autojump_clock: Clock) -> None:
    rates = Rates(lose_ack=0.1, late_ack=0.1, disconnect=0.1, restart=0.1, crash=0.0)
    plans = [FaultPlan.seeded(7, rates, for_s=60.0) for _ in range(2)]
    seen = [await run(plan, count=30, seconds=200.0) for plan in plans]
    assert plans[0].happened
    assert [h.step for h in plans[0].happened] == [h.step for h in plans[1].happened]
    assert seen[0] == seen[1]
    again = plans[0].replay()
    assert eval(plans[0].program(), _NAMES).program() == "FaultPlan()"
    assert await run(again, count=30, seconds=200.0) == seen[0]
    assert again.program() == plans[0].program()


_NAMES = {
    name: value
    for name, value in globals().items()
    if name in ("FaultPlan", "at", "on") or isinstance(value, type)
}


async def test_quiet_heals(autojump_clock: Clock) -> None:
    server = MemoryServer()
    heard: list[Happened] = []
    plan = FaultPlan(at(1.0, RestartServer(down_s=1000.0)), at(1.0, Slow("pub", 5.0, 1000.0)))
    plan.listen(heard.append)
    async with open_broker(MemoryConfig(server=server, name="pub")) as broker:
        await broker.declare(ORDERS)
        plan.install(server)
        await trio.sleep(2.0)
        assert not broker.backend.connected
        plan.quiet()
        assert broker.backend.connected
        await broker.publisher().publish(ORDERS, Order(1))
        assert trio.current_time() == 2.0
        plan.quiet()
    # The server ends as soon as it is not in the middle of something.
    assert [h.step.fault for h in heard] == [Slow("pub", 5.0, 1000.0), RestartServer(1000.0)]


async def test_the_spared_are_not_killed(autojump_clock: Clock) -> None:
    plan = FaultPlan.seeded(1, Rates.only(crash=1.0), spare=["pub", "w"])
    assert len(await run(plan)) == 6
    assert not plan.happened


def test_wrong_plans_say_what_is_right() -> None:
    with pytest.raises(UsageError, match="LoseAck"):
        on("publish", 1, LoseAck())
    with pytest.raises(UsageError, match="counted from 1"):
        on("ack", 0, LoseAck())
    with pytest.raises(UsageError, match="one of"):
        on("acks", 1, LoseAck())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="seconds"):
        at(-1.0, DeliverTwice())
    with pytest.raises(UsageError, match="for_s"):
        Disconnect(for_s=-1.0)
    with pytest.raises(UsageError, match="crash"):
        Rates(crash=1.5)
    with pytest.raises(UsageError, match="not installed"):
        FaultPlan().quiet()


async def test_one_plan_for_one_server(autojump_clock: Clock) -> None:
    server = MemoryServer()
    plan = FaultPlan().install(server)
    with pytest.raises(UsageError, match="installed before"):
        plan.install(MemoryServer())
    with pytest.raises(UsageError, match="has a plan"):
        FaultPlan().install(server)
    plan.quiet()
    FaultPlan().install(server)


def test_faults_print_as_the_code_that_makes_them() -> None:
    assert repr(Disconnect("w", 2.0)) == "Disconnect(process='w', for_s=2.0)"
    assert repr(LoseAck()) == "LoseAck()"
    plan = FaultPlan(on("ack", 3, LoseAck()), at(1.25, RestartServer(down_s=1.0)))
    assert repr(plan) == "FaultPlan(on('ack', 3, LoseAck()), at(1.25, RestartServer(down_s=1.0)))"
