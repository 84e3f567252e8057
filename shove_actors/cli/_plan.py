"""What `declare` would do on a server, found out by letting it do so without sending anything.

The decisions are those of `backends/nats/_declare.py` itself: it runs against `_DryRun`, which asks
the server what is there and keeps what would be created or changed. So a plan cannot differ from
what is carried out, except by what others do meanwhile.

`differences` is another question: in what does the server differ from the topics, whoever's
business that is? A limit that an operator has set is a difference, and `declare` leaves it alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, cast

from shove_actors import FeatureUnavailable, Topic, TopologyError
from shove_actors._errors import StreamNotFound
from shove_actors.backends.nats._declare import declare_all, main_stream, side_streams
from shove_actors.backends.nats._marks import bucket_config
from shove_actors.backends.nats._owners import owners_config
from shove_actors.jetstream import JetStream, StreamConfig, StreamInfo
from shove_actors.messaging import Topology, check_collisions

Kind = Literal["create", "update", "keep", "refused"]

#: What is compared; whatever else a stream has is its operator's.
COMPARED: Final = (
    "subjects",
    "retention",
    "storage",
    "discard",
    "max_msgs",
    "max_bytes",
    "max_age",
    "max_msgs_per_subject",
    "num_replicas",
    "duplicate_window",
)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One setting. `was` None: there is no such stream yet."""

    setting: str
    was: Any
    will: Any

    def as_dict(self) -> dict[str, Any]:
        return {"setting": self.setting, "was": _plain(self.was), "will": _plain(self.will)}


@dataclass(frozen=True, kw_only=True)
class Step:
    """What becomes of one stream. `why`: of a refusal, with the way out."""

    topic: str
    stream: str
    kind: Kind
    changes: tuple[Change, ...] = ()
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "stream": self.stream,
            "action": self.kind,
            "changes": [change.as_dict() for change in self.changes],
            "why": self.why or None,
        }


@dataclass(frozen=True, kw_only=True)
class Difference:
    """`setting` "": the whole stream or consumer, as `server` says."""

    topic: str
    name: str
    setting: str
    topic_has: Any
    server_has: Any

    def as_dict(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "name": self.name,
            "setting": self.setting or None,
            "topic_has": _plain(self.topic_has),
            "server_has": _plain(self.server_has),
        }


#: What may be asked while planning.
_READS: Final = frozenset(
    {
        "account_info",
        "clock",
        "connection",
        "consumer_info",
        "get_last_message",
        "get_message",
        "list_consumers",
        "next_message",
        "stream_name_by_subject",
        "stream_names",
    }
)


class _DryRun:
    """A `JetStream` that changes nothing: it keeps what it is told to create and to update."""

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self.created: dict[str, StreamConfig] = {}
        self.updated: dict[str, StreamConfig] = {}
        #: Every stream that was looked at or made, in order.
        self.streams: dict[str, None] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in _READS:
            # Whatever else `declare` comes to do is thought of here before it is done for real.
            raise AttributeError(f"a plan does not know whether {name} changes anything")
        return getattr(self._js, name)

    async def create_stream(self, config: StreamConfig) -> None:
        self.streams[config.name] = None
        self.created[config.name] = config

    async def update_stream(self, config: StreamConfig) -> None:
        self.streams[config.name] = None
        self.updated[config.name] = config

    async def stream_info(self, name: str) -> StreamInfo:
        if name in self.created:
            return StreamInfo.read({"config": self.created[name].wire(), "state": {}})
        found = await self._js.stream_info(name)
        self.streams[name] = None
        return found


async def plan(js: JetStream, topics: Iterable[Topic[Any]]) -> list[Step]:
    """One step per stream, in the order of `declare`; one for a topic that is refused.

    Raises `TopologyError` for topics that exclude each other.
    """
    steps: list[Step] = []
    topics = list(topics)
    check_collisions([topic.topology for topic in topics])
    for topic in topics:
        dry = _DryRun(js)
        try:
            await declare_all(cast("JetStream", dry), [topic.topology])
        except (TopologyError, FeatureUnavailable) as exc:
            steps.append(Step(topic=topic.queue, stream=topic.queue, kind="refused", why=str(exc)))
            continue
        for stream in dry.streams:
            steps.append(await _step(js, topic.queue, stream, dry))
    return steps


