"""Drives Trio from synchronous code, one step at a time: for Hypothesis state machines.

A `RuleBasedStateMachine` is synchronous, so each rule has to start some Trio work, let it go as far
as it can, and come back (PC-106). `_guest.py` holds the run and tells how that is made to repeat;
here are the steps, and the rules that keep them repeatable.

*Invariant.* Whenever a method returns, every task is blocked, and stays so until the next call.

*Time* stops at each deadline on its way until everything is blocked: a jump over two would fire
both in one turn, which never happens in real time. Nobody else moves the clock (PC-105), and no
step waits for what does not follow it: threads and sockets (PC-104).

*Order of tasks.* Importing Hypothesis registers Trio's scheduler with it, which makes the order of
tasks that are runnable together a function of a seed, and Hypothesis sets that before each example:
always the same one, or one of its own choice with `st.random_module()` (PC-107). Outside of its
tests `open` sets the one that is always the same, so that an example can be taken out of them.

Proof of each: `tests/testing/test_stepper*.py`.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import trio
import trio._core._run as _run

from shove_actors._errors import UsageError
from shove_actors.runtime._checks import check_number, check_seconds

from ._given import check_function
from ._guest import GuestRun
from ._step import Step

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

logger = logging.getLogger("shove_actors.testing")

P = ParamSpec("P")
T = TypeVar("T")


class Stepper:
    """One Trio run, driven from synchronous code under virtual time.

    `main`, if given, runs beside the steps for as long as the stepper is open, say to keep a broker
    open; what it raises is raised by the call during which it happened.

    Leaving the `with` block cancels everything that is still running, waits for it in virtual time,
    and raises what a posted step has raised, unless somebody asked for it. An exception of the
    block comes first, and the others are logged.

    `UsageError` for real I/O, worker threads, a clock moved by others, or use inside `trio.run`.
    Needs Hypothesis. A run repeats exactly: in a Hypothesis test, which sets the seed of Trio's
    scheduler, and elsewhere, since `open` sets the same one there.

    Example, one run for each example of a state machine::

        class Machine(RuleBasedStateMachine):
            def __init__(self) -> None:
                super().__init__()
                self.trio = Stepper()
                self.trio.open()

            @rule(text=st.text())
            def send(self, text: str) -> None:
                self.trio.call(self.world.send, text)

            @rule(seconds=st.integers(1, 100))
            def wait(self, seconds: int) -> None:
                self.trio.advance(seconds)

            def teardown(self) -> None:
                self.trio.close()
    """

    def __init__(self, main: Callable[[], Awaitable[object]] | None = None) -> None:
        if main is not None:
            check_function(main, "main", "an async function without arguments")
        self._main_function = main
        self._main: Step[object] | None = None
        self._run: GuestRun | None = None
        self._closed = False
        self._now = 0.0
        self._steps: list[Step[Any]] = []
        self._end_seen = False
        self._own_io_waits = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else "new" if self._run is None else "open"
        return f"<Stepper {state} at {self._now:g} s>"

    # ---------------------------------------------------------------------------- life

    def open(self) -> None:
        """Begin the run. Use `with` instead where the code has the shape for it."""
        if self._run is not None:
            raise UsageError("this Stepper was opened before: make one for each run.")
        _ready_to_run()
        run = self._run = GuestRun()
        try:
            run.start()
            self._own_io_waits = _io_waits()
            if self._main_function is not None:
                self._main = self._start(Step("main"), self._main_function)
            self.settle()
        except BaseException:
            self._close(run, quiet=True)
            raise

    def close(self) -> None:
        """End the run, whatever its state. Idempotent.

        Raises what steps have raised that nobody asked for (one as it is, several as a group), and
        `UsageError` naming the tasks that did not end when they were cancelled.
        """
        if self._run is not None:
            self._close(self._run, quiet=False)

    def __enter__(self) -> Stepper:
        self.open()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._run is not None
        self._close(self._run, quiet=exc is not None)

    # --------------------------------------------------------------------------- steps

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an async function to its end, and everything else until it is blocked.

        Returns or raises what the function does. One that does not end is cancelled, with
        `UsageError`: no time passes meanwhile, so use `post` for it.
        """
        step = self.post(function, *args, **kwargs)
        if not step.done:
            step.cancel()
            self.settle()
            raise UsageError(
                f"{step.name} did not end: it waits for time to pass, or for another step. Start "
                "it with post() instead."
            )
        return step.result()

    def post(
        self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Step[T]:
        """Start an async function and run everything, it included, until it ends or is blocked."""
        self._checked()
        check_function(function, "function", "an async function, and its arguments after it")

        async def work() -> T:
            return await function(*args, **kwargs)

        step: Step[T] = Step(getattr(function, "__qualname__", repr(function)))
        self._start(step, work)
        self.settle()
        return step

    def settle(self) -> None:
        """Run until every task is blocked. Raises what `main` has raised meanwhile."""
        run = self._checked()
        run.pump()
        if run.over is not None:
            self._end_seen = True
            run.over.unwrap()
            raise UsageError("the run has ended although nobody closed the Stepper.")
        if self._main is not None and self._main.done and not self._main.seen:
            self._main.result()
        self._check_rules(run)

    # ---------------------------------------------------------------------------- time

    @property
    def now(self) -> float:
        """Virtual time, in seconds; 0 at first."""
        return self._now

    def next_deadline(self) -> float | None:
        """When the next deadline is; None if nobody waits for time.

        One that lies far ahead may be off in the last digit (Trio tells the distance), but
        `advance` stops at it exactly.
        """
        self._checked()
        distance = trio.lowlevel.current_statistics().seconds_to_next_deadline
        return None if math.isinf(distance) else self._now + distance

    def advance(self, seconds: float) -> None:
        """Let time pass, stopping at each deadline on the way until every task is blocked."""
        run = self._checked()
        check_seconds(seconds, "advance: seconds", why=", and finite")
        target = self._now + seconds
        self.settle()
        while self.step(target):
            pass
        run.move(target)
        self._now = target

    def step(self, limit: float) -> bool:
        """Let time pass to the next deadline and stop there; False if none is due by `limit`."""
        run = self._checked()
        if limit != math.inf:
            check_number(limit, "step: limit", "a moment in virtual time (seconds)")
        if not run.move_to_deadline(limit):
            return False
        self._now = run.clock.current_time()
        self.settle()
        return True

    # ------------------------------------------------------------------------- private

    def _start(self, step: Step[T], function: Callable[[], Awaitable[T]]) -> Step[T]:
        assert self._run is not None
        # What has ended and needs no more attention is dropped: a run may have thousands.
        self._steps = [s for s in self._steps if not s.done or (s.failed and not s.seen)]
        self._steps.append(step)
        self._run.nursery.start_soon(step.run, function, name=step.name)
        return step

    def _checked(self) -> GuestRun:
        if self._run is None or self._closed:
            raise UsageError("the Stepper is not open: use it inside its `with` block.")
        if self._run.pumping:
            raise UsageError("the Stepper was called from one of its own steps.")
        if self._run.over is not None:
            raise UsageError("the run of this Stepper has ended: close it.")
        return self._run

    def _check_rules(self, run: GuestRun) -> None:
        if run.tampered:
            raise UsageError(
                "a step has moved the clock, or made it move by itself: under a Stepper only "
                "advance() does."
            )
        if trio.to_thread.current_default_thread_limiter().borrowed_tokens:
            raise UsageError(
                "a step waits for a worker thread, which ends at a time of its own, so the run "
                "would not repeat. Give the code under test a way to do without."
            )
        if _io_waits() > self._own_io_waits:
            raise UsageError(
                "a step waits for a real socket or file while time is virtual: its timeouts would "
                "mean nothing. Use the memory backend, or test it under the real clock."
            )

    def _close(self, run: GuestRun, *, quiet: bool) -> None:
        if self._closed:
            return
        if run.pumping:
            raise UsageError("the Stepper was closed by one of its own steps.")
        try:
            forced = run.end()
        finally:
            self._closed = True
        errors = [] if forced else [s._error for s in self._steps if s.failed and not s.seen]
        if forced:
            errors.append(
                UsageError(
                    f"these tasks did not end when they were cancelled, and were ended by force: "
                    f"{', '.join(forced)}. Release what they wait for before the Stepper closes."
                )
            )
        elif not self._end_seen:
            errors.append(getattr(run.over, "error", None))
        self._steps.clear()
        found = [error for error in errors if error is not None]
        if quiet:
            for error in found:
                logger.error("while a run that had failed was closed: %r", error, exc_info=error)
        elif len(found) == 1:
            raise found[0]
        elif found:
            raise BaseExceptionGroup("steps have failed, and nobody asked", found)


def _ready_to_run() -> None:
    try:
        from hypothesis import currently_in_test_context
    except ImportError:
        raise UsageError(
            "a Stepper needs Hypothesis, which makes the order of Trio's tasks reproducible: "
            "pip install hypothesis."
        ) from None
    try:
        trio.lowlevel.current_clock()
    except RuntimeError:
        if not currently_in_test_context():
            # As Hypothesis does before each of its examples, so that one that was copied out of it
            # goes the same way.
            _run._r.seed(0)
        return
    raise UsageError(
        "a Stepper was opened inside a Trio run, or while another one is open: open it in "
        "synchronous code, and close the one before."
    )


def _io_waits() -> int:
    io = trio.lowlevel.current_statistics().io_statistics
    # epoll has the first two, kqueue has the last.
    names = ("tasks_waiting_read", "tasks_waiting_write", "tasks_waiting")
    return sum(getattr(io, name, 0) for name in names)
