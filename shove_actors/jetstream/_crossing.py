"""A call from Trio to the asyncio side, with an end that Trio decides (PC-095).

trio-asyncio's own `run_aio_coroutine` cancels the asyncio task and then waits for it, however long
that takes; code in between that swallows the cancellation (nats-py does, and so does Python's
`wait_for` before 3.12) would overrun every deadline. Here the wait has a limit: after it the task
is left behind, which is logged, and what it may still produce is disposed of.

A call whose result was there before the cancellation arrived returns it, as `receive` does on a
channel: dropping an open session would leak its socket.
Tests: `test_pc095_*`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import trio
import trio_asyncio

from shove_actors._log import about

logger = logging.getLogger("shove_actors.jetstream")

#: How long a cancelled call may take to let go. Cleaning up takes a few passes of the loop.
LET_GO_S = 0.5

T = TypeVar("T")


async def cross(
    loop: trio_asyncio.TrioEventLoop,
    coroutine: Coroutine[Any, Any, T],
    *,
    dispose: Callable[[T], None] | None = None,
) -> T:
    """Run an asyncio-flavoured coroutine on `loop`; its result, or its exception.

    Cancelling cancels it, at most `LET_GO_S` before this returns. `dispose` gets the result of one
    that was left behind.
    """
    if loop.is_closed():
        coroutine.close()
        raise RuntimeError("the asyncio loop of the connection is closed")
    try:
        await trio.lowlevel.checkpoint_if_cancelled()
    except trio.Cancelled:
        coroutine.close()
        raise
    task = loop.create_task(coroutine)
    done = trio.Event()
    task.add_done_callback(lambda _: done.set())
    try:
        await done.wait()
    except trio.Cancelled:
        task.cancel()
        with trio.move_on_after(LET_GO_S, shield=True):
            await done.wait()
        if not task.done():
            name = getattr(coroutine, "__qualname__", "a call")
            logger.warning(
                "%s ignores its cancellation; it is left behind", name, extra=about("call_left")
            )

            def left(_: object) -> None:
                if not task.cancelled() and task.exception() is None and dispose is not None:
                    dispose(task.result())

            task.add_done_callback(left)
            raise
        if task.cancelled() or task.exception() is not None:
            raise
    result: T = task.result()
    return result
