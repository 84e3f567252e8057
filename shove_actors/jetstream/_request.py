"""One request, one reply: a task that waits for an entry of the reply inbox.

No future and no event: the reply reschedules the task that waits, within the socket's callback.
The reply may come before the task has begun to wait (nothing forbids a transport to answer within
the write), so the result is looked at first.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from shove_actors._errors import ConnectionError, PermissionDenied

from ._replies import Replies
from ._wire import status_of


class Reply:
    """An answer to `request`: payload, and the status line for a status message."""

    __slots__ = ("header_block", "payload")

    def __init__(self, payload: bytes, header_block: bytes | None) -> None:
        self.payload = payload
        self.header_block = header_block

    @property
    def status(self) -> tuple[int, str] | None:
        return None if self.payload else status_of(self.header_block)


class _Waiter:
    """One task waiting for one reply."""

    __slots__ = ("result", "subject", "task")

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.task: trio.lowlevel.Task | None = None
        self.result: Reply | Exception | None = None


def _resume(argument: object, header_block: bytes | None, payload: bytes | Exception) -> None:
    waiter = argument
    assert isinstance(waiter, _Waiter)
    waiter.result = payload if isinstance(payload, Exception) else Reply(payload, header_block)
    if waiter.task is not None:
        task, waiter.task = waiter.task, None
        trio.lowlevel.reschedule(task)


async def ask(replies: Replies, subject: str, send: Callable[[bytes], object]) -> Reply:
    """`send(reply_subject)` to `subject`, then wait for the reply, however long it takes.

    Raises `ConnectionError` when the connection was lost meanwhile, `PermissionDenied` when this
    user may not ask there, or may not hear the answer. Cancelling forgets the reply; the request
    has been sent.
    """
    if isinstance(replies.denied, PermissionDenied):
        raise _own(replies.denied)
    waiter = _Waiter(subject)
    reply_to = replies.expect(_resume, waiter)
    try:
        send(reply_to)
        if waiter.result is None:
            waiter.task = trio.lowlevel.current_task()

            def abort(_: object) -> trio.lowlevel.Abort:
                waiter.task = None
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
    finally:
        replies.forget(reply_to)
    if isinstance(waiter.result, PermissionDenied):
        raise _own(waiter.result)
    if isinstance(waiter.result, Exception):
        raise ConnectionError(str(waiter.result))  # one of its own for each task
    assert waiter.result is not None
    return waiter.result


def _own(error: PermissionDenied) -> PermissionDenied:
    """Another one of the same: each task gets a traceback of its own."""
    return PermissionDenied(str(error), subject=error.subject, operation=error.operation)
