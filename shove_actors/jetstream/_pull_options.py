"""The options of continuous reading (`messages`, `consume`), checked and completed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypedDict

from shove_actors._errors import InvalidOption

from ._options import check_count, check_seconds
from ._source import OnError
from ._typed import check_settings

#: What a request limited by bytes asks for in messages.
MANY = 1_000_000
MAX_MESSAGES = 500
EXPIRY_S = 30.0
HEARTBEAT_LEAST_S, HEARTBEAT_MOST_S = 0.5, 30.0


class GroupSettings(TypedDict, total=False):
    """For consumers with priority groups, which need `group`; see `Consumer.messages`."""

    group: str | None
    min_pending: int | None
    min_ack_pending: int | None
    priority: int | None


class FetchSettings(GroupSettings, total=False):
    """What `fetch`, `fetch_list` and `next` take, besides how much and how long."""

    heartbeat: float | None


class ReadingSettings(TypedDict, total=False):
    """What every continuous reading takes; see `Consumer.messages`."""

    max_messages: int | None
    max_bytes: int | None
    request_max_bytes: int | None
    expiry: float | None
    heartbeat: float | None
    threshold_messages: int | None
    threshold_bytes: int | None
    stop_after: int | None
    on_error: OnError | None


class ConsumeSettings(ReadingSettings, GroupSettings, total=False):
    """What `Consumer.consume` takes; see `Consumer.messages`."""

    nak_on_stop: bool


class MessagesSettings(ConsumeSettings, total=False):
    """What `Consumer.messages` takes; see there."""

    raise_on_missing_heartbeat: bool
    eager: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """What a request says of priority groups, when the consumer has them."""

    group: str | None = None
    min_pending: int | None = None
    min_ack_pending: int | None = None
    priority: int | None = None

    def __post_init__(self) -> None:
        for name in ("min_pending", "min_ack_pending"):
            value = getattr(self, name)
            if value is not None:
                check_count(name, value)
        if self.priority is not None:
            check_count("priority", self.priority, least=0, most=9)
        if self.group is None:
            for name in ("min_pending", "min_ack_pending", "priority"):
                if getattr(self, name) is not None:
                    raise InvalidOption(f"{name} is set without group; name the priority group")

    def body(self) -> bytes:
        """The end of a request's JSON, without the closing brace."""
        out = b""
        if self.group is not None:
            out += b',"group":%b' % json.dumps(self.group).encode()
        if self.min_pending is not None:
            out += b',"min_pending":%d' % self.min_pending
        if self.min_ack_pending is not None:
            out += b',"min_ack_pending":%d' % self.min_ack_pending
        if self.priority:
            out += b',"priority":%d' % self.priority
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """Complete and consistent: made by `pull_options`."""

    #: How many messages may be asked for, waiting here, or being handled.
    max_messages: int
    #: The same in bytes; None: bytes are not counted.
    max_bytes: int | None
    #: The limit of each single request, when messages are counted.
    request_max_bytes: int | None
    threshold_messages: int
    threshold_bytes: int
    expiry: float
    heartbeat: float
    stop_after: int | None
    groups: GroupOptions


def pull_options(
    *,
    max_messages: int | None = None,
    max_bytes: int | None = None,
    request_max_bytes: int | None = None,
    expiry: float | None = None,
    heartbeat: float | None = None,
    threshold_messages: int | None = None,
    threshold_bytes: int | None = None,
    stop_after: int | None = None,
    groups: GroupOptions | None = None,
    default_heartbeat: float | None = None,
) -> PullOptions:
    """Check and fill in the defaults. Raises `InvalidOption`."""
    if max_bytes is not None and max_messages is not None:
        raise InvalidOption(
            "max_messages and max_bytes exclude each other; give one of them, or max_messages "
            "with request_max_bytes"
        )
    if max_bytes is not None and request_max_bytes is not None:
        raise InvalidOption("request_max_bytes goes with max_messages, not with max_bytes")
    if max_bytes is not None and threshold_messages is not None:
        raise InvalidOption("threshold_messages goes with max_messages; use threshold_bytes")
    if max_bytes is None and threshold_bytes is not None:
        raise InvalidOption("threshold_bytes goes with max_bytes; use threshold_messages")
    for name, value in (("max_bytes", max_bytes), ("request_max_bytes", request_max_bytes)):
        if value is not None:
            check_count(name, value)
    most = MANY if max_bytes is not None else MAX_MESSAGES
    if max_messages is not None:
        most = check_count("max_messages", max_messages)
    if threshold_messages is not None:
        check_count("threshold_messages", threshold_messages, most=most)
    if threshold_bytes is not None:
        check_count("threshold_bytes", threshold_bytes, most=max_bytes)
    if stop_after is not None:
        check_count("stop_after", stop_after)
    whole = EXPIRY_S if expiry is None else check_seconds("expiry", expiry, least=1.0)
    if heartbeat is None:
        wanted = default_heartbeat if default_heartbeat is not None else HEARTBEAT_MOST_S
        beat = min(wanted, HEARTBEAT_MOST_S, whole / 2)
    else:
        beat = check_seconds("heartbeat", heartbeat, least=HEARTBEAT_LEAST_S, most=HEARTBEAT_MOST_S)
        if beat > whole / 2:
            raise InvalidOption(
                f"heartbeat is {beat:g} s; it must be at most half of expiry ({whole:g} s)"
            )
    return PullOptions(
        max_messages=most,
        max_bytes=max_bytes,
        request_max_bytes=request_max_bytes,
        threshold_messages=threshold_messages or (most + 1) // 2,
        threshold_bytes=threshold_bytes or ((max_bytes or 0) + 1) // 2,
        expiry=whole,
        heartbeat=beat,
        stop_after=stop_after,
        groups=groups or GroupOptions(),
    )


_OF_A_PULL = frozenset(ReadingSettings.__annotations__) - {"on_error"}


def reading_options(
    kind: type,
    settings: ReadingSettings,
    *,
    groups: GroupOptions | None = None,
    default_heartbeat: float | None = None,
) -> PullOptions:
    """The part of `settings` (all of which `kind` declares) that says how to pull."""
    check_settings(kind, settings)
    asked: dict[str, Any] = {name: v for name, v in settings.items() if name in _OF_A_PULL}
    return pull_options(**asked, groups=groups, default_heartbeat=default_heartbeat)
