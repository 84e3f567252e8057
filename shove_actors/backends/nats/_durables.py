"""Durables: create what is missing, reconcile what is ours, refuse the rest.

Rules (PC-067, PC-068, PC-071): nothing is sent when nothing differs; an update starts from what the
server has, so settings that are not ours survive; a durable with another filter is never edited.

A lease is never shortened while somebody may be at work: whoever runs keeps its leases alive at the
pace of the ack wait that it knows, and with a shorter one on the server its messages would be given
away from under its handlers. So a process that asks for less (a rolling deployment, say) takes what
it finds, which is safe for it; the durable is changed by the first that finds nobody there.
Processes that start at the same moment do not see each other yet. So who makes a durable makes no
other one's shorter (`action` "create"); who has shortened a lease looks whether somebody has come
meanwhile, and takes it back; and everybody looks once more, and lengthens it, after he has asked
for messages (`look_again`): from then on he is seen. Whichever comes first, the shorter one, if it
was there at all, is gone long before it could end.

A durable that delivers less than every message whole, or turns away the requests it is read with,
would lose messages without a word, so it is refused. Streams are `_declare.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import trio

from shove_actors._errors import (
    ApiError,
    ConsumerExists,
    ConsumerNotFound,
    PermissionDenied,
    ShoveError,
    StreamNotFound,
    TopicNotDeclared,
    TopologyError,
)
from shove_actors._log import about
from shove_actors.backends._other_kind import still_keyed
from shove_actors.backends._port import LaneSpec
from shove_actors.jetstream import ConsumerConfig, ConsumerInfo, JetStream
from shove_actors.messaging import layout_of, removed_shard

from ._pinning import pinned_settings

logger = logging.getLogger("shove_actors.backends.nats")

_NOT_PINNED: dict[str, object] = {
    "priority_groups": (),
    "priority_policy": None,
    "priority_timeout": None,
}
#: Pauses before the leases are looked at again. The first: so long after messages were asked for,
#: the server knows of that for sure.
LOOKS_S = (0.1, 0.2, 0.7)
#: How long requests may still wait of those who have gone.
GOING_S = 2.0
#: How many durables are created at a time.
CREATE_AT_ONCE = 16
#: A consumer of a work-queue stream overlaps another one (10099, 10100).
_OVERLAP = frozenset({10099, 10100})
#: Limits on the requests of a durable. The server answers a larger request with an error, so the
#: lane would wait for ever (or, with `max_bytes`, be served in crumbs).
_REQUEST_LIMITS = ("max_batch", "max_expires", "max_bytes")


def durable_config(spec: LaneSpec) -> ConsumerConfig:
    config = ConsumerConfig(
        name=spec.durable,
        durable_name=spec.durable,
        filter_subject=spec.filter_subject,
        ack_wait=spec.ack_wait_s,
        max_ack_pending=spec.max_ack_pending,
    )
    return config if spec.keyed is None else replace(config, **pinned_settings(spec))


class Found:
    """What a process that starts has found, by name; of durables that somebody may have been at
    work on without their knowing it."""

    def __init__(self) -> None:
        #: Not there; they had to be created. Said before they are, because the answer may be lost,
        #: and who asks again finds them there.
        self.fresh: set[str] = set()
        #: They have given nothing away since their server was started (or their leader elected).
        #: The time of the last delivery is in its memory only: probed on 2.9.10 and 2.15.1. One
        #: that was killed may have forgotten deliveries.
        self.silent: set[str] = set()

    def note(self, info: ConsumerInfo) -> None:
        if info.delivered.last_active is None and info.name not in self.fresh:
            self.silent.add(info.name)


async def ensure_durable(js: JetStream, spec: LaneSpec) -> bool:
    """True when it had to be created. See `Backend.open_lane` for errors."""
    _, created = await _ensured(js, spec)
    return created


async def _ensured(
    js: JetStream, spec: LaneSpec, found: Found | None = None
) -> tuple[ConsumerInfo, bool]:
    """What is known of it from the very request that found or made it: by the next one it may be
    gone again."""
    try:
        info = await js.consumer_info(spec.stream, spec.durable)
    except StreamNotFound as exc:
        raise _not_declared(spec) from exc
    except ConsumerNotFound:
        await _refuse_removed_shards(js, [spec])
        if found is not None:
            found.fresh.add(spec.durable)
        return await _create(js, spec), True
    if found is not None:
        found.note(info)
    await _reconcile(js, spec, info)
    return info, False


async def ensure_durables(js: JetStream, specs: Sequence[LaneSpec], found: Found) -> dict[str, str]:
    """`ensure_durable` for many durables of one stream: one listing instead of a look at each.

    Returns when each was made, by name: a later one of the same name is another durable.
    """
    made: dict[str, str] = {}
    if len(specs) < 4:
        for spec in specs:
            info, _ = await _ensured(js, spec, found)
            made[spec.durable] = info.identity
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
        there = known.get(spec.durable)
        if there is None:
            missing.append(spec)
        else:
            found.note(there)
            await _reconcile(js, spec, there, fresh=False)
            made[spec.durable] = there.identity
    found.fresh.update(spec.durable for spec in missing)
    made.update(await _create_many(js, missing))
    return made


async def look_again(js: JetStream, specs: Sequence[LaneSpec]) -> None:
    """Lengthens the leases that somebody has shortened since they were looked at.

    Of no use before messages were asked for. More than once: others look, and write, at the same
    time, from what they saw a moment ago. What is gone, or another kind, is not our business.
    """
    for pause_s in LOOKS_S:
        await trio.sleep(pause_s)
        for spec in specs:
            try:
                info = await js.consumer_info(spec.stream, spec.durable)
                ack_wait = info.config.ack_wait or 0.0
                if ack_wait < spec.ack_wait_s - 1e-9 and not info.config.deliver_subject:
                    longer = replace(info.config, name=spec.durable, ack_wait=spec.ack_wait_s)
                    await js.put_consumer(spec.stream, longer, "update")
            except (ConsumerNotFound, StreamNotFound):
                continue
            except PermissionDenied:
                return
            except ShoveError:
                continue  # what cannot be asked now, the next recovery asks


async def was_read(js: JetStream, stream: str) -> bool:
    """Whether somebody may be at work on a message of it, through a durable that is gone.

    Also where nothing has left the stream yet: its first message may be the one in hand.
    """
    return (await js.stream_info(stream)).last_seq > 0


async def _create_many(js: JetStream, specs: Sequence[LaneSpec]) -> dict[str, str]:
    """Some at a time: one after another, 256 of them take seconds. The first failure is raised."""
    made: dict[str, str] = {}
    failures: list[Exception] = []
    waiting = iter(specs)

    async def create_one_after_another(scope: trio.CancelScope) -> None:
        for spec in waiting:
            try:
                made[spec.durable] = (await _create(js, spec)).identity
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
    sharded = [
        spec
        for spec in missing
        if spec.filter_subject and (spec.max_ack_pending == 1 or spec.keyed is not None)
    ]
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
        return await js.put_consumer(spec.stream, durable_config(spec), "create")
    except StreamNotFound as exc:
        raise _not_declared(spec) from exc
    except ConsumerExists:
        # Another process was faster, with other settings.
        info, _ = await _ensured(js, spec)
        return info
    except ApiError as exc:
        if exc.err_code in _OVERLAP:
            raise TopologyError(
                f"stream {spec.stream!r} is a work queue and has another consumer for the same "
                f"subjects, so {spec.durable!r} cannot read it. Use one name for all groups of "
                "the topic, or Retention.LIMITS for several independent readers"
            ) from exc
        raise


async def _reconcile(
    js: JetStream, spec: LaneSpec, info: ConsumerInfo, *, fresh: bool = True
) -> None:
    """`fresh`: it was looked at just now."""
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
    longer = (config.ack_wait or 0.0) - spec.ack_wait_s
    if longer > 1e-9 and fresh is False:
        # Not by a look of some time ago, when other durables came first.
        return await _reconcile(js, spec, await js.consumer_info(spec.stream, spec.durable))
    kept = longer > 1e-9 and _in_use(info)
    if config.backoff or (abs(longer) > 1e-9 and not kept):
        # A backoff list would silently replace ack_wait (PC-027).
        changes["ack_wait"] = spec.ack_wait_s
        changes["backoff"] = ()
    elif kept:
        _kept(where, config, spec)
    if config.max_ack_pending != spec.max_ack_pending:
        changes["max_ack_pending"] = spec.max_ack_pending
    if config.max_deliver not in (None, -1, 0):
        # A server-side limit strands the message in the stream (PC-033).
        changes["max_deliver"] = -1
    if spec.keyed is not None:
        wanted = pinned_settings(spec)
        if kept and config.priority_policy == "pinned_client":
            wanted["priority_timeout"] = config.priority_timeout
        if any(getattr(config, name) != value for name, value in wanted.items()):
            changes.update(wanted)
    elif config.priority_policy == "pinned_client":
        # It was a keyed shard; whoever pulls without a group would be turned away.
        await _nobody_pinned(js, spec, info)
        changes.update(_NOT_PINNED)
    if not changes:
        return
    changed = replace(config, name=spec.durable, **changes)  # type: ignore[arg-type]
    now = await js.put_consumer(spec.stream, changed)
    if longer > 1e-9 and "ack_wait" in changes and _in_use(now):
        # Somebody has come since it was looked at.
        back = replace(changed, ack_wait=config.ack_wait)
        if config.priority_policy == changed.priority_policy == "pinned_client":
            back = replace(back, priority_timeout=config.priority_timeout)
        await js.put_consumer(spec.stream, back)
        _kept(where, config, spec)


async def _nobody_pinned(js: JetStream, spec: LaneSpec, info: ConsumerInfo) -> None:
    """Whoever has enough in hand asks for nothing, but keeps his pin, for as long as he lives. A
    server does not notice at once that somebody has gone.
    """
    patience_until = trio.current_time() + (info.config.priority_timeout or 0.0) + GOING_S
    while info.num_waiting or any(group.pinned_client_id for group in info.priority_groups):
        if trio.current_time() > patience_until:
            raise still_keyed(spec.stream, spec.durable)
        await trio.sleep(GOING_S / 20)
        try:
            info = await js.consumer_info(spec.stream, spec.durable)
        except ConsumerNotFound:
            return  # deleted: it is made anew, without pins


def _in_use(info: ConsumerInfo) -> bool:
    """Whether somebody waits for its messages, or has one."""
    return info.num_waiting > 0 or info.num_ack_pending > 0


def _kept(where: str, config: ConsumerConfig, spec: LaneSpec) -> None:
    logger.warning(
        "%s keeps ack_wait=%g s while it is in use: %g s would end the leases of those who are "
        "at work. The first process that starts with nobody there changes it",
        where,
        config.ack_wait,
        spec.ack_wait_s,
        extra=about("ack_wait_kept", queue=spec.stream),
    )


def _refuse_lossy(where: str, config: ConsumerConfig) -> None:
    found: list[tuple[str, object, str]] = []
    if config.deliver_policy != "all":
        found.append(("deliver_policy", config.deliver_policy, "'all'"))
    if config.replay_policy != "instant":
        found.append(("replay_policy", config.replay_policy, "'instant'"))
    if config.headers_only:
        found.append(("headers_only", True, "False"))
    for name in _REQUEST_LIMITS:
        limit = getattr(config, name)
        # The server takes 0 and less for no limit.
        if limit is not None and limit > 0:
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
