"""What would be accepted and then do nothing, or fail elsewhere, is refused where it is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from shove_actors import (
    MemoryConfig,
    MemoryServer,
    Outcome,
    Topic,
    TopologyBuilder,
    UsageError,
    open_broker,
)
from shove_actors.testing import (
    Checker,
    Crash,
    DeleteConsumer,
    Disconnect,
    FaultPlan,
    History,
    HistoryRules,
    LateAck,
    LoseAck,
    MessagingMachine,
    Rates,
    RestartServer,
    ServerWatch,
    Simulation,
    Stall,
    Stepper,
    StreamFull,
    at,
    check_history,
    on,
    recording,
    strategies,
)

ORDERS = Topic(int, TopologyBuilder("orders").hold_queue(1).dlq().build())


def odd(value: object) -> Any:
    """What no type checker would let through."""
    return value


def make(number: int, key: str) -> int:
    return number


def killer() -> FaultPlan:
    return FaultPlan(at(1.0, Crash("publisher")))


def plain_function(number: int) -> Outcome:
    return Outcome.ACK


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: FaultPlan(odd(LoseAck())), r"step 1 .* when: give on\('ack', 1, LoseAck\(\)\)"),
        (lambda: FaultPlan(odd([on("ack", 1, LoseAck())])), r"of type list: .*FaultPlan\(\*"),
        (lambda: FaultPlan(on("ack", 1, LoseAck()), odd(None)), "step 2 of the plan is None"),
        (lambda: on("ack", odd(1.5), LoseAck()), "nth=1.5: give a whole number, at least 1"),
        (lambda: on("ack", odd("1"), LoseAck()), "nth='1': give a whole number"),
        (lambda: on("ack", True, LoseAck()), "nth=True: give a whole number"),
        (lambda: on("ack", 0, LoseAck()), "nth=0: at least 1: counted from 1"),
        (lambda: on(odd(["ack"]), 1, LoseAck()), "event=of type list: one of publish, deliver"),
        (lambda: on("ack", 1, odd(LoseAck)), "fault is the class LoseAck: give one"),
        (lambda: at(odd("x"), LoseAck()), "moment='x': give 0 or more seconds"),
        (lambda: at(float("nan"), LoseAck()), "moment=nan"),
        (lambda: at(1.0, odd(None)), "fault is None: give one, such as"),
        (lambda: FaultPlan.seeded(odd("x")), "seed is of type str: give a whole number"),
        (lambda: FaultPlan.seeded(1, odd(0.5)), "rates is of type float: give Rates"),
        (lambda: FaultPlan.seeded(1, for_s=-1.0), "for_s=-1.0: 0 or more seconds"),
        (lambda: FaultPlan.seeded(1, spare="publisher"), "spare is of type str: give a list"),
        (lambda: FaultPlan().install(odd(None)), "server is None: give a MemoryServer"),
        (lambda: FaultPlan().listen(odd(None)), "listener is None: give a function"),
        (lambda: Disconnect(for_s=odd("x")), "Disconnect: for_s='x': give 0 or more seconds"),
        (lambda: LateAck(-1.0), "LateAck: by_s=-1.0: 0 or more seconds"),
        (lambda: Crash(odd(1)), "Crash: process is of type int: give its name"),
        (lambda: Crash(after=odd("yes")), "Crash: after='yes': give True or False"),
        (lambda: RestartServer(killed=odd(1)), "RestartServer: killed=1: give True or False"),
        (lambda: Stall(direction=odd("left")), "direction='left': one of up, down, both"),
        (lambda: DeleteConsumer("", "durable"), "DeleteConsumer: stream is empty: give its name"),
        (lambda: StreamFull(odd(None)), "StreamFull: stream is None: give its name"),
        (lambda: Rates(crash=odd("2")), "Rates: crash='2': a number from 0 to 1"),
        (lambda: Rates(restart=-1.0), "Rates: restart=-1.0: a finite number, 0 or more"),
        (lambda: Rates(slow=True), "Rates: slow=True"),
        (lambda: Rates().for_batches(0), "size=0: at least 1"),
        (lambda: HistoryRules(max_retries=odd("3")), "max_retries='3': give a whole number"),
        (lambda: HistoryRules(handler_timeout=odd("a")), "handler_timeout='a': .*, or None"),
        (lambda: HistoryRules(retry_delays=odd([1.0])), "retry_delays is of type list: give a"),
        (lambda: HistoryRules(retry_delays=(odd("a"),)), "a delay='a': give 0 or more seconds"),
        (lambda: HistoryRules(calm=odd(1)), "calm=1: give True or False"),
        (lambda: HistoryRules(only=odd(["O"])), "only is of type list: give letters"),
        (lambda: Checker(odd(3)), "rules is of type int: give HistoryRules"),
        (lambda: Checker({"orders": odd(None)}), "rules of topic 'orders' is None"),
        (lambda: check_history(odd("a.jsonl")), "history is of type str: .*History.read"),
        (lambda: check_history(odd(Path("a.jsonl"))), r"History.read\(path\)"),
        (lambda: History(odd([b"{}"])), "an event of the history is of type bytes"),
        (lambda: History().listen(odd(None)), "listener is None"),
        (lambda: recording(odd("a.jsonl")).__enter__(), "history is of type str: .*path"),
        (lambda: recording(History(), "").__enter__(), "process is empty"),
        (lambda: ServerWatch(History(), MemoryServer(), odd(ORDERS)), "topics is of type Topic"),
        (lambda: ServerWatch(History(), odd(None), [ORDERS]), "server is None"),
        (lambda: Simulation(odd(int), make), "topic is the class int: give a Topic"),
        (lambda: Simulation(ORDERS, odd(None)), r"make is None: give a function of \(number, "),
        (lambda: Simulation(ORDERS, make, handler=odd(3)), "handler int is neither a function"),
        (lambda: Simulation(ORDERS, make, plan=odd(LoseAck())), "plan is of type LoseAck"),
        (lambda: Simulation(ORDERS, make, options=odd([1])), "options is of type list"),
        (lambda: Simulation(ORDERS, make, options={"odd": 3}), "options: 'odd' is nothing"),
        (lambda: Simulation(ORDERS, make, options={"consumers": 0}), "consumers=0: from 1"),
        (lambda: Simulation(ORDERS, make, handler=plain_function), "plain function, .* thread"),
        (lambda: Simulation(ORDERS, make, plan=killer()), "the publisher .* is never killed"),
        (lambda: Simulation(ORDERS, make, revive=odd(1)), "revive=1: give True or False"),
        (lambda: Stepper(odd(3)), "main is of type int: give an async function"),
    ],
)  # fmt: skip
def test_at_construction(wrong: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        wrong()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda sim: sim.publish("3"), "count='3': give a whole number"),
        (lambda sim: sim.publish(1, keys=0), "keys=0: at least 1"),
        (lambda sim: sim.publish(1, every=0), "every=0: at least 1"),
        # Each letter of it would have been taken for a move, and made the handler hang.
        (lambda sim: sim.publish(1, script="ack"), "script is of type str: give a tuple"),
        (lambda sim: sim.publish(1, script=("nack",)), "a move='nack': one of ack, retry"),
        (lambda sim: sim.publish_again(0), "back=0: at least 1"),
        (lambda sim: sim.advance("1"), "seconds='1': give 0 or more seconds"),
        (lambda sim: sim.deliver(1, within_s=None), "within_s=None: give 0 or more seconds"),
        (lambda sim: sim.fault(LoseAck), "fault is the class LoseAck"),
        (lambda sim: sim.fault(LoseAck(), event="acks"), "event='acks': one of"),
        (lambda sim: sim.fault(Crash("publisher")), "the publisher .* is never killed"),
        (lambda sim: sim.publish_foreign("foreign"), "kind='foreign': one of undecodable"),
        (lambda sim: sim.publish_foreign("oversize"), "max_message_size is 10,485,760 bytes, and"),
        (lambda sim: sim.publish_foreign("undecodable", key=3), "key is of type int"),
        (lambda sim: sim.stop_process("w"), "no process 'w' runs; those that do: none"),
        (lambda sim: sim.release(None), "key is None"),
        (lambda sim: sim.trio.step("1"), "limit='1': a moment"),
        (lambda sim: sim.trio.post(some_life(sim.server)), "function is .*, not yet called"),
    ],
)  # fmt: skip
def test_in_a_simulation(wrong: Callable[[Any], object], words: str) -> None:
    with Simulation(ORDERS, make) as sim, pytest.raises(UsageError, match=words):
        wrong(sim)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"batch": 0}, "batch=0: at least 1"),
        ({"batch": "40"}, "batch='40': give a whole number"),
        ({"most_processes": 0}, "most_processes=0"),
        ({"moves": ("nack",)}, "a move='nack': one of ack"),
        ({"moves": ()}, "moves is empty"),
        ({"options": None}, "options is None"),
        ({"topic": None}, "needs a class attribute `topic`"),
        ({"make": MessagingMachine.make}, r"needs a method `make\(self, number, key\)`"),
        ({"options": {"nonsense": 3}}, "options: 'nonsense' is nothing .* it takes consumers,"),
        ({"options": {"consumers": 0}}, "consumers=0: from 1"),
        ({"handler": staticmethod(plain_function)}, "handler plain_function is a plain function"),
    ],
)
def test_in_a_machine(attributes: dict[str, object], words: str) -> None:
    machine = type("Machine", (MessagingMachine,), {"topic": ORDERS, "make": make, **attributes})
    with pytest.raises(UsageError, match=words):
        machine()


def test_a_handler_takes_what_register_takes() -> None:
    """With one parameter it used to raise at each call, and all went to the dead letters."""
    seen: list[int] = []

    async def handle(number: int) -> Outcome:
        seen.append(number)
        return Outcome.ACK

    with Simulation(ORDERS, make, handler=handle) as sim:
        sim.publish(2)
        sim.finish()
    assert sorted(seen) == [0, 1]


def test_strategies_refuse_unknown_moves() -> None:
    with pytest.raises(UsageError, match="a move='nack'"):
        strategies.scripts(moves=(odd("nack"),))


# ----------------------------------------------------------------------- outside of Trio


def plan_for(kind: str) -> FaultPlan:
    if kind == "drawn":
        return FaultPlan.seeded(3, Rates.only(restart=0.5))
    return FaultPlan(at(2.0, RestartServer(down_s=1.0)), on("publish", 2, Crash("p")))


async def some_life(server: MemoryServer) -> None:
    async with open_broker(MemoryConfig(server=server, name="p")) as broker:
        await broker.declare(ORDERS)
        publisher = broker.publisher()
        await publisher.publish(ORDERS, 1)
        await trio.sleep(4.0)
        with trio.move_on_after(10.0):
            await publisher.publish(ORDERS, 2)


@pytest.mark.parametrize("kind", ["scripted", "drawn"])
def test_a_plan_can_be_installed_before_the_run(kind: str) -> None:
    """As the fixture `memory_server` invites to; moments count from the server's first use."""
    told = []
    for outside in (True, False):
        server, plan = MemoryServer(), plan_for(kind)

        async def main(server: MemoryServer, plan: FaultPlan, outside: bool) -> None:
            if outside:
                await trio.sleep(100.0)  # the server is not in use yet
            else:
                plan.install(server)
            await some_life(server)

        if outside:
            assert plan.install(server) is plan
            with pytest.raises(UsageError, match=r"before it, give the plan at\(0.0, Crash\(\)\)"):
                plan.take(Crash())
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(main, server, plan, outside, clock=clock)
        assert plan.happened
        told.append(plan.program())
    assert told[0] == told[1]


def test_a_plan_that_never_came_to_anything_is_quiet() -> None:
    server = MemoryServer()
    plan = plan_for("drawn").install(server)
    plan.quiet()
    assert server.faults.watch is None
