"""What became of a group: the crashes under its path, told once each, and its outcome."""

from __future__ import annotations

import logging

import trio

from shove_actors._errors import (
    NotPullConsumer,
    RestartIntensityExceeded,
    ShoveError,
    UsageError,
)
from shove_actors._log import about
from shove_actors.actors import Crashed, Exited, GraceExpired, LifecycleEvent

from ._outcome_report import SupervisorOutcome, root_cause

logger = logging.getLogger("shove_actors.group")

#: What no restart mends: a durable that is not what it should be, a permission that is missing.
FOR_GOOD = (UsageError, NotPullConsumer)


class GroupReport:
    """Listens to the events under `path`. `stopping`: set when crashes are not repaired any more,
    also by this report, when one is beyond repair.

    `timed_out`: handlers were cancelled because the drain had no more time.
    """

    def __init__(self, path: str, stopping: trio.Event) -> None:
        self.timed_out = False
        self._path = path
        self._stopping = stopping
        self._restarts = 0
        self._failures: list[tuple[BaseException, str]] = []
        #: Root cause of the latest crash, and the path of the child it began in.
        self._latest: tuple[BaseException, str] | None = None

    def on_event(self, event: LifecycleEvent) -> None:
        if not event.path.startswith(self._path + "/"):
            return
        if isinstance(event, GraceExpired):
            self.timed_out = True
        elif isinstance(event, Exited) and isinstance(event.exit, Crashed):
            error = event.exit.error
            root = root_cause(error)
            # A supervisor that gives up crashes after, and because of, the child: the child counts.
            if self._latest is None or self._latest[0] is not root:
                self._latest = root, event.path.removeprefix(self._path + "/")
            if self._stopping.is_set():
                self.failed(error, event.path)
            elif isinstance(root, FOR_GOOD):
                logger.error(
                    "consumer %s cannot go on, and its group ends: %s",
                    event.path,
                    root,
                    extra=about("consumer_failed", path=event.path),
                )
                self.failed(error, event.path)
                self._stopping.set()
            elif isinstance(error, RestartIntensityExceeded):
                self._restarts -= 1  # the last crash was not repaired after all
            else:
                self._restarts += 1
                logger.error(
                    "consumer %s crashed",
                    event.path,
                    exc_info=error,
                    extra=about("consumer_crashed", path=event.path),
                )

    def failed(self, error: BaseException, where: str) -> None:
        """The group, or a consumer during its drain, has failed for good."""
        root = root_cause(error)
        if any(root is known for known, _ in self._failures):
            return  # consumers that share a lane share its end
        if self._latest is not None and self._latest[0] is root:
            where = self._latest[1]
        self._failures.append((root, where))

    def outcome(self) -> SupervisorOutcome:
        panics = sum(not isinstance(root, ShoveError) for root, _ in self._failures)
        return SupervisorOutcome(
            errors=len(self._failures) - panics,
            panics=panics,
            timed_out=self.timed_out,
            restarts=self._restarts,
            reasons=tuple(
                f"{where}: {type(root).__name__}: {root}" for root, where in self._failures
            ),
        )
