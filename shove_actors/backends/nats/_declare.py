"""Streams and durables: create what is missing, reconcile what is ours, refuse the rest.

Rules (PC-066, PC-067, PC-068, PC-071): nothing is sent when nothing differs; an update starts from
what the server has, so settings that are not ours survive; immutable differences name the setting,
both values and the way out; a durable with another filter is never edited.

Two kinds of settings would lose messages without a word, so they are nobody's choice: a stream of
ours that discards its oldest messages when full is put right, and a durable that delivers less
than every message whole, or turns away the requests it is read with, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import trio

from shove_actors._errors import (
    ApiError,
    ConsumerNotFound,
    StreamNameInUse,
    StreamNotFound,
    TopicNotDeclared,
    TopologyError,
)
from shove_actors.backends._port import LaneSpec
from shove_actors.jetstream import ConsumerConfig, ConsumerInfo, JetStream, StreamConfig
from shove_actors.messaging import (
    RESHARDED,
    NatsStreamConfig,
    Topology,
    check_collisions,
    declares_shards,
    layout_of,
    matches,
    removed_shard,
    resharded_refusal,
)

from ._marks import bucket_config

#: Retried publishes are recognised for this long.
DUPLICATE_WINDOW_S = 120.0
#: How many durables are created at a time.
CREATE_AT_ONCE = 16
#: A consumer of a work-queue stream overlaps another one (10099, 10100).
_OVERLAP = frozenset({10099, 10100})
_SUBJECTS_OVERLAP = 10065
#: Limits on the requests of a durable. The server answers a larger request with an error, so the
#: lane would wait for ever (or, with `max_bytes`, be served in crumbs).
_REQUEST_LIMITS = ("max_batch", "max_expires", "max_bytes")


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
    for topology in topologies:
        if topology.external:
            await _verify_external(js, topology)
        else:
            # Without a NatsStreamConfig the limits are whoever's who set them.
            owned = topology.stream_config is not None
            await _declare(js, main_stream(topology), owned=owned, shards=topology.routing_shards)
        for config in side_streams(topology):
            # Limits that an operator put on a side stream are the operator's: not reconciled.
            await _declare(js, config, owned=False, shards=0)
        if topology.fails_all:
            config = bucket_config(topology.queue, topology.config.num_replicas)
            await _declare(js, config, owned=topology.stream_config is not None, shards=0)


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


async def _declare(js: JetStream, config: StreamConfig, *, owned: bool, shards: int) -> None:
    for last in (False, True):
        try:
            info = await js.stream_info(config.name)
        except StreamNotFound:
            try:
                await js.create_stream(config)
                return
            except StreamNameInUse:
                # Another process was faster, with other settings: read again and reconcile.
                if last:
                    raise
                continue
            except ApiError as exc:
                if exc.err_code == _SUBJECTS_OVERLAP:
                    raise TopologyError(
                        f"stream {config.name!r} cannot bind {list(config.subjects)}: another "
                        "stream takes (part of) these subjects; rename the topic"
                    ) from exc
                raise
        current = info.config
        _refuse_immutable(config, current)
        changes: dict[str, object] = {}
        if current.discard != config.discard:
            # "old" makes room for a new message by deleting one nobody has handled: not a limit
            # that an operator may choose, whoever owns the others.
            changes["discard"] = config.discard
        if config.name.startswith("KV_") and current.max_age:
            # A poisoned key that is forgotten after a while would be handled again, unasked.
            changes["max_age"] = 0.0
        if owned:
            for name in ("max_age", "max_bytes", "max_msgs", "num_replicas"):
                if getattr(config, name) != getattr(current, name):
                    changes[name] = getattr(config, name)
            if "max_age" in changes and current.duplicate_window:
                # At most what messages live; at least ours; an operator's longer one stays.
                window = max(current.duplicate_window, DUPLICATE_WINDOW_S)
                limit = config.max_age or window
                if min(window, limit) != current.duplicate_window:
                    changes["duplicate_window"] = min(window, limit)
        if set(config.subjects) != set(current.subjects) and _may_bind(
            config, current, info.messages, shards
        ):
            changes["subjects"] = config.subjects
        if changes:
            await js.update_stream(replace(current, **changes))  # type: ignore[arg-type]
        return


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
    sharded = f"{config.name}.shard."
    was = sum(subject.startswith(sharded) for subject in current.subjects)
    if not messages or not (shards or was):
        return
    if bool(shards) != bool(was):
        raise TopologyError(
            f"stream {config.name!r} holds {messages} messages of a "
            f"{'sequenced' if was else 'plain'} topic, and this topic is "
            f"{'sequenced' if shards else 'not'}: they would be handled without their order, or by "
            "nobody. Let the consumers of the old topic drain the stream to 0 messages first, or "
            "use another queue name"
        )
    if messages:
        raise TopologyError(
            f"stream {config.name!r} has {was} shard subjects and still holds {messages} "
            f"messages, but the topic asks for routing_shards({shards}): keys would move between "
            "lanes and lose their order. Stop publishing, let the consumers drain the stream to "
            "0 messages with the old number, then declare again with the new one"
        )


def _refuse_immutable(config: StreamConfig, current: StreamConfig) -> None:
    for name in ("retention", "storage"):
        wanted, actual = getattr(config, name), getattr(current, name)
        if wanted != actual:
            raise TopologyError(
                f"stream {config.name!r} has {name}={actual!r}, the topic wants {wanted!r}; "
                f"{name} cannot be changed. Delete and recreate the stream, use another queue "
                "name, or keep the stream as it is with nats_external_stream()"
            )


# --------------------------------------------------------------------------- durables


def durable_config(spec: LaneSpec) -> ConsumerConfig:
    return ConsumerConfig(
        name=spec.durable,
        durable_name=spec.durable,
        filter_subject=spec.filter_subject,
        ack_wait=spec.ack_wait_s,
        max_ack_pending=spec.max_ack_pending,
    )


async def ensure_durable(js: JetStream, spec: LaneSpec) -> bool:
    """True when it had to be created. See `Backend.open_lane` for errors."""
    try:
        info = await js.consumer_info(spec.stream, spec.durable)
    except StreamNotFound as exc:
        raise _not_declared(spec) from exc
    except ConsumerNotFound:
        await _refuse_removed_shards(js, [spec])
        await _create(js, spec)
        return True
    await _reconcile(js, spec, info)
    return False


async def ensure_durables(js: JetStream, specs: Sequence[LaneSpec]) -> dict[str, str]:
    """`ensure_durable` for many durables of one stream: one listing instead of a look at each.

    Returns when each was made, by name: a later one of the same name is another durable.
    """
    made: dict[str, str] = {}
    if len(specs) < 4:
        for spec in specs:
            await ensure_durable(js, spec)
            made[spec.durable] = (await js.consumer_info(spec.stream, spec.durable)).created
        return made
    known: dict[str, ConsumerInfo] = {}
    try:
        async for info in js.list_consumers(specs[0].stream):
            known[info.name] = info
    except StreamNotFound as exc:
        raise _not_declared(specs[0]) from exc
    await _refuse_removed_shards(js, [spec for spec in specs if spec.durable not in known])
    missing: list[LaneSpec] = []
    for spec in specs:
        found = known.get(spec.durable)
        if found is None:
            missing.append(spec)
        else:
            await _reconcile(js, spec, found)
            made[spec.durable] = found.created
    made.update(await _create_many(js, missing))
    return made


async def _create_many(js: JetStream, specs: Sequence[LaneSpec]) -> dict[str, str]:
    """Some at a time: one after another, 256 of them take seconds. The first failure is raised."""
    made: dict[str, str] = {}
    failures: list[Exception] = []
    waiting = iter(specs)

    async def create_one_after_another(scope: trio.CancelScope) -> None:
        for spec in waiting:
            try:
                made[spec.durable] = (await _create(js, spec)).created
            except Exception as exc:
                failures.append(exc)
                scope.cancel()
                return

    async with trio.open_nursery() as nursery:
        for _ in range(min(CREATE_AT_ONCE, len(specs))):
            nursery.start_soon(create_one_after_another, nursery.cancel_scope)
    if failures:
        raise failures[0]
    return made


async def _refuse_removed_shards(js: JetStream, missing: Sequence[LaneSpec]) -> None:
    """The server would make a durable for a subject that the stream never holds: a consumer that
    was built with another number of shards would run on, idle, instead of saying so.
    """
    sharded = [spec for spec in missing if spec.filter_subject and spec.max_ack_pending == 1]
    if not sharded:
        return
    stream = sharded[0].stream
    try:
        subjects = (await js.stream_info(stream)).config.subjects
    except StreamNotFound as exc:
        raise _not_declared(sharded[0]) from exc
    layout = layout_of(stream, subjects)
    for spec in sharded:
        if layout.shards and spec.filter_subject not in subjects:
            raise removed_shard(stream, str(spec.filter_subject), layout.shards)


async def _create(js: JetStream, spec: LaneSpec) -> ConsumerInfo:
    try:
        return await js.create_consumer(spec.stream, durable_config(spec), action=None)
    except StreamNotFound as exc:
        raise _not_declared(spec) from exc
    except ApiError as exc:
        if exc.err_code in _OVERLAP:
            raise TopologyError(
                f"stream {spec.stream!r} is a work queue and has another consumer for the same "
                f"subjects, so {spec.durable!r} cannot read it. Use one name for all groups of "
                "the topic, or Retention.LIMITS for several independent readers"
            ) from exc
        raise


async def _reconcile(js: JetStream, spec: LaneSpec, info: ConsumerInfo) -> None:
    config = info.config
    where = f"consumer {spec.durable!r} of stream {spec.stream!r}"
    if config.deliver_subject:
        raise TopologyError(f"{where} is a push consumer; delete it, then start again")
    if config.ack_policy != "explicit":
        raise TopologyError(
            f"{where} has ack_policy={config.ack_policy!r}, needed is 'explicit'; delete it"
        )
    actual = config.filter_subject or (config.filter_subjects[0] if config.filter_subjects else "")
    if len(config.filter_subjects) > 1 or (
        actual != (spec.filter_subject or "") and not (actual == ">" and not spec.filter_subject)
    ):
        raise TopologyError(
            f"{where} filters {config.filter_subjects or actual!r}, the topic needs "
            f"{spec.filter_subject or 'no filter'!r}; delete it once its messages are settled"
        )
    _refuse_lossy(where, config)
    changes: dict[str, object] = {}
    if config.ack_wait is None or abs(config.ack_wait - spec.ack_wait_s) > 1e-9 or config.backoff:
        # A backoff list would silently replace ack_wait (PC-027).
        changes["ack_wait"] = spec.ack_wait_s
        changes["backoff"] = ()
    if config.max_ack_pending != spec.max_ack_pending:
        changes["max_ack_pending"] = spec.max_ack_pending
    if config.max_deliver not in (None, -1, 0):
        # A server-side limit strands the message in the stream (PC-033).
        changes["max_deliver"] = -1
    if changes:
        await js.create_consumer(
            spec.stream,
            replace(config, name=spec.durable, **changes),  # type: ignore[arg-type]
            action=None,
        )


def _refuse_lossy(where: str, config: ConsumerConfig) -> None:
    found: list[tuple[str, object, str]] = []
    if config.deliver_policy != "all":
        found.append(("deliver_policy", config.deliver_policy, "'all'"))
    if config.replay_policy != "instant":
        found.append(("replay_policy", config.replay_policy, "'instant'"))
    if config.extra.get("headers_only"):
        found.append(("headers_only", True, "False"))
    for name in _REQUEST_LIMITS:
        limit = config.extra.get(name)
        # The server takes 0 and less for no limit.
        if isinstance(limit, int) and limit > 0:
            found.append((name, limit, "no limit"))
    if found:
        name, actual, wanted = found[0]
        raise TopologyError(
            f"{where} has {name}={actual!r}, needed is {wanted}; delete it once its messages are "
            "settled, then start again: it is made anew with the right settings"
        )


def _not_declared(spec: LaneSpec) -> TopicNotDeclared:
    return TopicNotDeclared(
        f"there is no stream {spec.stream!r}; call `await broker.declare(topic)` before consuming"
    )
