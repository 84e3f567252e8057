"""Stopping one incarnation: ask, wait, cancel, wait again.

Each wait for a grace watches three things: the child's end, the grace, the hard stop. After the
cancellation there is only one thing left to do, which is to wait: a task that never reaches a
checkpoint, or shields itself, cannot be ended from inside the process. It is reported as an
overrun every `overrun_s` and the supervisor does not leave before it. A child that merely catches
`Cancelled` is hit again at its next checkpoint.
"""

from __future__ import annotations

import math

import trio

from ._child import Incarnation
from ._lifecycle import GraceExpired, Overrun
from ._spec import Kind


async def stop_child(incarnation: Incarnation, final: bool, grace_s: float) -> None:
    """Stop it and wait for its end. Calling it again carries on with the same grace.

    Cancellable; the child then stays asked, and somebody else must carry on.
    """
    slot = incarnation.slot
    if incarnation.ended.is_set():
        return
    if grace_s > 0:
        incarnation.request_stop(final, grace_s)
        if slot.spec.kind is not Kind.WORKER:
            # A supervisor's grace is that of its children, who watch the hard stop themselves.
            await incarnation.ended.wait()
            return
        assert incarnation.asked_at is not None
        with slot.core.hard.grace(incarnation.asked_at + grace_s):
            await incarnation.ended.wait()
        if incarnation.ended.is_set():
            return
        if incarnation.killed_at is None:
            slot.core.listeners.emit(
                GraceExpired(path=slot.path, at=trio.current_time(), incarnation=incarnation.number)
            )
    if incarnation.killed_at is None:
        slot.core.killed[slot.path] = None
    incarnation.kill()
    await wait_after_kill(incarnation)


async def wait_after_kill(incarnation: Incarnation) -> None:
    """Wait for a cancelled child's end, reporting every `overrun_s` that it still runs."""
    slot = incarnation.slot
    assert incarnation.killed_at is not None
    report_at = incarnation.killed_at + slot.spec.overrun_s
    # Carrying on after another wait was cancelled: reports that are due already were made.
    while report_at < trio.current_time():
        report_at += slot.spec.overrun_s
    if slot.spec.kind is not Kind.WORKER:
        report_at = math.inf
    while not incarnation.ended.is_set():
        with trio.move_on_at(report_at):
            await incarnation.ended.wait()
        if not incarnation.ended.is_set():
            now = trio.current_time()
            slot.core.listeners.emit(
                Overrun(
                    path=slot.path,
                    at=now,
                    incarnation=incarnation.number,
                    since_s=now - incarnation.killed_at,
                )
            )
            report_at += slot.spec.overrun_s
