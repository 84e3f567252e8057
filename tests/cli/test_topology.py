"""`shove-actors topology`: a plan is what happens, and a difference is told whoever made it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from shove_actors import NatsConfig, jetstream, open_broker
from shove_actors.embedded import ServerProcess

from .kit import Cli

pytestmark = pytest.mark.server

TOPICS = """
from shove_actors import *
from dataclasses import replace

QUEUE = {queue!r}
ORDERS = {kind}TopologyBuilder(QUEUE).hold_queue(5).dlq(){orders}.build())
LEDGER = SequencedTopic(
    str,
    key=lambda text: text,
    topology=TopologyBuilder(QUEUE + "-ledger")
    .sequenced(SequenceFailure.FAIL_ALL)
    .routing_shards({shards})
    .hold_queue(1)
    .dlq()
    .build(),
)
KEYED = SequencedTopic(
    str,
    key=lambda text: text,
    topology=TopologyBuilder(QUEUE + "-keyed")
    .sequenced(SequenceFailure.SKIP)
    .keyed()
    .hold_queue(1)
    .dlq()
    .build(),
)
EVERY = [ORDERS, LEDGER]
NOTHING = []
WRONG = [ORDERS, 7]
"""


class Program:
    """A module with topics, in a folder of its own under a name nobody has imported."""

    def __init__(self, folder: Path, queue: str, cli: Cli, url: str) -> None:
        self.queue = queue
        self.folder, self._cli, self._url = folder, cli, url
        self._number = 0

    def write(self, orders: str = "", shards: int = 2, *, sequenced: bool = False) -> Program:
        self._number += 1
        name = f"topics_{self.queue.replace('-', '_')}_{self._number}"
        kind = "SequencedTopic(str, key=str, topology=" if sequenced else "Topic(str, "
        text = TOPICS.format(queue=self.queue, orders=orders, shards=shards, kind=kind)
        (self.folder / f"{name}.py").write_text(text)
        self.module = name
        return self

    def arguments(self, what: str, name: str = ":EVERY") -> list[str]:
        where = ["--url", self._url, "--app-dir", str(self.folder)]
        return ["topology", what, f"{self.module}{name}", *where]

    def json(self, what: str, code: int = 0, name: str = ":EVERY") -> Any:
        return self._cli.json(*self.arguments(what, name), code=code)

    def text(self, what: str, code: int = 0, name: str = ":EVERY") -> str:
        return self._cli.run(*self.arguments(what, name), code=code)

    def error(self, what: str, code: int, name: str = ":EVERY") -> str:
        return self._cli.error(*self.arguments(what, name), code=code)


@pytest.fixture
def program(
    tmp_path: Path, fresh_queue: Callable[[], str], cli: Cli, server: ServerProcess
) -> Program:
    return Program(tmp_path, fresh_queue()[-30:].lstrip("-"), cli, server.url).write()


def kinds(steps: Any) -> dict[str, str]:
    return {step["stream"]: step["action"] for step in steps}


def on_server(url: str, function: Callable[[jetstream.JetStream], Any]) -> Any:
    async def run() -> Any:
        async with jetstream.connect(url) as js:
            return await function(js)

    return trio.run(run)


def test_planned_applied_and_then_the_same(program: Program, server: ServerProcess) -> None:
    q = program.queue
    streams = [
        *(q, f"{q}-hold-5s", f"{q}-dlq"),
        *(f"{q}-ledger", f"{q}-ledger-hold-1s", f"{q}-ledger-dlq", f"KV_{q}-ledger-poison"),
    ]

    async def names(js: jetstream.JetStream) -> set[str]:
        return {name async for name in js.stream_names() if q in name}

    assert kinds(program.json("plan")) == dict.fromkeys(streams, "create")
    assert on_server(server.url, names) == set()
    assert len(program.json("diff", code=4)) == len(streams)
    assert kinds(program.json("apply")) == dict.fromkeys(streams, "create")
    assert on_server(server.url, names) == set(streams)
    assert kinds(program.json("plan")) == dict.fromkeys(streams, "keep")
    assert program.json("diff") == []
    assert program.text("diff") == "0 differences\n"
    assert program.text("apply").endswith("0 created, 0 changed, 7 kept\n")


def test_a_plan_is_what_declare_does(program: Program, server: ServerProcess) -> None:
    program.text("apply")
    limits = ".nats_stream_config(NatsStreamConfig(max_messages=1000, max_age=3600))"
    program.write(orders=limits)
    [step] = [step for step in program.json("plan") if step["action"] == "update"]
    changes = {each["setting"]: (each["was"], each["will"]) for each in step["changes"]}
    assert changes["max_msgs"] == (-1, 1000)
    assert changes["max_age"] == (0.0, 3600.0)
    assert "max_msgs: -1 -> 1000" in program.text("plan")
    assert "max_msgs: -1 -> 1000" in program.text("apply")
    assert program.json("diff") == []


def test_what_is_refused_says_why_and_changes_nothing(
    program: Program, server: ServerProcess
) -> None:
    program.text("apply", name=":ORDERS")
    program.write(orders=".nats_stream_config(NatsStreamConfig(storage=Storage.MEMORY))")
    steps = {step["topic"]: step for step in program.json("plan", code=4) if step["why"]}
    assert "storage cannot be changed" in steps[program.queue]["why"]
    assert "storage cannot be changed" in program.error("apply", code=4)
    program.write()
    assert kinds(program.json("plan", name=":LEDGER"))[f"{program.queue}-ledger"] == "create"


def test_plain_to_sequenced_is_refused_while_a_consumer_is_left(
    program: Program, server: ServerProcess
) -> None:
    q = program.queue
    program.text("apply", name=":ORDERS")
    durable = jetstream.ConsumerConfig(name=f"{q}-consumer", durable_name=f"{q}-consumer")
    on_server(server.url, lambda js: js.put_consumer(q, durable))
    program.write(orders=".sequenced(SequenceFailure.SKIP)", sequenced=True)
    [step] = program.json("plan", code=4, name=":ORDERS")
    assert step["action"] == "refused"
    error = program.error("apply", code=4, name=":ORDERS")
    for text in (step["why"], error):
        assert f"nats consumer rm {q} {q}-consumer" in text
        assert "plain" in text
        assert "sequenced" in text
    on_server(server.url, lambda js: js.delete_consumer(q, f"{q}-consumer"))
    program.text("apply", name=":ORDERS")
    assert kinds(program.json("plan", name=":ORDERS"))[q] == "keep"


def test_a_name_that_is_not_there_is_answered_with_topics_only(program: Program) -> None:
    assert program.error("plan", 2, ":ORDER").endswith("It has: ORDERS, LEDGER, KEYED, EVERY")
    (program.folder / "without_topics.py").write_text("import json\nNUMBER = 7\n")
    program.module = "without_topics"
    assert program.error("plan", 2, ":ORDERS").endswith("There are no topics in it")
    assert "is an int" in program.error("plan", 2, ":NUMBER")


def test_what_an_operator_did_is_a_difference_that_apply_leaves_alone(
    program: Program, server: ServerProcess
) -> None:
    program.text("apply")
    q = program.queue

    async def meddle(js: jetstream.JetStream) -> None:
        from dataclasses import replace

        current = (await js.stream_info(f"{q}-dlq")).config
        await js.update_stream(replace(current, max_msgs=77))
        await js.create_stream(
            jetstream.StreamConfig(name=f"{q}-hold-9s", subjects=(f"{q}-hold-9s",))
        )
        left = jetstream.ConsumerConfig(
            durable_name=f"{q}-ledger-shard-9", filter_subject=f"{q}-ledger.shard.9"
        )
        await js.create_consumer(f"{q}-ledger", left)

    on_server(server.url, meddle)
    found = {(each["name"], each["setting"]) for each in program.json("diff", code=4)}
    assert found == {
        (f"{q}-dlq", "max_msgs"),
        (f"{q}-hold-9s", None),
        (f"{q}-ledger-shard-9", None),
    }
    assert "3 differences" in program.text("diff", code=4)
    assert set(kinds(program.json("apply")).values()) == {"keep"}


def test_other_shards_while_messages_are_stored(program: Program, server: ServerProcess) -> None:
    program.text("apply")

    async def publish() -> None:
        import importlib

        topic = importlib.import_module(program.module).LEDGER
        async with open_broker(NatsConfig(server.url)) as broker:
            await broker.publisher().publish(topic, "a")

    trio.run(publish)
    program.write(shards=4)
    assert "routing_shards(4)" in program.error("apply", code=4, name=":LEDGER")


def test_a_module_means_all_its_topics(program: Program) -> None:
    assert {step["topic"] for step in program.json("plan", name="")} == {
        program.queue,
        f"{program.queue}-ledger",
        f"{program.queue}-keyed",
    }


def test_a_plan_knows_every_stream_that_declare_makes(
    program: Program, server: ServerProcess
) -> None:
    async def names(js: jetstream.JetStream) -> set[str]:
        return {name async for name in js.stream_names() if program.queue in name}

    planned = kinds(program.json("plan", name=""))
    assert on_server(server.url, names) == set()
    program.text("apply", name="")
    assert on_server(server.url, names) == set(planned)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (":NOTHING", "an empty list"),
        (":WRONG", "holds an int"),
        (":QUEUE", "is a str, not a topic"),
        (":MISSING", "has no 'MISSING'"),
    ],
)
def test_what_is_no_topic(program: Program, name: str, said: str) -> None:
    assert said in program.error("plan", code=2, name=name)


def test_a_module_without_topics(cli: Cli) -> None:
    assert "has no topics" in cli.error("topology", "plan", "json", code=2)


def test_no_server(cli: Cli) -> None:
    arguments = ("topology", "plan", "tests.cli.apps.services", "--url", "nats://127.0.0.1:1")
    assert "127.0.0.1:1" in cli.error(*arguments, code=1)
