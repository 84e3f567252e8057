"""Declaring on the memory server: what the conformance checks cannot see from outside."""

from __future__ import annotations

import pytest

from shove_actors._errors import TopologyError
from shove_actors.backends.memory import MemoryServer, StreamSettings
from shove_actors.backends.memory._declare import declare
from shove_actors.messaging import (
    NatsStreamConfig,
    Retention,
    SequenceFailure,
    Storage,
    TopologyBuilder,
)


def test_streams_of_a_topology() -> None:
    server = MemoryServer()
    config = NatsStreamConfig(max_age=60, max_messages=5, num_replicas=3)
    declare(server, [TopologyBuilder("q").nats_stream_config(config).hold_queue(5).dlq().build()])
    main, hold, dlq = (server.streams[n].settings for n in ("q", "q-hold-5s", "q-dlq"))
    assert main == StreamSettings(
        name="q",
        subjects=("q",),
        max_age_s=60,
        max_messages=5,
        num_replicas=3,
        duplicate_window_s=60,
    )
    assert hold == StreamSettings(name="q-hold-5s", subjects=("q-hold-5s",), num_replicas=3)
    assert dlq == StreamSettings(
        name="q-dlq", subjects=("q-dlq",), retention=Retention.LIMITS, num_replicas=3
    )
    assert main.storage is hold.storage is dlq.storage is Storage.FILE


async def test_limits_of_an_operator_survive_on_side_streams(autojump_clock: object) -> None:
    server = MemoryServer()
    topology = TopologyBuilder("q").hold_queue(5).dlq().build()
    declare(server, [topology])
    server.edit_stream("q-dlq", max_messages=1)
    server.edit_stream("q-hold-5s", max_bytes=1000)
    declare(server, [topology])
    assert server.streams["q-dlq"].settings.max_messages == 1
    assert server.streams["q-hold-5s"].settings.max_bytes == 1000


async def test_settings_that_are_not_ours_survive_on_the_main_stream(
    autojump_clock: object,
) -> None:
    """PC-067: the duplicate window is an operator's, until the age forces it down."""
    server = MemoryServer()
    declare(server, [TopologyBuilder("q").build()])
    server.edit_stream("q", duplicate_window_s=600.0)
    bounded = NatsStreamConfig(max_messages=5)
    declare(server, [TopologyBuilder("q").nats_stream_config(bounded).build()])
    assert server.streams["q"].settings.duplicate_window_s == 600.0
    assert server.streams["q"].settings.max_messages == 5
    aged = NatsStreamConfig(max_age=30)
    declare(server, [TopologyBuilder("q").nats_stream_config(aged).build()])
    assert server.streams["q"].settings.duplicate_window_s == 30
    assert server.streams["q"].settings.max_messages is None


def test_a_refusal_changes_nothing() -> None:
    """The second of three topics is refused; not even the first was created."""
    server = MemoryServer()
    server.create_stream(StreamSettings(name="bad", subjects=("bad",), retention=Retention.LIMITS))
    with pytest.raises(TopologyError, match="retention"):
        declare(
            server,
            [TopologyBuilder("good").dlq().build(), TopologyBuilder("bad").build()],
        )
    assert list(server.streams) == ["bad"]


def test_pc070_collisions_are_refused() -> None:
    server = MemoryServer()
    with pytest.raises(TopologyError, match="orders-dlq"):
        declare(
            server,
            [TopologyBuilder("orders").dlq().build(), TopologyBuilder("orders-dlq").build()],
        )
    assert not server.streams


async def test_shards_change_on_an_empty_stream(autojump_clock: object) -> None:
    server = MemoryServer()
    builder = TopologyBuilder("q").sequenced(SequenceFailure.SKIP).allow_message_loss()
    declare(server, [builder.routing_shards(2).build()])
    server.publish("q.shard.1", b"")
    with pytest.raises(TopologyError) as caught:
        declare(server, [builder.routing_shards(3).build()])
    for words in ("routing_shards(3)", "2 shard subjects", "1 messages", "drain"):
        assert words in str(caught.value)
    server.streams["q"].purge()
    declare(server, [builder.routing_shards(3).build()])
    assert server.publish("q.shard.2", b"").sequence == 2


def test_external_stream() -> None:
    server = MemoryServer()
    topology = TopologyBuilder("q").nats_external_stream().dlq().build()
    with pytest.raises(TopologyError, match="does not exist"):
        declare(server, [topology])
    assert not server.streams
    server.create_stream(StreamSettings(name="q", subjects=("other",)))
    with pytest.raises(TopologyError, match="does not take subject 'q'"):
        declare(server, [topology])
    server.delete_stream("q")
    owners = StreamSettings(
        name="q", subjects=("*",), retention=Retention.LIMITS, storage=Storage.MEMORY
    )
    server.create_stream(owners)
    with pytest.raises(TopologyError, match="overlaps"):
        declare(server, [topology])
    server.delete_stream("q")
    server.create_stream(StreamSettings(name="q", subjects=("q", "q.>"), max_messages=3))
    before = server.streams["q"].settings
    declare(server, [topology])
    assert server.streams["q"].settings is before
    assert "q-dlq" in server.streams
