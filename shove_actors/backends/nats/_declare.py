"""Streams: create what is missing, reconcile what is ours, refuse the rest.

Rules (PC-066, PC-067, PC-068): nothing is sent when nothing differs; an update starts from what the
server has, so settings that are not ours survive; immutable differences name the setting, both
values and the way out.

A stream that discards its oldest messages when full would lose messages without a word, so that is
nobody's choice: it is put right. Durables are `_durables.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shove_actors._errors import (
    ApiError,
    StreamNameInUse,
    StreamNotFound,
    TopologyError,
)
from shove_actors.backends._other_kind import is_hold_of, kind_refusal
from shove_actors.backends._policy import policy_began
from shove_actors.jetstream import JetStream, StreamConfig, StreamInfo
from shove_actors.messaging import (
    RESHARDED,
    NatsStreamConfig,
    Topology,
    check_collisions,
    declares_shards,
    layout_of,
    matches,
    resharded_refusal,
    skip_refusal,
)

from ._features import BASE, KEYED, LOWERED, MAX_BYTES, require
from ._marks import bucket_config, keeps_marks
from ._owners import ensure_owners
from ._refused import explained, no_cluster

#: Retried publishes are recognised for this long.
DUPLICATE_WINDOW_S = 120.0

#: What a NatsStreamConfig decides of a topic's own stream, and of its hold queues and its DLQ.
_LIMITS: Sequence[str] = ("max_age", "max_bytes", "max_msgs", "num_replicas")
_REPLICAS: Sequence[str] = ("num_replicas",)


def _window(max_age: float) -> float:
    # The server refuses a window longer than the messages live.
    return min(DUPLICATE_WINDOW_S, max_age) if max_age else DUPLICATE_WINDOW_S


def main_stream(topology: Topology) -> StreamConfig:
    settings = topology.stream_config or NatsStreamConfig()
    max_age = settings.max_age or 0.0
    return StreamConfig(
        name=topology.queue,
        subjects=tuple(topology.publish_subjects),
        retention=settings.retention.value,
        storage=settings.storage.value,
        discard="new",
        max_msgs=-1 if settings.max_messages is None else settings.max_messages,
        max_bytes=-1 if settings.max_bytes is None else settings.max_bytes,
        max_age=max_age,
        num_replicas=settings.num_replicas,
        duplicate_window=_window(max_age),
    )


def side_streams(topology: Topology) -> list[StreamConfig]:
    """Hold queues are work queues; the DLQ keeps what it has, so that it can be browsed."""
    replicas = topology.stream_config.num_replicas if topology.stream_config else 1
    found = [
        StreamConfig(
            name=hold.name,
            subjects=(hold.name,),
            retention="workqueue",
            discard="new",
            num_replicas=replicas,
            duplicate_window=DUPLICATE_WINDOW_S,
        )
        for hold in topology.holds
    ]
    if topology.dlq is not None:
        found.append(
            StreamConfig(
                name=topology.dlq,
                subjects=(topology.dlq,),
                retention="limits",
                discard="new",
                num_replicas=replicas,
                duplicate_window=DUPLICATE_WINDOW_S,
            )
        )
    return found


async def declare_all(js: JetStream, topologies: Sequence[Topology]) -> None:
    check_collisions(topologies)
    require(js.connection, BASE)
    for topology in topologies:
        if topology.keyed is not None:
            require(js.connection, KEYED)
        if topology.stream_config is not None and topology.stream_config.max_bytes is not None:
            require(js.connection, MAX_BYTES)
        if topology.sequenced and not topology.fails_all:
            await refuse_skip(js, topology.queue)
        if topology.external:
            await _verify_external(js, topology)
        else:
            # Without a NatsStreamConfig the limits are whoever's who set them.
            owned: Sequence[str] = _LIMITS if topology.stream_config is not None else ()
            await _declare(js, main_stream(topology), owned=owned, shards=topology.routing_shards)
        for config in side_streams(topology):
            # Limits that an operator put on a side stream are the operator's: not reconciled. Its
            # copies are the topic's: a retry waits there, which is to survive what the queue does.
            owned = _REPLICAS if topology.stream_config is not None else ()
            await _declare(js, config, owned=owned, shards=0)
        if topology.owners_bucket is not None:
            await ensure_owners(js, topology.owners_bucket, topology.queue)
        if topology.fails_all:
            config = bucket_config(topology.queue, topology.config.num_replicas)
            # Looked at before: a process that declares at the same time consumes afterwards.
            in_use = (await js.stream_info(topology.queue)).consumer_count
            owned = _LIMITS if topology.stream_config is not None else ()
            if await _declare(js, config, owned=owned, shards=0) and in_use:
                policy_began(topology.queue)
        if topology.config.num_replicas > 1:
            for name in topology.note_streams():
                await _as_many_copies(js, name, topology.config.num_replicas)


async def _as_many_copies(js: JetStream, name: str, replicas: int) -> None:
    """Of a stream that was made with as many as its topic's had then."""
    try:
        current = (await js.stream_info(name)).config
    except StreamNotFound:
        return  # made when it is needed
    if current.num_replicas != replicas:
        config = replace(current, num_replicas=replicas)
        try:
            await js.update_stream(config)
        except ApiError as exc:
            why = explained(exc, config, {"num_replicas": replicas}, current)
            raise why from (exc if why is not exc else exc.__cause__)


