"""The records inside a stream's configuration. All keep what they do not know in `extra`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shove_actors._errors import InvalidOption

from ._fields import NOTHING, Records, absorb, from_wire, to_wire
from ._typed import check_fields, listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where in a cluster a stream's replicas may live."""

    cluster: str | None = None
    tags: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", listed(self.tags))
        check_fields(self)

    def wire(self) -> dict[str, Any]:
        return to_wire(self, NOTHING, NOTHING)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Placement:
        return from_wire(cls, raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectTransform:
    """Messages on `src` are stored as if they came on `dest`. An empty `src` is every subject."""

    src: str = ""
    dest: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)

    def wire(self) -> dict[str, Any]:
        return to_wire(self, NOTHING, frozenset({"src", "dest"}))

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> SubjectTransform:
        return from_wire(cls, raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class RePublish:
    """What is stored on `src` is published again on `dest`, with or without its payload."""

    src: str = ""
    dest: str = ""
    headers_only: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)

    def wire(self) -> dict[str, Any]:
        return to_wire(self, NOTHING, frozenset({"dest"}))

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> RePublish:
        return from_wire(cls, raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLimits:
    """What the stream's consumers get where they ask for nothing, and may not exceed."""

    inactive_threshold: float | None = None
    max_ack_pending: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)

    def wire(self) -> dict[str, Any]:
        return to_wire(self, frozenset({"inactive_threshold"}), NOTHING)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> ConsumerLimits:
        return from_wire(cls, raw, frozenset({"inactive_threshold"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalStream:
    """A stream of another account or domain: the prefixes under which it is reached."""

    api: str
    deliver: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)

    def wire(self) -> dict[str, Any]:
        return to_wire(self, NOTHING, frozenset({"api", "deliver"}))

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> ExternalStream:
        return from_wire(cls, raw)


_MOMENTS = frozenset({"opt_start_time"})
_RECORDS: Records = {"subject_transforms": SubjectTransform, "external": ExternalStream}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSource:
    """A stream to mirror, or one of those to take messages from.

    `domain` is short for `external=ExternalStream(api="$JS.<domain>.API")`; the two exclude each
    other (`InvalidOption`).
    """

    name: str
    opt_start_seq: int | None = None
    opt_start_time: datetime | None = None
    filter_subject: str | None = None
    subject_transforms: tuple[SubjectTransform, ...] = ()
    external: ExternalStream | None = None
    domain: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "subject_transforms", listed(self.subject_transforms))
        check_fields(self)
        absorb(self, moments=_MOMENTS, records=_RECORDS)
        if self.domain is None:
            return
        if self.external is not None:
            raise InvalidOption("domain and external exclude each other; give one of them")
        object.__setattr__(self, "external", ExternalStream(api=f"$JS.{self.domain}.API"))
        object.__setattr__(self, "domain", None)

    def wire(self) -> dict[str, Any]:
        return to_wire(self, NOTHING, frozenset({"name"}))

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> StreamSource:
        return from_wire(cls, raw, moments=_MOMENTS, records=_RECORDS)
