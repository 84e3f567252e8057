"""Creating and reconciling the streams of topologies, as `declare` promises.

First everything is checked, then everything is done: a refusal leaves the server as it was.

Of a stream that exists, the subjects and, for a main stream that has a `NatsStreamConfig`, its four
mutable settings are brought into line. Limits that an operator set on a hold queue or a
dead-letter queue stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from shove_actors._errors import TopologyError
from shove_actors.backends._other_kind import is_hold_of, kind_refusal
from shove_actors.backends._policy import policy_began
from shove_actors.messaging import (
    Retention,
    Topology,
    check_collisions,
    declares_shards,
    layout_of,
    overlap,
    resharded_refusal,
    skip_refusal,
)

from ._server import MemoryServer
from ._stream import Stream, StreamSettings


def declare(server: MemoryServer, topologies: Sequence[Topology]) -> None:
    """Raises `TopologyError`; then nothing was created or changed."""
    check_collisions(topologies)
    steps: list[Callable[[], object]] = []
    for topology in topologies:
        if topology.external:
            _verify_external(server, topology)
        else:
            steps += _plan(server, main_settings(topology), topology)
        for settings in side_settings(topology):
            steps += _plan(server, settings, None)
        if topology.fails_all:
            if not server.marks.exist(topology.queue):
                stream = server.streams.get(topology.queue)
                if stream is not None and stream.durables:
                    steps.append(partial(policy_began, topology.queue))
                steps.append(partial(server.marks.make, topology.queue))
        elif topology.sequenced and server.marks.exist(topology.queue):
            raise skip_refusal(topology.queue)
    for step in steps:
        step()


def main_settings(topology: Topology) -> StreamSettings:
    config = topology.config
    return StreamSettings(
        name=topology.queue,
        subjects=topology.publish_subjects,
        retention=config.retention,
        storage=config.storage,
        max_messages=config.max_messages,
        max_bytes=config.max_bytes,
        max_age_s=config.max_age,
        num_replicas=config.num_replicas,
        duplicate_window_s=config.duplicate_window_s,
    )


def side_settings(topology: Topology) -> list[StreamSettings]:
    """Hold queues are work queues. Dead letters stay after their acknowledgement, to be browsed."""
    replicas = topology.config.num_replicas
    side = [
        StreamSettings(name=hold.name, subjects=(hold.name,), num_replicas=replicas)
        for hold in topology.holds
    ]
    if topology.dlq is not None:
        side.append(
            StreamSettings(
                name=topology.dlq,
                subjects=(topology.dlq,),
                retention=Retention.LIMITS,
                num_replicas=replicas,
            )
        )
    return side


def _plan(
    server: MemoryServer, wanted: StreamSettings, topology: Topology | None
) -> list[Callable[[], object]]:
    stream = server.streams.get(wanted.name)
    if stream is None:
        server.check_overlap(wanted)
        return [partial(server.create_stream, wanted)]
    actual = stream.settings
    for field in ("retention", "storage"):
        has, wants = getattr(actual, field), getattr(wanted, field)
        if has is not wants:
            raise TopologyError(
                f"stream {wanted.name!r} has {field} {has.value!r}, but {wants.value!r} is wanted, "
                f"and {field} cannot change: declare it as {has.value!r}, or drain the stream, "
                "delete it and declare again"
            )
    if topology is not None:
        _refuse_other_kind(server, stream, topology)
    changes: dict[str, object] = {}
    if set(actual.subjects) != set(wanted.subjects):
        layout = layout_of(wanted.name, actual.subjects)
        shards = 0 if topology is None else topology.routing_shards
        if layout.under_way is not None:
            bind = declares_shards(wanted.name, shards, layout, len(stream.messages))
        elif layout.shards and wanted.name in server.resharded:
            raise resharded_refusal(wanted.name, layout.shards, shards)
        else:
            bind = True
            if topology is not None and topology.sequenced and stream.messages:
                raise _moved_lanes(stream, topology)
        if bind:
            server.check_overlap(wanted)
            changes["subjects"] = wanted.subjects
    if topology is not None and topology.stream_config is not None:
        # Without a NatsStreamConfig the limits are whoever's who set them.
        for field in ("max_messages", "max_bytes", "max_age_s", "num_replicas"):
            if getattr(actual, field) != getattr(wanted, field):
                changes[field] = getattr(wanted, field)
        if "max_age_s" in changes:
            # The server refuses a window longer than the age.
            changes["duplicate_window_s"] = wanted.duplicate_window_s
    return [partial(server.edit_stream, wanted.name, **changes)] if changes else []


def _refuse_other_kind(server: MemoryServer, stream: Stream, topology: Topology) -> None:
    queue = topology.queue
    layout = layout_of(queue, stream.settings.subjects)
    if layout.under_way is not None or bool(layout.shards) == topology.sequenced:
        return
    refusal = kind_refusal(
        queue,
        sequenced=topology.sequenced,
        stored=len(stream.messages),
        held={
            name: len(other.messages)
            for name, other in server.streams.items()
            if is_hold_of(queue, name)
        },
        durables=stream.durables,
    )
    if refusal is not None:
        raise refusal


def _moved_lanes(stream: Stream, topology: Topology) -> TopologyError:
    settings = stream.settings
    return TopologyError(
        f"stream {settings.name!r} holds {len(stream.messages)} messages for "
        f"{len(settings.subjects)} shard subjects, but the topic asks for "
        f"routing_shards({topology.routing_shards}): keys would move between lanes and lose their "
        "order. Stop publishing, let the consumers drain the stream with the old number, then "
        "declare again with the new one"
    )


def _verify_external(server: MemoryServer, topology: Topology) -> None:
    stream = server.streams.get(topology.queue)
    if stream is None:
        raise TopologyError(
            f"external stream {topology.queue!r} does not exist: its owner has to create it, or "
            "leave out nats_external_stream() to have it created here"
        )
    for subject in topology.publish_subjects:
        if not any(overlap(subject, bound) for bound in stream.settings.subjects):
            raise TopologyError(
                f"external stream {topology.queue!r} does not take subject {subject!r} (it takes "
                f"{', '.join(stream.settings.subjects)}): its owner has to add it"
            )
