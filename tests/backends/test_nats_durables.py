"""Durables on a real server: made once, reconciled carefully, refused clearly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from shove_actors._errors import StreamNotFound, TopicNotDeclared, TopologyError
from shove_actors.backends import LaneSpec
from shove_actors.backends.nats import _durables
from shove_actors.backends.nats._declare import declare_all
from shove_actors.backends.nats._durables import (
    Found,
    durable_config,
    ensure_durable,
    ensure_durables,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import ConsumerConfig, JetStream, StreamConfig, connect
from shove_actors.messaging import Retention, TopologyBuilder

from .nats_requests import Fresh, bounded, settled, watched


def spec(queue: str, **changes: Any) -> LaneSpec:
    return LaneSpec(stream=queue, durable="d", ack_wait_s=7.0, max_ack_pending=3, **changes)


async def test_durable_is_made_once(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    async with watched(server) as (js, requests):
        with pytest.raises(TopicNotDeclared, match=r"broker\.declare"):
            await ensure_durable(js, spec(name))
        await declare_all(js, [TopologyBuilder(name).build()])
        await settled(js, requests)
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
        assert (config.metadata or {})["owner"] == "ops"


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
        made = await js.put_consumer(name, ConsumerConfig(durable_name="d", **changes))
        with pytest.raises(TopologyError, match="delete it") as caught:
            await ensure_durable(js, spec(name, filter_subject=f"{name}.a"))
        assert named(word) in str(caught.value)
        assert (await js.consumer_info(name, "d")).config == made.config


async def asked(js: JetStream, name: str) -> None:
    """Somebody waits for messages."""
    publish = f"$JS.API.CONSUMER.MSG.NEXT.{name}.d".encode()
    inbox = js.connection.new_inbox()
    js.connection.subscribe(inbox, lambda *_: None)
    assert js.connection.publish(publish, b'{"batch":1,"expires":20000000000}', inbox)
    await js.connection.flush()
    while not (await js.consumer_info(name, "d")).num_waiting:
        pass


async def test_who_makes_a_durable_makes_no_other_one_shorter(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """Both have seen that there was none."""
    name = fresh_queue()
    long = replace(spec(name), ack_wait_s=30.0)
    short = replace(long, ack_wait_s=1.5)
    async with connect(server.url) as js:
        await declare_all(js, [TopologyBuilder(name).build()])
        await _durables._create(js, long)
        await asked(js, name)
        assert (await _durables._create(js, short)).config.ack_wait == 30.0
        assert (await js.consumer_info(name, "d")).config.ack_wait == 30.0


async def test_a_lease_that_was_shortened_unseen(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    long = replace(spec(name), ack_wait_s=30.0)
    short = replace(long, ack_wait_s=1.5)
    async with connect(server.url) as js:
        await declare_all(js, [TopologyBuilder(name).build()])
        await ensure_durable(js, long)
        looked = await js.consumer_info(name, "d")
        # It begins to wait between the other one's look and its write: taken back.
        await asked(js, name)
        await _durables._reconcile(js, short, looked)
        assert (await js.consumer_info(name, "d")).config.ack_wait == 30.0
        # It begins after both: it lengthens it itself.
        await js.put_consumer(name, replace(looked.config, name="d", ack_wait=1.5))
        await _durables.look_again(js, [long, replace(long, durable="e")])
        assert (await js.consumer_info(name, "d")).config.ack_wait == 30.0
        await _durables.look_again(js, [short])
        assert (await js.consumer_info(name, "d")).config.ack_wait == 30.0


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
        ({"extra": {"max_expires": 1_000_000_000}}, "max_expires", "1.0", "no limit"),
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
        made = await js.put_consumer(name, ConsumerConfig(durable_name="d", **changes))
        specs = [spec(name), *(replace(spec(name), durable=other) for other in "abc")]
        with pytest.raises(TopologyError) as caught:
            await ensure_durables(js, specs if many else specs[:1], Found())
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
