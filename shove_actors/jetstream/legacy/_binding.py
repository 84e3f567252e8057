"""Which consumer a legacy subscription reads: an existing one, checked, or one made for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from shove_actors._errors import (
    ConsumerMismatch,
    ConsumerNotFound,
    InvalidOption,
    StreamNotFound,
)
from shove_actors.jetstream._consumer import ConsumerConfig
from shove_actors.jetstream._consumer_info import ConsumerInfo
from shove_actors.jetstream._context import JetStream
from shove_actors.jetstream._options import check_text
from shove_actors.jetstream._typed import check_settings
from shove_actors.jetstream._wire import check_subject

from ._config import difference
from ._options import OURS, SubscribeOptions

#: What a subscription without a callback may hold; nats.go's size of its channel.
QUEUE_LIMIT = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """`created`: by this subscription, so it goes with it."""

    stream: str
    info: ConsumerInfo
    created: bool


def check_subscribe(subject: str, options: SubscribeOptions) -> None:
    """Raises `InvalidOption`, before anything is sent."""
    check_settings(SubscribeOptions, options)
    if check_text("subject", subject):
        check_subject(subject)


async def stream_of(js: JetStream, subject: str, options: SubscribeOptions) -> str:
    """The stream that is named, or the one that takes `subject`."""
    bind, named = options.get("bind"), options.get("bind_stream")
    if bind is not None:
        return bind[0]
    if named is not None:
        return named
    stream = await js.stream_name_by_subject(subject)
    if stream is None:
        raise StreamNotFound(404, 10059, f"no stream matches subject {subject!r}")
    return stream


async def bind(
    js: JetStream, subject: str, options: SubscribeOptions, *, pull: bool, waits: bool
) -> Bound:
    """`waits`: nobody takes the messages at once, so that only so many may be delivered."""
    queue = options.get("queue")
    if pull and queue is not None:
        raise InvalidOption("pull subscriptions share their messages without a queue")
    if queue is not None and (options.get("idle_heartbeat") or options.get("flow_control")):
        raise InvalidOption("a queue subscription has neither idle_heartbeat nor flow_control")
    stream = await stream_of(js, subject, options)
    bound_to = options.get("bind")
    name = bound_to[1] if bound_to is not None else options.get("durable") or queue
    wanted = _wanted(js, subject, options, name)
    if name is not None:
        try:
            info = await js.consumer_info(stream, name)
        except ConsumerNotFound:
            if bound_to is not None:
                raise
        else:
            _check(subject, wanted, info, options, pull=pull)
            return Bound(stream=stream, info=info, created=False)
    if not pull and wanted.deliver_subject is None:
        wanted = replace(wanted, deliver_subject=js.connection.new_inbox().decode())
    if waits and wanted.max_ack_pending is None and wanted.ack_policy != "none":
        wanted = replace(wanted, max_ack_pending=QUEUE_LIMIT)
    info = await js.put_consumer(stream, wanted, "create")
    return Bound(stream=stream, info=info, created=True)


def _wanted(
    js: JetStream, subject: str, options: SubscribeOptions, name: str | None
) -> ConsumerConfig:
    settings: dict[str, Any] = {key: value for key, value in options.items() if key not in OURS}
    if not settings.get("filter_subjects"):
        settings["filter_subject"] = subject
    if options.get("opt_start_seq") is not None:
        settings.setdefault("deliver_policy", "by_start_sequence")
    if options.get("opt_start_time") is not None:
        settings.setdefault("deliver_policy", "by_start_time")
    return ConsumerConfig(durable_name=name, deliver_group=options.get("queue"), **settings)


def _check(
    subject: str,
    wanted: ConsumerConfig,
    info: ConsumerInfo,
    options: SubscribeOptions,
    *,
    pull: bool,
) -> None:
    """Whether the existing consumer can be read in this way. Raises `ConsumerMismatch`."""
    config = info.config

    def refuse(why: str) -> ConsumerMismatch:
        return ConsumerMismatch(f"consumer {info.name!r} of stream {info.stream!r}: {why}")

    if pull and config.deliver_subject:
        raise refuse("it is a push consumer; use subscribe or subscribe_sync")
    if not pull and not config.deliver_subject:
        raise refuse("it is a pull consumer; use pull_subscribe")
    if config.filter_subject and subject and config.filter_subject != subject:
        raise refuse(f"its filter_subject is {config.filter_subject!r}, not {subject!r}")
    asked = replace(wanted, filter_subject=None, deliver_group=None)
    wrong = difference(asked, replace(config, filter_subject=None, deliver_group=None))
    if wrong is not None:
        raise refuse(wrong)
    if pull:
        return
    queue = options.get("queue")
    if config.deliver_group != queue:
        raise refuse(f"its deliver_group is {config.deliver_group!r}, not {queue!r}")
    if queue is None and info.push_bound:
        raise refuse("somebody reads it already")
