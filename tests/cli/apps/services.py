"""What `run` can run, one of each kind. `SHOVE_TEST_QUEUE` keeps two tests apart."""

from __future__ import annotations

import os
import sys

import trio

from shove_actors import (
    Broker,
    ConsumerGroup,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    SupervisorOutcome,
    Topic,
    TopologyBuilder,
    actors,
)

QUEUE = os.environ.get("SHOVE_TEST_QUEUE", "apps")
ORDERS = Topic(str, TopologyBuilder(QUEUE).hold_queue(0.2).dlq().build())
LEDGER = SequencedTopic(
    str,
    key=lambda text: text.partition(":")[0],
    topology=TopologyBuilder(f"{QUEUE}-ledger")
    .sequenced(SequenceFailure.SKIP)
    .routing_shards(4)
    .hold_queue(0.2)
    .dlq()
    .build(),
)
ALL = [ORDERS, LEDGER]


def say(text: str) -> None:
    print(text, flush=True)


async def handle(order: str) -> Outcome:
    say(f"handled {order}")
    if order == "slow":
        await trio.sleep(0.3)
        say("slow is done")
    if order == "stuck":
        await trio.sleep_forever()
    return Outcome.ACK if order != "bad" else Outcome.REJECT


async def group(broker: Broker) -> ConsumerGroup:
    await broker.declare(ORDERS)
    for order in os.environ.get("SHOVE_TEST_ORDERS", "").split():
        await broker.publisher().publish(ORDERS, order)
    made = broker.consumer_group()
    made.register(ORDERS, handle, consumers=(1, 2), handler_timeout=60)
    return made


async def two_groups(broker: Broker) -> list[ConsumerGroup]:
    await broker.declare(LEDGER)
    other = broker.consumer_supervisor()
    other.register(LEDGER, handle)
    return [await group(broker), other]


async def undeclared(b: Broker) -> ConsumerGroup:
    made = b.consumer_group()
    made.register(Topic(str, TopologyBuilder(f"{QUEUE}-nowhere").dlq().build()), handle)
    return made


async def careless(b: Broker) -> None:
    nowhere = Topic(str, TopologyBuilder(f"{QUEUE}-nowhere").dlq().build())
    await b.publisher().publish(nowhere, "x")


async def own_run(broker: Broker) -> SupervisorOutcome:
    made = await group(broker)
    return await made.run_until(trio.lowlevel.checkpoint)


async def plain() -> int:
    say("plain")
    return 7


def not_async() -> None:
    say("not async")


async def for_ever() -> None:
    say("up")
    await trio.sleep_forever()


async def tidy(stop: trio.Event) -> int:
    say("up")
    await stop.wait()
    say("stopping")
    return 0


async def untidy(stop: trio.Event) -> None:
    say("up")
    await stop.wait()
    await trio.sleep_forever()


async def with_nursery(nursery: trio.Nursery, broker: Broker) -> None:
    made = await group(broker)
    await nursery.start(made.serve)
    say("up")


async def ticker(nursery: trio.Nursery, broker: Broker) -> ConsumerGroup:
    nursery.start_soon(trio.sleep_forever)
    made = await group(broker)
    say("up")
    return made


async def broken(broker: Broker) -> None:
    raise ZeroDivisionError("mine")


async def strange(colour: str, size: int) -> None:
    raise AssertionError


async def returns_text() -> str:
    return "well"


async def actor(ctx: actors.Context[None]) -> None:
    ctx.started()
    say("up")
    await ctx.stop_requested.wait()
    say("stopping")


async def crashing(ctx: actors.Context[None]) -> None:
    ctx.started()
    raise OSError("no such luck")


SPEC = actors.ChildSpec(id="one", start=actor)
CRASHING = [actors.ChildSpec(id="two", start=crashing)]
NOTHING = 42


def specs() -> list[actors.ChildSpec]:
    return [SPEC]


if os.environ.get("SHOVE_TEST_BROKEN"):
    sys.exit("never imported so")