async def _verify_external(js: JetStream, topology: Topology) -> None:
    try:
        info = await js.stream_info(topology.queue)
    except StreamNotFound as exc:
        raise TopologyError(
            f"topic {topology.queue!r} uses an external stream, but there is no stream of that "
            "name; provision it first, or drop nats_external_stream()"
        ) from exc
    if not any(matches(pattern, topology.queue) for pattern in info.config.subjects):
        raise TopologyError(
            f"external stream {topology.queue!r} binds {list(info.config.subjects)}, which does "
            f"not take the topic's subject {topology.queue!r}; add that subject to the stream"
        )


async def refuse_skip(js: JetStream, queue: str) -> None:
    """Raises `TopologyError` where a topic without FAIL_ALL has no business."""
    if await keeps_marks(js, queue):
        raise skip_refusal(queue)


async def _declare(
    js: JetStream, config: StreamConfig, *, owned: Sequence[str], shards: int
) -> bool:
    """True when it was made. `owned`: the settings that are brought to what `config` says."""
    for last in (False, True):
        try:
            info = await js.stream_info(config.name)
        except StreamNotFound:
            try:
                await js.create_stream(config)
                return True
            except StreamNameInUse:
                # Another process was faster, with other settings: read again and reconcile.
                if last:
                    raise
                continue
            except ApiError as exc:
                why = explained(exc, config, {}, None)
                raise why from (exc if why is not exc else exc.__cause__)
        current = info.config
        _refuse_immutable(config, current)
        await _refuse_other_kind(js, info, shards)
        changes: dict[str, object] = {}
        if current.discard != config.discard:
            # "old" makes room for a new message by deleting one nobody has handled: not a limit
            # that an operator may choose, whoever owns the others.
            changes["discard"] = config.discard
        if config.name.startswith("KV_") and current.max_age:
            # A poisoned key that is forgotten after a while would be handled again, unasked.
            changes["max_age"] = 0.0
        for name in owned:
            if getattr(config, name) != getattr(current, name):
                changes[name] = getattr(config, name)
        if "max_age" in owned and current.duplicate_window:
            # At most what messages live; at least ours; an operator's longer one stays.
            window = max(current.duplicate_window, DUPLICATE_WINDOW_S)
            limit = config.max_age or window
            if min(window, limit) != current.duplicate_window:
                changes["duplicate_window"] = min(window, limit)
        if config.num_replicas > 1 and "num_replicas" in changes and info.cluster is None:
            # Servers before 2.10 take it, and keep one copy without a word.
            raise no_cluster(config.name, config.num_replicas, f" (it has {current.num_replicas})")
        if set(config.subjects) != set(current.subjects) and _may_bind(
            config, current, info.messages, shards
        ):
            changes["subjects"] = config.subjects
        for name, stored in (("max_msgs", info.messages), ("max_bytes", info.bytes)):
            if name in changes and 0 <= getattr(config, name) < stored:
                require(js.connection, LOWERED)
        if changes:
            try:
                await js.update_stream(replace(current, **changes))  # type: ignore[arg-type]
            except ApiError as exc:
                why = explained(exc, config, changes, current)
                raise why from (exc if why is not exc else exc.__cause__)
        break
    return False


def _may_bind(config: StreamConfig, current: StreamConfig, messages: int, shards: int) -> bool:
    layout = layout_of(config.name, current.subjects)
    if layout.under_way is not None:
        return declares_shards(config.name, shards, layout, messages)
    if layout.shards and RESHARDED in (current.metadata or {}):
        raise resharded_refusal(config.name, layout.shards, shards)
    _check_subjects(config, current, messages, shards)
    return True


def _check_subjects(
    config: StreamConfig, current: StreamConfig, messages: int, shards: int
) -> None:
    was = layout_of(config.name, current.subjects).shards
    if not messages or not (shards or was):
        return
    raise TopologyError(
        f"stream {config.name!r} has {was} shard subjects and still holds {messages} "
        f"messages, but the topic asks for routing_shards({shards}): keys would move between "
        "lanes and lose their order. Stop publishing, let the consumers drain the stream to "
        "0 messages with the old number, then declare again with the new one"
    )


async def _refuse_other_kind(js: JetStream, info: StreamInfo, shards: int) -> None:
    queue = info.config.name
    layout = layout_of(queue, info.config.subjects)
    if layout.under_way is not None or bool(layout.shards) == bool(shards):
        return
    # Also the hold queues that only the old topic has: nobody would declare them any more.
    holds = [name async for name in js.stream_names() if is_hold_of(queue, name)]
    refusal = kind_refusal(
        queue,
        sequenced=bool(shards),
        stored=info.messages,
        held={name: (await js.stream_info(name)).messages for name in holds},
        durables=[each.name async for each in js.list_consumers(queue)],
    )
    if refusal is not None:
        raise refusal


def _refuse_immutable(config: StreamConfig, current: StreamConfig) -> None:
    for name in ("retention", "storage"):
        wanted, actual = getattr(config, name), getattr(current, name)
        if wanted != actual:
            raise TopologyError(
                f"stream {config.name!r} has {name}={actual!r}, the topic wants {wanted!r}; "
                f"{name} cannot be changed. Delete and recreate the stream, use another queue "
                "name, or keep the stream as it is with nats_external_stream()"
            )
