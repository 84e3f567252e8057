"""When a scheduled message is produced."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from shove_actors._errors import InvalidOption

from ._go_duration import go_duration
from ._options import check_kind, check_seconds, check_text
from ._times import from_datetime


@dataclass(frozen=True, slots=True)
class At:
    """Once, at that moment (an aware `datetime`); at once if it is past."""

    when: datetime

    def __post_init__(self) -> None:
        check_kind("when", self.when, datetime, "an aware datetime")
        self.header()

    def header(self) -> str:
        return f"@at {from_datetime(self.when)}"


@dataclass(frozen=True, slots=True)
class Every:
    """Again and again, that many seconds apart: one second at least."""

    seconds: float

    def __post_init__(self) -> None:
        check_seconds("seconds", self.seconds, least=1.0)

    def header(self) -> str:
        return f"@every {go_duration(self.seconds)}"


@dataclass(frozen=True, slots=True)
class Cron:
    """At the times of a cron expression of six fields (seconds first), or `@hourly` and its like.

    `tz`: the IANA name of the time zone it is meant in; UTC without one. The server checks both
    (`ScheduleError`).
    """

    expression: str
    tz: str | None = None

    def __post_init__(self) -> None:
        if not check_text("expression", self.expression).strip():
            raise InvalidOption("expression is empty; give six fields, or @hourly")
        if self.tz is not None:
            check_text("tz", self.tz, empty=False)

    def header(self) -> str:
        return self.expression


Schedule = At | Every | Cron
