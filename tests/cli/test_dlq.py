"""`shove-actors dlq` and `poisoned` on a real server, by the name of a queue and by its topic."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from shove_actors import (
    Broker,
    NatsConfig,
    Outcome,
    Reject,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    jetstream,
    open_broker,
)
from shove_actors.embedded import ServerProcess
from tests.runtime.world import consuming

from .kit import LONG_S, Cli, started

pytestmark = pytest.mark.server


def plain(queue: str) -> Topic[str]:
    return Topic(str, TopologyBuilder(queue).hold_queue(0.2).dlq().build())


def ledger(queue: str, how: SequenceFailure = SequenceFailure.SKIP) -> SequencedTopic[str]:
    return SequencedTopic(
        str,
        key=lambda text: text.partition(":")[0],
        topology=TopologyBuilder(queue)
        .sequenced(how)
        .routing_shards(2)
        .hold_queue(1)
        .dlq()
        .build(),
    )


async def letters_in(broker: Broker, topic: Topic[str]) -> int:
    count, sequence = 0, 1
    while True:
        kept = await broker.backend.next_message(str(topic.topology.dlq), sequence)
        if kept is None:
            return count
        count, sequence = count + 1, kept.sequence + 1


class Place:
    """A queue of its own on the shared server."""

    def __init__(self, cli: Cli, url: str, queue: str) -> None:
        self.cli, self.url, self.queue = cli, url, queue

    def arguments(self, *words: str) -> list[str]:
        command, what, *rest = words
        return [command, what, self.queue, *rest, "--url", self.url]

    def json(self, *words: str, code: int = 0) -> Any:
        return self.cli.json(*self.arguments(*words), code=code)

    def text(self, *words: str, code: int = 0) -> str:
        return self.cli.run(*self.arguments(*words), code=code)

    def error(self, *words: str, code: int) -> str:
        return self.cli.error(*self.arguments(*words), code=code)

    def bury(self, topic: Topic[str], *messages: str) -> None:
        async def reject(message: str) -> Outcome:
            return Reject(reason=f"no {message}")

        async def run() -> None:
            async with open_broker(NatsConfig(self.url)) as broker:
                await broker.declare(topic)
                before = await letters_in(broker, topic)
                await broker.publisher().publish_batch(topic, list(messages))
                async with consuming(broker, topic, reject):
                    with trio.fail_after(20):
                        while await letters_in(broker, topic) < before + len(messages):  # noqa: ASYNC110
                            await trio.sleep(0.02)

        trio.run(run)

    def until_left(self, topic: Topic[str], most: int) -> None:
        """Waits until there are at most so many letters."""

        async def run() -> None:
            async with jetstream.connect(self.url) as js:
                with trio.fail_after(LONG_S):
                    while (await js.stream_info(str(topic.topology.dlq))).messages > most:  # noqa: ASYNC110
                        await trio.sleep(0.002)

        trio.run(run)

    def handled(self, topic: Topic[str], count: int) -> list[str]:
        """What the consumers get when they run again."""
        seen: list[str] = []

        async def run() -> None:
            enough = trio.Event()

            async def handle(message: str) -> Outcome:
                seen.append(message)
                if len(seen) == count:
                    enough.set()
                return Outcome.ACK

            async with open_broker(NatsConfig(self.url)) as broker:
                async with consuming(broker, topic, handle):
                    with trio.fail_after(20):
                        await enough.wait()

        trio.run(run)
        return seen


@pytest.fixture
def place(cli: Cli, server: ServerProcess, fresh_queue: Callable[[], str]) -> Place:
    return Place(cli, server.url, fresh_queue())


def test_list_and_show(place: Place) -> None:
    place.bury(plain(place.queue), "a", "b")
    found = place.json("dlq", "list")
    assert [each["sequence"] for each in found] == [1, 2]
    assert {each["reason"] for each in found} == {"rejected"}
    assert all("payload" not in each for each in found)
    assert place.json("dlq", "list", "--limit", "1", "--reason", "rejected") == found[:1]
    assert place.json("dlq", "list", "--older-than", "1h") == []
    shown = place.json("dlq", "show", "2")
    assert json.loads(shown["payload"]) in ("a", "b")
    assert shown["headers"]["Shove-Death-Reason"] == "rejected"
    text = place.text("dlq", "list")
    assert text.splitlines()[0].split()[:2] == ["sequence", "reason"]
    assert text.endswith("2 dead letters\n")
    assert "payload:" in place.text("dlq", "show", "1")
    assert "dlq list" in place.error("dlq", "show", "9", code=4)


def test_a_payload_that_is_no_text(place: Place) -> None:
    async def store() -> None:
        async with open_broker(NatsConfig(place.url)) as broker:
            await broker.declare(plain(place.queue))
            await broker.publish_service.publish(f"{place.queue}-dlq", bytes(range(256)) * 3, b"")

    trio.run(store)
    shown = place.json("dlq", "show", "1")
    assert base64.b64decode(shown["payload_base64"]) == bytes(range(256)) * 3
    text = place.text("dlq", "show", "1")
    assert "000000  00 01 02" in text
    assert "256 bytes more" in text


def test_export(place: Place, tmp_path: Path) -> None:
    place.bury(plain(place.queue), "a", "b")
    lines = [json.loads(line) for line in place.text("dlq", "export").splitlines()]
    assert sorted(line["payload"] for line in lines) == ['"a"', '"b"']
    file = tmp_path / "letters"
    assert place.text("dlq", "export", "--out", str(file)).startswith("2 dead letters in ")
    assert [json.loads(line) for line in file.read_text().splitlines()] == lines
    assert "name a new file" in place.error("dlq", "export", "--out", str(file), code=2)
    assert place.text("dlq", "export", "--json").splitlines() == file.read_text().splitlines()
    other = tmp_path / "others"
    assert place.json("dlq", "export", "--out", str(other)) == {"exported": 2, "out": str(other)}


def test_replay(place: Place) -> None:
    topic = plain(place.queue)
    place.bury(topic, "a", "b")
    dry = place.json("dlq", "replay", "--dry-run")
    assert (dry["replayed"], dry["dry_run"]) == (2, True)
    assert len(place.json("dlq", "list")) == 2
    assert place.text("dlq", "replay") == "2 replayed\n"
    assert sorted(place.handled(topic, 2)) == ["a", "b"]
    assert place.text("dlq", "list") == "0 dead letters\n"


def test_replay_keeps_the_order_of_a_key(place: Place) -> None:
    """By the queue's name alone: its shards and keys are read from the server."""
    topic = ledger(place.queue)
    messages = [f"{key}:{n}" for n in range(5) for key in ("x", "y", "z")]
    place.bury(topic, *messages)
    assert place.json("dlq", "replay", "--key", "x")["replayed"] == 5
    assert place.json("dlq", "replay")["replayed"] == 10
    handled = place.handled(topic, 15)
    for key in ("x", "y", "z"):
        assert [m for m in handled if m[0] == key] == [f"{key}:{n}" for n in range(5)]


