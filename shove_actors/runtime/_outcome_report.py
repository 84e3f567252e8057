"""How a run ended."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import IntEnum

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup


class ExitCode(IntEnum):
    """What a process that ran a group should exit with. The worst of what happened wins."""

    CLEAN = 0
    ERROR = 1
    PANIC = 2
    DRAIN_TIMEOUT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOutcome:
    """The result of `run_until`.

    `errors`: consumers that ended for good for a reason outside the code (a deleted consumer, a
    lost connection). `panics`: ... because of an unexpected exception. `timed_out`: handlers still
    ran at the drain timeout and were cancelled; their messages were given back. `restarts`:
    crashes that supervision repaired (not a failure). `reasons`: one redacted line per failure,
    which begins with the child that failed.
    """

    errors: int = 0
    panics: int = 0
    timed_out: bool = False
    restarts: int = 0
    reasons: tuple[str, ...] = field(default=())

    @property
    def exit_code(self) -> int:
        """0 clean, 1 error, 2 panic, 3 drain timeout."""
        if self.timed_out:
            return int(ExitCode.DRAIN_TIMEOUT)
        if self.panics:
            return int(ExitCode.PANIC)
        return int(ExitCode.ERROR if self.errors else ExitCode.CLEAN)

    @property
    def is_clean(self) -> bool:
        return self.exit_code == ExitCode.CLEAN


def root_cause(error: BaseException) -> BaseException:
    """Down to what really happened: through escalations and groups of one."""
    while True:
        if isinstance(error, BaseExceptionGroup) and error.exceptions:
            error = error.exceptions[0]
        elif type(error).__name__ in ("RestartIntensityExceeded", "StartFailed") and isinstance(
            error.__cause__, Exception
        ):
            error = error.__cause__
        else:
            return error
