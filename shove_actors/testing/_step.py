"""The handle of a piece of async work that a `Stepper` runs."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, cast

import trio

from shove_actors._errors import UsageError

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

T = TypeVar("T")


class Step(Generic[T]):
    """Work that `Stepper.post` has started. It goes on during later calls of the stepper."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._scope = trio.CancelScope()
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._seen = False

    def __repr__(self) -> str:
        return f"<Step {self.name} {'done' if self._done else 'running'}>"

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._done

    @property
    def cancelled(self) -> bool:
        """Whether it has ended because `cancel` or the end of the run made it."""
        return self._error is not None and _only_cancelled(self._error)

    @property
    def failed(self) -> bool:
        """Whether it has raised something, other than by being cancelled."""
        return self._error is not None and not _only_cancelled(self._error)

    @property
    def seen(self) -> bool:
        """Whether somebody has asked for `error` or `result` since it ended."""
        return self._seen

    @property
    def error(self) -> BaseException | None:
        """What it has raised, None if nothing; asking counts as having dealt with it.

        If it was `cancelled`, Trio's word for that. Raises `UsageError` while it is running.
        """
        if not self._done:
            raise UsageError(
                f"{self.name} is still running: let it go on with settle() or advance() first, "
                "or ask whether it is done."
            )
        self._seen = True
        return self._error

    def result(self) -> T:
        """What it returned; raises what it raised. `UsageError` while it is running."""
        error = self.error
        if error is not None:
            raise error
        return cast("T", self._value)

    def cancel(self) -> None:
        """Cancel it. Takes effect at the next call of the stepper, say `settle`."""
        self._scope.cancel()

    async def run(self, function: Callable[[], Awaitable[T]]) -> None:
        """The task. Called by the stepper."""
        try:
            with self._scope:
                try:
                    self._value = await function()
                except BaseException as error:
                    # Noted here as well: if the scope takes all of it, there is no other place.
                    self._error = error
                    raise
        except BaseException as error:
            self._error = error
            if _holds_cancelled(error):
                # Not of our scope: the run is being closed, and its nursery counts on seeing it.
                raise
        finally:
            self._done = True


def _holds_cancelled(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_holds_cancelled(part) for part in error.exceptions)
    return isinstance(error, trio.Cancelled)


def _only_cancelled(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_only_cancelled(part) for part in error.exceptions)
    return isinstance(error, trio.Cancelled)