@pytest.mark.slow
def test_a_replay_that_is_killed_is_repeated(place: Place) -> None:
    """Nothing is lost, nothing is stored twice, and the order of each key holds."""
    topic = ledger(place.queue)
    messages = [f"{key}:{n:02}" for n in range(40) for key in ("x", "y", "z")]
    place.bury(topic, *messages)
    for most in (110, 80, 50):
        with started(*place.arguments("dlq", "replay")) as process:
            place.until_left(topic, most)
            process.kill()
    assert place.json("dlq", "list")  # it was cut off
    place.text("dlq", "replay")
    assert place.text("dlq", "list") == "0 dead letters\n"
    handled = place.handled(topic, len(messages))
    assert sorted(handled) == sorted(messages)
    for key in ("x", "y", "z"):
        own = [message for message in handled if message[0] == key]
        assert own == sorted(own)


def test_purge_wants_to_be_confirmed(place: Place) -> None:
    place.bury(plain(place.queue), "a", "b")
    assert "2 dead letters would be deleted" in place.error("dlq", "purge", code=4)
    assert place.json("dlq", "purge", "--dry-run")["deleted"] == 2
    assert len(place.json("dlq", "list")) == 2
    assert place.text("dlq", "purge", "--yes", "--sequence", "1") == "1 deleted\n"
    assert [each["sequence"] for each in place.json("dlq", "list")] == [2]


