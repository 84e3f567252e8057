"""What can be asked of a publish, as the headers by which the server is asked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypedDict

from shove_actors._errors import InvalidOption, MessageTooLarge

from ._go_duration import whole_seconds
from ._headers import encode_headers
from ._options import as_bytes, check_count, check_kind
from ._schedules import At, Cron, Every
from ._wire import check_subject, not_in_subject

if TYPE_CHECKING:
    from ._headers import HeadersInput
    from ._schedules import Schedule


#: Text is sent as UTF-8.
Data = bytes | bytearray | memoryview | str


class PublishOptions(TypedDict, total=False):
    """What every way of publishing takes, as keyword arguments.

    * `headers`: of the message; left as they are. One that an option stands for may be given
      beside it only with the same value.
    * `msg_id`: the stream stores one message of that id within its duplicate window, and answers
      the others with `duplicate`. What makes publishing again safe.
    * `expect_stream`: refuse if the subject belongs to another stream (`StreamMismatch`).
    * `expect_last_sequence`: refuse unless that is the stream's last sequence, 0 for an empty one
      (`WrongLastSequence`).
    * `expect_last_subject_sequence`: refuse unless that is the last sequence on the subject, or on
      `expect_last_subject` if given; 0 for none yet (`WrongLastSequence`).
    * `expect_last_msg_id`: refuse unless the stream's very last message has that id
      (`WrongLastMsgId`).
    * `ttl`: seconds to live, one at least (a fraction is rounded up), or "never". The stream must
      allow it.
    * `increment`: add to the counter of the subject; the value after it is in `PubAck.value`.
    * `schedule`: `At`, `Every` or `Cron`: the stream keeps the message and produces it on
      `schedule_target` when it is time. `schedule_source`: takes the newest message there for
      payload. `schedule_ttl`: of what is produced (`ScheduleError` for what the server refuses).
    """

    headers: HeadersInput | None
    msg_id: str | None
    expect_stream: str | None
    expect_last_sequence: int | None
    expect_last_subject_sequence: int | None
    expect_last_subject: str | None
    expect_last_msg_id: str | None
    ttl: float | Literal["never"] | None
    increment: int | None
    schedule: Schedule | None
    schedule_target: str | None
    schedule_source: str | None
    schedule_ttl: float | Literal["never"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PubMessage:
    """A message to publish. `options` holds what `publish` takes as keywords.

    It has no reply subject: the stream's acknowledgement needs that.
    """

    subject: str
    data: Data = b""
    headers: HeadersInput | None = field(default=None, repr=False)
    options: PublishOptions = field(default_factory=PublishOptions, repr=False)

    def __post_init__(self) -> None:
        check_subject(self.subject)
        check_kind("data", self.data, (bytes, bytearray, memoryview, str), "bytes or str")
        check_kind("options", self.options, Mapping, "a dict of publish's keywords")
        encode_headers(self.headers)

    def __repr__(self) -> str:
        return f"<PubMessage to {self.subject}, {len(self.data)} long>"


class Encoded:
    """A message as it is written: everything that can be wrong with it has been checked."""

    __slots__ = ("block", "payload", "subject", "wire_subject")

    def __init__(self, subject: str, data: Data, options: PublishOptions, max_payload: int) -> None:
        check_subject(subject)
        if not_in_subject(subject):
            raise InvalidOption(f"subject {subject!r} has a wildcard; a message has one subject")
        self.subject = subject
        self.wire_subject = subject.encode()
        self.payload = as_bytes("the message", data)
        self.block = _block(options) if options else b""
        size = len(self.payload) + len(self.block)
        if size > max_payload:
            raise MessageTooLarge(
                f"the message for {subject!r} has {size} bytes with its headers; the server takes "
                f"{max_payload} (max_payload)"
            )


_KNOWN = frozenset(PublishOptions.__annotations__)


_OPTION_OF = {
    "Nats-Msg-Id": "msg_id",
    "Nats-Expected-Stream": "expect_stream",
    "Nats-Expected-Last-Msg-Id": "expect_last_msg_id",
    "Nats-Expected-Last-Sequence": "expect_last_sequence",
    "Nats-Expected-Last-Subject-Sequence": "expect_last_subject_sequence",
    "Nats-Expected-Last-Subject-Sequence-Subject": "expect_last_subject",
    "Nats-TTL": "ttl",
    "Nats-Incr": "increment",
    "Nats-Schedule": "schedule",
    "Nats-Schedule-Target": "schedule_target",
    "Nats-Schedule-Source": "schedule_source",
    "Nats-Schedule-TTL": "schedule_ttl",
    "Nats-Schedule-Time-Zone": "schedule",
}


def _block(options: PublishOptions) -> bytes:
    headers = options.get("headers")
    if len(options) == 1 and "headers" in options:
        return encode_headers(headers)
    for name in options:
        if name not in _KNOWN:
            raise TypeError(f"publish has no option {name!r}")
    asked = _asked(options)
    if isinstance(headers, Mapping):
        _check_agreement(headers, asked)
    return encode_headers(headers, asked)


def _check_agreement(headers: HeadersInput, asked: Mapping[str, str]) -> None:
    """An option beside the header that it stands for: equal, or one of them is not meant."""
    for header, value in asked.items():
        if header in headers and headers[header] not in (value, [value], (value,)):
            option = _OPTION_OF[header]
            raise InvalidOption(
                f"{option} and the header {header} say different things; give one of them"
            )


def _asked(options: PublishOptions) -> Mapping[str, str]:
    asked: dict[str, str] = {}
    for name, header in (
        ("msg_id", "Nats-Msg-Id"),
        ("expect_stream", "Nats-Expected-Stream"),
        ("expect_last_msg_id", "Nats-Expected-Last-Msg-Id"),
    ):
        text = options.get(name)
        if text is not None:
            if not isinstance(text, str) or not text:
                raise InvalidOption(f"{name} must be a string that is not empty, or None")
            asked[header] = text
    for name, header in (
        ("expect_last_sequence", "Nats-Expected-Last-Sequence"),
        ("expect_last_subject_sequence", "Nats-Expected-Last-Subject-Sequence"),
    ):
        number = options.get(name)
        if number is not None:
            asked[header] = str(_whole(name, number))
    other = options.get("expect_last_subject")
    if other is not None:
        if options.get("expect_last_subject_sequence") is None:
            raise InvalidOption(
                "expect_last_subject says on which subject expect_last_subject_sequence is "
                "expected; give that, too"
            )
        check_subject(other)
        asked["Nats-Expected-Last-Subject-Sequence-Subject"] = other
    ttl = options.get("ttl")
    if ttl is not None:
        asked["Nats-TTL"] = _life("ttl", ttl)
    increment = options.get("increment")
    if increment is not None:
        if isinstance(increment, bool) or not isinstance(increment, int):
            raise InvalidOption("increment must be a whole number")
        asked["Nats-Incr"] = f"{increment:+d}"
    _schedule(options, asked)
    return asked


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int):
        raise InvalidOption(f"{name} is of type {type(value).__name__}; give a whole number")
    return check_count(name, value, least=0)


def _schedule(options: PublishOptions, asked: dict[str, str]) -> None:
    schedule, target = options.get("schedule"), options.get("schedule_target")
    source, ttl = options.get("schedule_source"), options.get("schedule_ttl")
    if schedule is None:
        if target is not None or source is not None or ttl is not None:
            raise InvalidOption("schedule_target, _source and _ttl need a schedule")
        return
    check_kind("schedule", schedule, (At, Every, Cron), "At(...), Every(...) or Cron('@hourly')")
    if target is None:
        raise InvalidOption("a schedule needs schedule_target: a subject of the same stream")
    check_subject(target)
    asked["Nats-Schedule"] = schedule.header()
    asked["Nats-Schedule-Target"] = target
    if source is not None:
        check_subject(source)
        asked["Nats-Schedule-Source"] = source
    if ttl is not None:
        asked["Nats-Schedule-TTL"] = _life("schedule_ttl", ttl)
    if isinstance(schedule, Cron) and schedule.tz is not None:
        asked["Nats-Schedule-Time-Zone"] = schedule.tz


def _life(name: str, value: float | Literal["never"]) -> str:
    if value == "never":
        return "never"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidOption(f"{name} is of type {type(value).__name__}; give seconds, or 'never'")
    if not (math.isfinite(value) and value >= 1):
        raise InvalidOption(f"{name} is {value!r}; the least that the server takes is 1 second")
    return whole_seconds(value)
