"""Streams on a real server: made once, reconciled carefully, refused clearly."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from shove_actors._errors import JetStreamNotEnabled, TopologyError
from shove_actors.backends.nats._declare import declare_all
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import StreamConfig, connect
from shove_actors.messaging import (
    NatsStreamConfig,
    Retention,
    SequenceFailure,
    Storage,
    TopologyBuilder,
)

from .nats_requests import Fresh, bounded, settled, watched


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
            await settled(js, requests)
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
        await settled(js, requests)
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
        assert now.compression == "s2"


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
        await settled(js, requests)
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
        name = fresh_queue()
        with pytest.raises(TopologyError, match=rf"{name}.*num_replicas=3.*cluster.*keeps 1"):
            await declare_all(js, [bounded(name, num_replicas=3)])
        await declare_all(js, [bounded(name)])
        with pytest.raises(TopologyError, match=r"num_replicas=3 \(it has 1\).*num_replicas=1"):
            await declare_all(js, [bounded(name, num_replicas=3)])


# ------------------------------------------------------------------------------ durables


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
        await settled(js, requests)
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
        await settled(js, requests)
        await declare_all(js, [TopologyBuilder(name).nats_external_stream().build()])
        assert await settled(js, requests) == []
        assert (await js.stream_info(name)).config.discard == "old"