def test_poisoned_keys_are_listed_and_released_with_their_letters_first(place: Place) -> None:
    topic = ledger(place.queue, SequenceFailure.FAIL_ALL)
    place.bury(topic, "k:1", "k:2")
    place.bury(topic, "m:1")
    found = place.json("poisoned", "list")
    assert [each["key"] for each in found] == ["k", "m"]
    assert found[0]["reason"] == "rejected"
    assert place.text("poisoned", "list").endswith("2 poisoned keys\n")
    stays = place.json("dlq", "replay", code=4)
    assert (stays["replayed"], stays["poisoned_keys"]) == (0, ["k", "m"])
    assert f"poisoned release {place.queue} k m --replay" in place.text("dlq", "replay", code=4)
    assert place.text("poisoned", "release", "m") == "m: released\n"
    assert place.text("poisoned", "release", "m", code=4) == "m: not poisoned\n"
    assert place.json("poisoned", "release", "k", "--replay")["keys"] == {"k": True}
    assert place.handled(topic, 2) == ["k:1", "k:2"]
    assert place.text("poisoned", "release", "--all") == "no key is poisoned\n"


def test_by_the_topic_of_a_module(
    cli: Cli, server: ServerProcess, fresh_queue: Callable[[], str], tmp_path: Path
) -> None:
    queue = fresh_queue()
    name = f"dlq_topic_{queue.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "from shove_actors import *\n"
        f"T = Topic(str, TopologyBuilder({queue!r}).dlq_named({queue + '-graves'!r}).build())\n"
        f"U = Topic(str, TopologyBuilder({queue + '-none'!r}).allow_message_loss().build())\n"
        "BOTH = [T, U]\n"
    )
    where = ("--url", server.url, "--app-dir", str(tmp_path))
    topic = Topic(str, TopologyBuilder(queue).dlq_named(f"{queue}-graves").build())
    Place(cli, server.url, queue).bury(topic, "a")
    assert len(cli.json("dlq", "list", f"{name}:T", *where)) == 1
    assert len(cli.json("dlq", "list", queue, "--dlq", f"{queue}-graves", *where)) == 1
    assert "has no dead-letter queue" in cli.error("dlq", "list", f"{name}:U", *where, code=2)
    assert "several topics" in cli.error("dlq", "list", f"{name}:BOTH", *where, code=2)


def test_what_is_not_there(place: Place) -> None:
    assert "there is no stream" in place.error("dlq", "list", code=2)
    place.bury(plain(place.queue), "a")
    assert "FAIL_ALL" in place.error("poisoned", "list", code=2)
    asked = ("dlq", "list", f"{place.queue}-dlq", "--url", place.url)
    assert f"the topic's own queue: {place.queue}" in place.cli.error(*asked, code=2)
    assert "(--dlq)" in place.error("dlq", "list", "--dlq", "nowhere", code=2)


@pytest.mark.parametrize(
    "words",
    [
        ("dlq", "list", "--reason", "bored"),
        ("dlq", "list", "--older-than", "soon"),
        ("dlq", "list", "--older-than", "-3s"),
        ("dlq", "show", "first"),
        ("poisoned", "release"),
        ("poisoned", "release", "k", "--all"),
        ("dlq", "bury"),
    ],
    ids=" ".join,
)
def test_wrong_usage(place: Place, words: tuple[str, ...]) -> None:
    place.error(*words, code=2)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400)]
)
def test_ages(text: str, seconds: float) -> None:
    from shove_actors.cli._base import AGE

    assert AGE.convert(text, None, None) == seconds
