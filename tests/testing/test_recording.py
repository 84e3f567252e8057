"""Recording histories, on both backends; keeping them in files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from shove_actors import (
    MemoryConfig,
    MemoryServer,
    NatsConfig,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    open_broker,
)
from shove_actors._errors import UsageError
from shove_actors.embedded import ServerProcess
from shove_actors.testing import (
    Event,
    History,
    HistoryRules,
    check_history,
    recording,
    take_inventory,
)


class Note(msgspec.Struct):
    number: int
    key: str


def sequenced(queue: str) -> SequencedTopic[Note]:
    topology = TopologyBuilder(queue).sequenced(SequenceFailure.SKIP).routing_shards(2)
    return SequencedTopic(
        Note, key=lambda note: note.key, topology=topology.hold_queue(0.2).dlq().build()
    )


async def record(config: MemoryConfig | NatsConfig, topic: Topic[Note], path: Path) -> History:
    history = History(path=path)
    handled = trio.Event()

    async def handle(note: Note, metadata: object, context: object) -> Outcome:
        if note.number == 3:
            return Outcome.REJECT
        if note.number == 4 and getattr(metadata, "retry_count", 0) == 0:
            raise ValueError("once")
        if note.number == 6:
            handled.set()
        return Outcome.ACK

    with recording(history, "one") as recorder:
        async with open_broker(config) as broker:
            await broker.declare(topic)
            publisher = recorder.publisher(broker.publisher())
            async with trio.open_nursery() as nursery:
                group = broker.consumer_group()
                group.register(topic, recorder.handler(topic, handle))
                await nursery.start(group.serve)
                await publisher.publish(topic, Note(1, "a"), message_id="first")
                again = await publisher.publish(topic, Note(1, "a"), message_id="first")
                assert again.duplicate
                await publisher.publish_batch(topic, [Note(n, "a") for n in (2, 3, 4, 5, 6)])
                with trio.fail_after(30):
                    await handled.wait()
                group.stop()
            await publisher.publish(topic, Note(7, "b"))
            await take_inventory(history, broker, topic)
    history.close()
    return history


def judge(history: History, path: Path) -> None:
    assert check_history(history, HistoryRules(max_retries=10), complete=True) is None
    assert History.read(path).to_lines() == history.to_lines()
    assert history.count("published") == 8
    assert history.count("dead") == 1
    assert [e.id for e in history if e.kind == "remaining"] == ["one-6"]
    outcomes = [e.outcome for e in history if e.kind == "ended"]
    assert outcomes == ["ack", "ack", "reject", "raised", "ack", "ack", "ack"]
    # A single false word, and it is found.
    events = list(history)
    lost = [e for e in events if not (e.kind == "remaining" or e.id == "one-6")]
    lost.append(next(e for e in events if e.kind == "published" and e.id == "one-6"))
    violation = check_history(lost, complete=True)
    assert violation is not None
    assert violation.rule == "L"


async def test_in_memory(autojump_clock: trio.testing.MockClock, tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    config = MemoryConfig(server=MemoryServer())
    judge(await record(config, sequenced("q"), path), path)


async def test_on_a_server(
    server: ServerProcess, fresh_queue: Callable[[], str], tmp_path: Path
) -> None:
    path = tmp_path / "one.jsonl"
    judge(await record(NatsConfig(server.url), sequenced(fresh_queue()), path), path)


def test_lines_of_several_processes_are_merged_by_time(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    History([Event("opened", 1.0, "one"), Event("crashed", 3.0, "one")]).write(one)
    History([Event("opened", 2.0, "two")]).write(two)
    assert [e.time for e in History.read(one, two)] == [1.0, 2.0, 3.0]


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_bytes(History([Event("opened", 1.0, "one")]).to_lines() + b'{"kind":"star')
    assert len(History.read(path)) == 1
    path.write_bytes(b'{"kind":"star\n' + History([Event("opened", 1.0, "one")]).to_lines())
    with pytest.raises(UsageError, match="line 1"):
        History.read(path)
    with pytest.raises(UsageError, match="line 1"):
        History.from_lines(['{"kind":"unheard-of"}'])


def test_a_line_is_plain_json() -> None:
    line = History([Event("started", 1.5, "w", "q", "m", "k", 0, 3, 1)]).to_lines()
    assert json.loads(line) == {
        "kind": "started",
        "time": 1.5,
        "process": "w",
        "topic": "q",
        "id": "m",
        "key": "k",
        "shard": 0,
        "sequence": 3,
        "attempt": 1,
    }
