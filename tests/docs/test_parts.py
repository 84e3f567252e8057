"""What is no complete program on a page is run as well, with what the page means by its names.

Each block runs by itself in a broker's block on a real server, with the names below; `await` and
`async with` may stand at its top. A block that serves until SIGTERM gets one when its handler has
been called. Only addresses are put in place of those on the page.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest
import trio
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

import shove_actors
import shove_actors.testing
from shove_actors import NatsConfig, Outcome, embedded_server, jetstream, open_broker

from .test_snippets import DOCS, MARK

ROOT = DOCS.parent
BLOCK = re.compile(rf"(?P<whole>{MARK})?```python\n(?P<code>.*?)^```\n", re.MULTILINE | re.DOTALL)
#: Runs in a test of its own, `tests/examples/test_jetstream_examples.py`.
ELSEWHERE = DOCS / "jetstream-from-go.md"
ADDRESS = re.compile(r'"nats://[^"]*"')
#: The page says `domain="hub"`.
CONFIG = "jetstream { domain: hub }"


class Part(NamedTuple):
    where: str
    code: str


def parts() -> list[Part]:
    found = []
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text) if page != ELSEWHERE else ():
            if not match["whole"]:
                line = text.count("\n", 0, match.start()) + 1
                found.append(Part(f"{page.relative_to(ROOT).as_posix()}:{line}", match["code"]))
    return found


PROGRAMS = [part for part in parts() if "trio.run(" in part.code]


class Order(msgspec.Struct):
    order_id: str
    amount: float = 0.0


class Entry(msgspec.Struct):
    number: int
    account: str
    account_id: str = ""


class Shop:
    pass


ORDERS = shove_actors.Topic(
    Order, shove_actors.TopologyBuilder("orders").hold_queue(5).dlq().build()
)
LEDGER = shove_actors.SequencedTopic(
    Entry,
    key=lambda entry: entry.account,
    topology=shove_actors.TopologyBuilder("ledger")
    .sequenced(shove_actors.SequenceFailure.FAIL_ALL)
    .hold_queue(5)
    .dlq()
    .build(),
)


NAMES: dict[str, Any] = {
    **{name: getattr(shove_actors, name) for name in shove_actors.__all__},
    **{name: getattr(shove_actors.testing, name) for name in shove_actors.testing.__all__},
    "__name__": "part",
    "Any": Any,
    "Counter": Counter,
    "Entry": Entry,
    "LEDGER": LEDGER,
    "ORDERS": ORDERS,
    "Order": Order,
    "OrderCreated": Order,
    "Shop": Shop,
    "my_reader": InMemoryMetricReader(),
    "my_state": Shop(),
    "my_tracer_provider": TracerProvider(),
    "server": shove_actors.MemoryServer(),
    "topology": ORDERS.topology,
    "trio": trio,
    "write_to_database": lambda order: None,
}


@pytest.mark.server
@pytest.mark.parametrize(
    "part", [p for p in parts() if p not in PROGRAMS], ids=lambda part: part.where
)
async def test_it_runs(part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    handled = trio.Event()

    async def handle(order: Order) -> Outcome:
        handled.set()
        return Outcome.ACK

    async def stop_once_it_serves() -> None:
        await handled.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    async with embedded_server(config=CONFIG) as server:
        async with open_broker(NatsConfig(server.url)) as broker:
            await broker.declare(ORDERS, LEDGER, shove_actors.AuditLog.topic)
            await broker.publisher().publish(ORDERS, Order("ORD-1"))
            names = {
                **NAMES,
                "broker": broker,
                "group": broker.consumer_group(),
                "handle": handle,
                "pay": handle,
                "url": server.url,
            }
            async with trio.open_nursery() as nursery:
                if "run_until(" in part.code:
                    nursery.start_soon(stop_once_it_serves)
                await executed(ADDRESS.sub(repr(server.url), part.code), names)
                nursery.cancel_scope.cancel()
            await follow_up(names)


async def executed(code: str, names: dict[str, Any]) -> None:
    made = compile(code, "<part>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    code_at_end: object = 0
    try:
        result = eval(made, names)
        if inspect.iscoroutine(result):
            await result
    except SystemExit as exc:
        code_at_end = exc.code
    assert code_at_end == 0


async def follow_up(names: dict[str, Any]) -> None:
    """What a block only defines is called, where that says something; what it opened is closed."""
    if "record" in names:
        names["record"].history.close()
    if "app" in names:
        app = cast("Callable[[object], Awaitable[object]]", names["app"])
        assert isinstance(await app(names["broker"]), shove_actors.ConsumerGroup)
    if "NightShift" in names:
        load = shove_actors.Load(
            pending=20_000, in_flight=0, consumers=1, takes=1, minimum=1, maximum=7
        )
        assert names["NightShift"]().wanted(load) == 7
    if "JsonOrMsgpack" in names:
        codec = names["JsonOrMsgpack"](Order)
        new, old = codec.encode(Order("1")), shove_actors.JsonCodec(Order).encode(Order("1"))
        assert codec.decode(new) == codec.decode(old) == Order("1")
        assert new != old


@pytest.mark.server
@pytest.mark.parametrize("part", PROGRAMS, ids=lambda part: part.where)
async def test_the_service_runs_until_it_is_told_to_stop(part: Part) -> None:
    async with embedded_server() as server, jetstream.connect(server.url) as js:
        code = ADDRESS.sub(repr(server.url), part.code)
        async with trio.open_nursery() as nursery:
            process = await nursery.start(trio.run_process, [sys.executable, "-c", code])
            with trio.fail_after(50):
                while not await acknowledged(js):  # noqa: ASYNC110 - it is another process
                    await trio.sleep(0.05)
            process.terminate()


async def acknowledged(js: jetstream.JetStream) -> int:
    try:
        info = await js.consumer_info("orders", "orders-consumer")
    except shove_actors.ShoveError:
        return 0
    return info.ack_floor.stream_seq


def test_there_are_parts_and_programs() -> None:
    """Found by patterns, so an empty list would look like success."""
    assert len(parts()) > 10
    assert [part.where.partition(":")[0] for part in PROGRAMS] == ["README.md"]