async def _step(js: JetStream, topic: str, stream: str, dry: _DryRun) -> Step:
    if stream in dry.created:
        config = dry.created[stream]
        changes = tuple(
            Change(setting=name, was=None, will=value)
            for name in COMPARED
            if (value := getattr(config, name)) not in (None, -1, 0.0, ())
        )
        return Step(topic=topic, stream=stream, kind="create", changes=changes)
    if stream in dry.updated:
        now, will = (await js.stream_info(stream)).config, dry.updated[stream]
        changed = tuple(
            Change(setting=item.name, was=getattr(now, item.name), will=getattr(will, item.name))
            for item in fields(will)
            if getattr(now, item.name) != getattr(will, item.name)
        )
        return Step(topic=topic, stream=stream, kind="update", changes=changed)
    return Step(topic=topic, stream=stream, kind="keep")


async def differences(js: JetStream, topics: Iterable[Topic[Any]]) -> list[Difference]:
    """In what the server differs from the topics: settings, what is missing, what is left over."""
    found: list[Difference] = []
    names = [name async for name in js.stream_names()]
    for topic in topics:
        found += [each async for each in _of_topic(js, topic, names)]
    return found


async def _of_topic(
    js: JetStream, topic: Topic[Any], names: list[str]
) -> AsyncIterator[Difference]:
    topology, queue = topic.topology, topic.queue
    configs = [] if topology.external else [main_stream(topology)]
    configs += side_streams(topology)
    if topology.fails_all:
        configs.append(bucket_config(queue, topology.config.num_replicas))
    if topology.owners_bucket is not None:
        configs.append(owners_config(topology.owners_bucket, topology.config.num_replicas))
    for config in configs:
        try:
            info = await js.stream_info(config.name)
        except StreamNotFound:
            yield Difference(
                topic=queue,
                name=config.name,
                setting="",
                topic_has="a stream",
                server_has="none of that name",
            )
            continue
        for each in _settings(queue, config, info.config):
            yield each
    own = {config.name for config in configs}
    for name in names:
        if name not in own and (name.startswith(f"{queue}-hold-") or name == f"{queue}-dlq"):
            info = await js.stream_info(name)
            yield Difference(
                topic=queue,
                name=name,
                setting="",
                topic_has="no such stream",
                server_has=f"one with {info.messages:,} messages",
            )
    if queue in names:
        async for each in _consumers(js, topology):
            yield each


def _settings(topic: str, wanted: StreamConfig, actual: StreamConfig) -> Iterator[Difference]:
    for name in COMPARED:
        ours, theirs = getattr(wanted, name), getattr(actual, name)
        if name == "subjects":
            ours, theirs = tuple(sorted(ours)), tuple(sorted(theirs))
        if ours is not None and ours != theirs:
            yield Difference(
                topic=topic, name=wanted.name, setting=name, topic_has=ours, server_has=theirs
            )


async def _consumers(js: JetStream, topology: Topology) -> AsyncIterator[Difference]:
    """Durables that no process of this topic reads: left by another number of shards, say."""
    if topology.external or topology.config.retention.value != "workqueue":
        return  # others may read it, too
    shards = range(topology.routing_shards)
    own = {topology.shard_durable(n) for n in shards} if topology.sequenced else {topology.durable}
    async for info in js.list_consumers(topology.queue):
        if info.name not in own:
            yield Difference(
                topic=topology.queue,
                name=info.name,
                setting="",
                topic_has="no such consumer",
                server_has=f"one with {info.num_pending + info.num_ack_pending:,} messages to do",
            )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (tuple, set, frozenset)) else value
