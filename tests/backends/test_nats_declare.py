"""Streams and durables on a real server: made once, reconciled carefully, refused clearly."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from shove_actors._errors import (
    ApiError,
    JetStreamNotEnabled,
    StreamNotFound,
    TopicNotDeclared,
    TopologyError,
)
from shove_actors.backends import LaneSpec
from shove_actors.backends.nats._declare import declare_all
from shove_actors.backends.nats._durables import (
    durable_config,
    ensure_durable,
    ensure_durables,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import ConsumerConfig, JetStream, StreamConfig, connect
from shove_actors.messaging import (
    NatsStreamConfig,
    Retention,
    SequenceFailure,
    Storage,
    Topology,
    TopologyBuilder,
)

Fresh = Callable[[], str]


class Requests:
    """API requests that change something, as the server sees them."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def take(self) -> list[str]:
        seen, self.seen = self.seen, []
        return sorted(seen)


@asynccontextmanager
async def watched(server: ServerProcess) -> AsyncIterator[tuple[JetStream, Requests]]:
    """A connection, and what a second one hears it ask for."""
    requests = Requests()

    def heard(subject: bytes, *rest: object) -> None:
        requests.seen.append(subject.decode().removeprefix("$JS.API."))

    async with connect(server.url) as witness, connect(server.url) as js:
        for verb in ("STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "CONSUMER.CREATE"):
            witness.connection.subscribe(f"$JS.API.{verb}.>".encode(), heard)
        await witness.connection.flush()
        yield js, requests


async def settled(js: JetStream, requests: Requests) -> list[str]:
    """What was asked for since the last look. An answer proves that the witness has heard it."""
    await js.account_info()
    await trio.testing.wait_all_tasks_blocked(0.01)
    return requests.take()


def bounded(queue: str, **settings: Any) -> Topology:
    return TopologyBuilder(queue).nats_stream_config(NatsStreamConfig(**settings)).build()


async def test_everything_is_made_as_promised(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    topology = (
        TopologyBuilder(name)
        .hold_queue(0.25)
        .hold_queue(5)
        .dlq()
        .nats_stream_config(NatsStreamConfig(max_messages=9, max_bytes=9000, max_age=60.0))
        .build()
    )
    async with watched(server) as (js, requests):
        await declare_all(js, [topology])
        names = [name, f"{name}-hold-250ms", f"{name}-hold-5s", f"{name}-dlq"]
        assert await settled(js, requests) == sorted(f"STREAM.CREATE.{n}" for n in names)
        main = (await js.stream_info(name)).config
        assert (main.subjects, main.retention, main.storage) == ((name,), "workqueue", "file")
        assert (main.discard, main.max_msgs, main.max_bytes, main.max_age) == ("new", 9, 9000, 60.0)
        assert main.duplicate_window == 60.0, "never longer than the messages live"
        for hold in names[1:3]:
            config = (await js.stream_info(hold)).config
            assert (config.retention, config.discard) == ("workqueue", "new")
            assert (config.duplicate_window, config.max_age) == (120.0, 0)
        dlq = (await js.stream_info(names[3])).config
        assert (dlq.retention, dlq.discard, dlq.max_age) == ("limits", "new", 0)


async def test_unchanged_sends_nothing(server: ServerProcess, fresh_queue: Fresh) -> None:
    """Although the server fills in defaults (PC-066)."""
    name = fresh_queue()
    topologies = [
        TopologyBuilder(name).hold_queue(5).dlq().build(),
        TopologyBuilder(fresh_queue())
        .sequenced(SequenceFailure.SKIP)
        .allow_message_loss()
        .dlq()
        .build(),
        bounded(fresh_queue(), max_age=30.0, max_bytes=1000, storage=Storage.MEMORY),
        TopologyBuilder(fresh_queue()).nats_subjects([f"{name}.x.*", f"{name}.y"]).build(),
    ]
    async with watched(server) as (js, requests):
        await declare_all(js, topologies)
        assert len(await settled(js, requests)) == 7
        await declare_all(js, topologies)
        await declare_all(js, list(reversed(topologies)))
        assert await settled(js, requests) == []


async def test_mutable_changes_are_applied(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    async with watched(server) as (js, requests):
        await declare_all(js, [bounded(name)])
        first = (await js.stream_info(name)).config
        for settings in (
            {"max_age": 3600.0},
            {"max_age": 30.0},
            {"max_bytes": 10_000, "max_messages": 5},
            {},
        ):
            requests.take()
            await declare_all(js, [bounded(name, **settings)])
            assert await settled(js, requests) == [f"STREAM.UPDATE.{name}"]
            config = (await js.stream_info(name)).config
            assert config.max_age == settings.get("max_age", 0)
            assert config.max_bytes == settings.get("max_bytes", -1)
            assert config.max_msgs == settings.get("max_messages", -1)
            assert config.duplicate_window == min(120.0, settings.get("max_age", 120.0))
        assert (await js.stream_info(name)).config == first


@pytest.mark.parametrize(
    ("settings", "setting", "wanted", "actual"),
    [
        ({"retention": Retention.LIMITS}, "retention", "limits", "workqueue"),
        ({"retention": Retention.INTEREST}, "retention", "interest", "workqueue"),
        ({"storage": Storage.MEMORY}, "storage", "memory", "file"),
    ],
)
async def test_immutable_differences_are_refused(
    server: ServerProcess,
    fresh_queue: Fresh,
    settings: dict[str, Any],
    setting: str,
    wanted: str,
    actual: str,
) -> None:
    name = fresh_queue()
    async with watched(server) as (js, requests):
        await declare_all(js, [TopologyBuilder(name).build()])
        before = (await js.stream_info(name)).config
        requests.take()
        with pytest.raises(TopologyError) as caught:
            await declare_all(js, [bounded(name, max_messages=5, **settings)])
        text = str(caught.value)
        for word in (name, setting, wanted, actual, "nats_external_stream()", "recreate"):
            assert word in text
        assert await settled(js, requests) == [], "not even the mutable part"
        assert (await js.stream_info(name)).config == before


async def test_foreign_settings_survive(server: ServerProcess, fresh_queue: Fresh) -> None:
    """PC-067, on the main stream and on the side streams."""
    name = fresh_queue()
    topology = TopologyBuilder(name).hold_queue(5).dlq().build()
    async with connect(server.url) as js:
        await declare_all(js, [topology])
        operators: dict[str, StreamConfig] = {}
        for stream in topology.stream_names():
            config = (await js.stream_info(stream)).config
            changed = replace(
                config,
                description="ours",
                metadata={"owner": "ops"},
                allow_direct=True,
                max_msg_size=77_000,
                duplicate_window=600.0,
                extra={**config.extra, "compression": "s2", "allow_msg_ttl": True},
            )
            operators[stream] = (await js.update_stream(changed)).config
        await declare_all(js, [topology])
        for stream, config in operators.items():
            assert (await js.stream_info(stream)).config == config
        with_limits = (
            TopologyBuilder(name)
            .hold_queue(5)
            .dlq()
            .nats_stream_config(NatsStreamConfig(max_age=3600.0, max_messages=100))
            .build()
        )
        await declare_all(js, [with_limits])
        now = (await js.stream_info(name)).config
        assert now == replace(operators[name], max_age=3600.0, max_msgs=100)
        assert now.duplicate_window == 600.0
        assert now.extra["compression"] == "s2"


async def test_limits_of_side_streams_are_the_operators(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    name = fresh_queue()
    topology = TopologyBuilder(name).dlq().build()
    async with connect(server.url) as js:
        await declare_all(js, [topology])
        config = (await js.stream_info(f"{name}-dlq")).config
        await js.update_stream(replace(config, max_msgs=1000))
        await declare_all(js, [topology])
        assert (await js.stream_info(f"{name}-dlq")).config.max_msgs == 1000


async def test_subjects_of_somebody_else(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    async with connect(server.url) as js:
        await js.create_stream(StreamConfig(name=fresh_queue(), subjects=(name,)))
        with pytest.raises(TopologyError, match=f"cannot bind.*{name}.*rename"):
            await declare_all(js, [TopologyBuilder(name).build()])


async def test_external_streams_are_verified_only(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    name = fresh_queue()
    topology = TopologyBuilder(name).nats_external_stream().dlq().build()
    async with watched(server) as (js, requests):
        with pytest.raises(TopologyError, match=f"{name}.*external stream.*provision"):
            await declare_all(js, [topology])
        await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.other",)))
        with pytest.raises(TopologyError, match="add that subject"):
            await declare_all(js, [topology])
        config = StreamConfig(name=name, subjects=(f"{name}.other", name), storage="memory")
        await js.update_stream(replace(config, storage="file"))
        requests.take()
        await declare_all(js, [topology])
        assert await settled(js, requests) == [f"STREAM.CREATE.{name}-dlq"]


PROGRAM = """
import sys
import trio
from shove_actors.backends.nats import NatsConfig
from shove_actors.messaging import NatsStreamConfig, TopologyBuilder

async def main(url, queue):
    backend = NatsConfig(url).create_backend()
    topology = (
        TopologyBuilder(queue).hold_queue(1).hold_queue(5).dlq()
        .nats_stream_config(NatsStreamConfig(max_messages=1000)).build()
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(5):
            await backend.declare([topology])
        backend.close()

trio.run(main, *sys.argv[1:])
"""


async def test_eight_processes_at_once(server: ServerProcess, fresh_queue: Fresh) -> None:
    """All connected before the first one begins; an older version of the stream is there."""
    name = fresh_queue()
    async with connect(server.url) as js:
        await declare_all(js, [bounded(name, max_messages=5)])
        processes: list[trio.Process] = []
        try:
            for _ in range(8):
                processes.append(
                    await trio.lowlevel.open_process(
                        [sys.executable, "-c", PROGRAM, server.url, name],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                    )
                )
            for process in processes:
                assert process.stdout is not None
                assert (await process.stdout.receive_some()).strip() == b"ready"
            for process in processes:
                assert process.stdin is not None
                await process.stdin.send_all(b"go\n")
            for process in processes:
                assert process.stderr is not None
                complaint = b"".join([chunk async for chunk in process.stderr])
                assert await process.wait() == 0, complaint.decode()
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()
                for pipe in (process.stdin, process.stdout, process.stderr):
                    if pipe is not None:
                        await trio.aclose_forcefully(pipe)
        assert (await js.stream_info(name)).config.max_msgs == 1000
        assert (await js.stream_info(f"{name}-hold-5s")).messages == 0


async def test_declaring_at_once_with_different_settings(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """Each applies its own; whoever is last wins, nobody fails."""
    name = fresh_queue()
    async with connect(server.url) as js:
        async with trio.open_nursery() as nursery:
            for number in range(1, 9):
                nursery.start_soon(declare_all, js, [bounded(name, max_messages=number)])
        assert (await js.stream_info(name)).config.max_msgs in range(1, 9)


async def test_without_jetstream() -> None:
    with ServerProcess(jetstream=False) as process:
        async with connect(process.url) as js:
            with pytest.raises(JetStreamNotEnabled, match="-js") as caught:
                await declare_all(js, [TopologyBuilder("q").build()])
            assert process.url in str(caught.value)


async def test_more_replicas_than_servers(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(server.url) as js:
        with pytest.raises(ApiError, match="replicas"):
            await declare_all(js, [bounded(fresh_queue(), num_replicas=3)])


# ------------------------------------------------------------------------------ durables


def spec(queue: str, **changes: Any) -> LaneSpec:
    return LaneSpec(stream=queue, durable="d", ack_wait_s=7.0, max_ack_pending=3, **changes)


async def test_durable_is_made_once(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    async with watched(server) as (js, requests):
        with pytest.raises(TopicNotDeclared, match=r"broker\.declare"):
            await ensure_durable(js, spec(name))
        await declare_all(js, [TopologyBuilder(name).build()])
        requests.take()
        assert await ensure_durable(js, spec(name))
        assert await settled(js, requests) == [f"CONSUMER.CREATE.{name}.d"]
        assert not await ensure_durable(js, spec(name))
        assert await settled(js, requests) == []
        config = (await js.consumer_info(name, "d")).config
        assert (config.ack_policy, config.ack_wait, config.max_ack_pending) == ("explicit", 7.0, 3)
        assert config.max_deliver == -1
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ensure_durable, js, spec(name))
        assert await settled(js, requests) == []


async def test_drift_of_a_durable_is_corrected(server: ServerProcess, fresh_queue: Fresh) -> None:
    """PC-027, PC-033, PC-068: what would silently change the promises."""
    name = fresh_queue()
    async with connect(server.url) as js:
        await declare_all(js, [TopologyBuilder(name).build()])
        await js.create_consumer(
            name,
            ConsumerConfig(
                name="d",
                durable_name="d",
                description="by hand",
                ack_wait=30.0,
                max_ack_pending=10,
                max_deliver=4,
                backoff=(1.0, 2.0),
                extra={"metadata": {"owner": "ops"}},
            ),
        )
        assert not await ensure_durable(js, spec(name))
        config = (await js.consumer_info(name, "d")).config
        assert (config.ack_wait, config.max_ack_pending, config.max_deliver) == (7.0, 3, -1)
        assert config.backoff == ()
        assert config.description == "by hand"
        assert config.extra["metadata"]["owner"] == "ops"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"filter_subject": "QUEUE.b"}, "QUEUE.b"),
        ({"filter_subjects": ("QUEUE.a", "QUEUE.b")}, "QUEUE.b"),
        ({"filter_subject": "QUEUE.a", "deliver_subject": "x"}, "push consumer"),
        ({"filter_subject": "QUEUE.a", "ack_policy": "none"}, "ack_policy"),
        ({"filter_subject": "QUEUE.a", "ack_policy": "all"}, "ack_policy"),
    ],
)
async def test_another_durable_is_refused(
    server: ServerProcess, fresh_queue: Fresh, changes: dict[str, Any], word: str
) -> None:
    """Never edited: another filter would skip or repeat messages."""
    name = fresh_queue()

    def named(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(named, value))
        return value.replace("QUEUE", name)

    changes = {key: named(value) for key, value in changes.items()}
    async with connect(server.url) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",)))
        made = await js.create_consumer(name, ConsumerConfig(durable_name="d", **changes))
        with pytest.raises(TopologyError, match="delete it") as caught:
            await ensure_durable(js, spec(name, filter_subject=f"{name}.a"))
        assert named(word) in str(caught.value)
        assert (await js.consumer_info(name, "d")).config == made.config


async def test_two_durables_on_one_work_queue(server: ServerProcess, fresh_queue: Fresh) -> None:
    """PC-071: the other name is refused in words, and on limits retention both are fine."""
    name, other = fresh_queue(), fresh_queue()
    async with connect(server.url) as js:
        topologies = [TopologyBuilder(name).build(), bounded(other, retention=Retention.LIMITS)]
        await declare_all(js, topologies)
        await ensure_durable(js, spec(name))
        second = replace(spec(name), durable="e")
        with pytest.raises(TopologyError, match=r"work queue.*Retention\.LIMITS"):
            await ensure_durable(js, second)
        for durable in ("d", "e"):
            assert await ensure_durable(js, replace(spec(other), durable=durable))
        with pytest.raises(TopicNotDeclared):
            await ensure_durable(js, spec("nowhere"))


async def test_durable_of_a_stream_that_goes_meanwhile(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    name = fresh_queue()
    async with connect(server.url) as js:
        await declare_all(js, [TopologyBuilder(name).build()])
        await ensure_durable(js, spec(name))
        await js.delete_stream(name)
        with pytest.raises(TopicNotDeclared) as caught:
            await ensure_durable(js, spec(name))
        assert isinstance(caught.value.__cause__, StreamNotFound)


def test_durable_config_is_plain() -> None:
    config = durable_config(spec("q", filter_subject="q.shard.1"))
    assert config.wire() == {
        "name": "d",
        "durable_name": "d",
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "replay_policy": "instant",
        "ack_wait": 7_000_000_000,
        "max_ack_pending": 3,
        "filter_subject": "q.shard.1",
    }


@pytest.mark.parametrize("bound", [False, True])
async def test_streams_that_discard_old_messages_are_put_right(
    server: ServerProcess, fresh_queue: Fresh, bound: bool
) -> None:
    """With or without limits of ours: a full stream refuses, it never deletes what nobody saw."""
    name = fresh_queue()
    builder = TopologyBuilder(name).hold_queue(5).dlq()
    if bound:
        builder = builder.nats_stream_config(NatsStreamConfig(max_messages=3))
    topology = builder.build()
    streams = [name, f"{name}-hold-5s", f"{name}-dlq"]
    async with watched(server) as (js, requests):
        for stream in streams:
            await js.create_stream(
                StreamConfig(
                    name=stream,
                    subjects=(stream,),
                    retention="limits" if stream.endswith("-dlq") else "workqueue",
                    discard="old",
                    max_msgs=3,
                    description="by hand",
                )
            )
        requests.take()
        await declare_all(js, [topology])
        assert await settled(js, requests) == sorted(f"STREAM.UPDATE.{s}" for s in streams)
        for stream in streams:
            config = (await js.stream_info(stream)).config
            assert (config.discard, config.max_msgs) == ("new", 3)
            assert config.description == "by hand"
        await declare_all(js, [topology])
        assert await settled(js, requests) == []


async def test_external_stream_may_discard_what_it_likes(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    name = fresh_queue()
    async with watched(server) as (js, requests):
        await js.create_stream(StreamConfig(name=name, subjects=(name,), discard="old"))
        requests.take()
        await declare_all(js, [TopologyBuilder(name).nats_external_stream().build()])
        assert await settled(js, requests) == []
        assert (await js.stream_info(name)).config.discard == "old"


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("changes", "setting", "actual", "wanted"),
    [
        ({"deliver_policy": "new"}, "deliver_policy", "'new'", "'all'"),
        ({"deliver_policy": "last"}, "deliver_policy", "'last'", "'all'"),
        (
            {"deliver_policy": "by_start_sequence", "extra": {"opt_start_seq": 5}},
            "deliver_policy",
            "'by_start_sequence'",
            "'all'",
        ),
        ({"replay_policy": "original"}, "replay_policy", "'original'", "'instant'"),
        ({"extra": {"headers_only": True}}, "headers_only", "True", "False"),
        ({"extra": {"max_batch": 1}}, "max_batch", "1", "no limit"),
        ({"extra": {"max_expires": 1_000_000_000}}, "max_expires", "1000000000", "no limit"),
        ({"extra": {"max_bytes": 10}}, "max_bytes", "10", "no limit"),
    ],
)
async def test_durable_that_would_lose_messages_is_refused(
    server: ServerProcess,
    fresh_queue: Fresh,
    changes: dict[str, Any],
    setting: str,
    actual: str,
    wanted: str,
    many: bool,
) -> None:
    """Skipped, without payload, or never handed out: said at the start, and not edited."""
    name = fresh_queue()
    async with connect(server.url) as js:
        await declare_all(js, [bounded(name, retention=Retention.LIMITS)])
        made = await js.create_consumer(name, ConsumerConfig(durable_name="d", **changes))
        specs = [spec(name), *(replace(spec(name), durable=other) for other in "abc")]
        with pytest.raises(TopologyError) as caught:
            await ensure_durables(js, specs if many else specs[:1])
        text = str(caught.value)
        for part in (f"'d' of stream '{name}'", f"{setting}={actual}", f"needed is {wanted};"):
            assert part in text
        assert "delete it once its messages are settled" in text
        assert (await js.consumer_info(name, "d")).config == made.config
        await js.delete_consumer(name, "d")
        assert await ensure_durable(js, spec(name))


async def test_small_max_waiting_of_a_durable_is_fine(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    name = fresh_queue()
    async with connect(server.url) as js:
        await declare_all(js, [TopologyBuilder(name).build()])
        await js.create_consumer(name, ConsumerConfig(durable_name="d", max_waiting=1))
        assert not await ensure_durable(js, spec(name))
