"""TARGET of `dlq` and `poisoned`: `module:topic`, or the name of a queue that is on the server.

With a name only, the topic is made from what the server shows: its subjects say whether it is
sequenced and of how many shards, a bucket of poisoned keys that it is FAIL_ALL. What only the code
knows is missing then: the type, and the key of a message that does not say it in its header.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from shove_actors import (
    RAW,
    Broker,
    NatsConfig,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    open_broker,
)
from shove_actors._errors import StreamNotFound
from shove_actors.backends.nats._backend import NatsBackend
from shove_actors.jetstream import JetStream, StreamInfo
from shove_actors.messaging import bucket_stream, layout_of, poison_bucket

from ._base import CommandFailed, Exit
from ._load import load_topic
from ._run import until_signal


@asynccontextmanager
async def opened(
    config: NatsConfig, target: str, folder: Path | None, dlq: str | None = None
) -> AsyncIterator[tuple[Broker, Topic[Any]]]:
    """A broker, and the topic that `target` names there. Ends in order by SIGINT or SIGTERM."""
    topic = load_topic(target, folder) if ":" in target else None
    async with until_signal():
        async with open_broker(config, telemetry=None) as broker:
            backend = broker.backend
            assert isinstance(backend, NatsBackend)
            yield broker, topic if topic is not None else await topic_of(backend.js, target, dlq)


async def topic_of(js: JetStream, queue: str, dlq: str | None) -> Topic[Any]:
    """Raises `CommandFailed` if the server has no such queue."""
    info = await _info(js, queue)
    if info is None:
        raise CommandFailed(
            f"there is no stream {queue!r} at {js.connection.server}. `nats stream ls` shows those "
            "that are there; --url names another server",
            Exit.USAGE,
        )
    name = dlq if dlq is not None else f"{queue}-dlq"
    letters = await _info(js, name)
    if letters is None and dlq is not None:
        raise CommandFailed(f"there is no stream {dlq!r} (--dlq)", Exit.USAGE)
    own = queue.removesuffix("-dlq")
    if letters is None and own != queue and await _info(js, own) is not None:
        raise CommandFailed(
            f"{queue!r} is the dead-letter queue itself; give the topic's own queue: {own}",
            Exit.USAGE,
        )
    builder = TopologyBuilder(queue)
    if letters is not None:
        builder = builder.dlq_named(name)
    layout = layout_of(queue, info.config.subjects)
    shards = layout.shards or (layout.under_way[0] if layout.under_way is not None else 0)
    if shards:
        poison = await _info(js, bucket_stream(poison_bucket(queue)))
        how = SequenceFailure.SKIP if poison is None else SequenceFailure.FAIL_ALL
        topology = builder.sequenced(how).routing_shards(shards).allow_message_loss().build()
        return SequencedTopic(bytes, key=_no_key, topology=topology, codec=RAW)
    if info.config.subjects != (queue,):
        builder = builder.nats_subjects(info.config.subjects)
    return Topic(bytes, builder.allow_message_loss().build(), codec=RAW)


async def _info(js: JetStream, stream: str) -> StreamInfo | None:
    try:
        return await js.stream_info(stream)
    except StreamNotFound:
        return None


def _no_key(_: bytes) -> str:
    raise LookupError("only the topic itself knows the key of a message without a key header")
