"""Nobody looks, nobody pays: what is imported and what is wrapped, without and with an SDK."""

from __future__ import annotations

import subprocess
import sys

import pytest
import trio

from shove_actors import MemoryConfig, Telemetry, open_broker
from shove_actors.runtime._telemetry import choose
from tests.runtime.world import Script, World, consuming

from .kit import Sdk

PROGRAM = """
import sys
{first}
import msgspec, trio
from shove_actors import MemoryConfig, Outcome, Topic, TopologyBuilder, open_broker

class Order(msgspec.Struct):
    name: str

ORDERS = Topic(Order, TopologyBuilder("orders").hold_queue(1).dlq().build())

async def main():
    async with open_broker(MemoryConfig()) as broker:
        await broker.declare(ORDERS)
        await broker.publisher().publish(ORDERS, Order("a"))
        group = broker.consumer_group()
        done = trio.Event()
        async def handle(order):
            done.set()
            return Outcome.ACK
        group.register(ORDERS, handle)
        assert (await group.run_until(done.wait)).is_clean
        print(broker.instruments is not None, end=" ")

trio.run(main)
print(any(name.startswith("opentelemetry.") for name in sys.modules))
"""


def run(first: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", PROGRAM.format(first=first)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(p for p in sys.path if p)}
        | environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def test_an_application_that_does_not_import_opentelemetry_does_not_load_it() -> None:
    assert run("") == "False False"


def test_without_opentelemetry_installed_everything_works() -> None:
    assert run('sys.modules["opentelemetry"] = None') == "False False"


def test_the_api_alone_is_a_no_op() -> None:
    assert run("from opentelemetry import metrics, trace") == "False True"


def test_an_sdk_that_was_installed_before_is_used() -> None:
    first = (
        "from opentelemetry import metrics\n"
        "from opentelemetry.sdk.metrics import MeterProvider\n"
        "metrics.set_meter_provider(MeterProvider())"
    )
    assert run(first) == "True True"


def test_an_sdk_of_the_environment_is_used() -> None:
    assert run("", OTEL_PYTHON_METER_PROVIDER="sdk_meter_provider") == "True True"


@pytest.mark.parametrize("telemetry", [None, Telemetry(metrics=False, tracing=False)])
def test_switched_off_it_is_off(telemetry: Telemetry | None) -> None:
    assert choose(telemetry) is None


async def test_no_observer_no_wrapper(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """What the worker calls is the handler itself; with an SDK it is something around it."""

    async def handle(message: object, metadata: object, context: object) -> object:
        raise AssertionError("nothing was published")

    topic, sdk = memory_world.topic(), Sdk()
    for telemetry, bare in [(None, True), (sdk.telemetry(), False)]:
        async with open_broker(MemoryConfig(), telemetry=telemetry) as broker:
            await broker.declare(topic)
            async with consuming(broker, topic, handle) as run_:
                [registration] = run_.group._registrations
                assert (registration.handler.call is handle) is bare
                assert (registration.settler.observer is None) is bare
                [worker] = registration.workers
                assert (worker._call is handle) is bare


async def test_factories_are_watched_from_the_first_handler_on(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    from tests.runtime.world import Order

    topic, sdk = memory_world.topic(), Sdk()
    made: list[Script] = []

    def factory() -> Script:
        made.append(Script())
        return made[-1]

    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(9)])
        group = broker.consumer_group()
        group.register(topic, factory=factory, consumers=3)
        from tests.runtime.world import running

        async with running(group):
            await memory_world.until_kept(broker, topic.queue, 0)
    assert len(made) == 3
    assert sum(sdk.values("messages_consumed_total").values()) == 9
