"""The embedded server: a supervised `nats-server` child of a Trio program.

One lock orders the four things that may start or end the process: the user's `kill`, `terminate`
and `restart`, and the supervisor's restart after a crash. A deliberate end takes the process out
of `_process` under that lock, so the supervisor, which wakes up on every end, can tell it from a
crash: it acts only if the process it was watching is still the present one.

Cancellation: a start that is cancelled kills and reaps what it has started. Ending a process is
shielded and short, because an unreaped child would outlive the block.
Tests: `test_cancelled_while_starting`, `test_kill_is_not_undone_by_the_supervisor`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from shove_actors._errors import EmbeddedServerError
from shove_actors._real_clock import refuse_mock_clock, require_trio

from ._facts import ServerFacts
from ._guard import Gate, kill_group
from ._launch import Launch
from ._process import GRACE_S, POLL_INTERVAL_S

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

_log = logging.getLogger("shove_actors.embedded")

RESTART_LIMIT = 5
RESTART_WINDOW_S = 30.0
_BACKOFF_FIRST_S = 0.05
_BACKOFF_MOST_S = 2.0


class EmbeddedServer(ServerFacts):
    """A running server; made by `embedded_server`."""

    def __init__(self, launch: Launch, startup_timeout_s: float) -> None:
        super().__init__(launch)
        self._startup_timeout_s = startup_timeout_s
        self._process: trio.Process | None = None
        self._lock = trio.Lock()
        self._started = trio.Event()
        self._restarts = 0

    @property
    def restarts(self) -> int:
        """How often the supervisor has brought the server back after it ended by itself."""
        return self._restarts

    async def kill(self) -> None:
        """Ends the server at once (SIGKILL) and reaps it, as a crash would.

        It stays down, supervised or not, until `restart`. Harmless when it is not running.
        """
        async with self._lock:
            await self._end(grace_s=0)

    async def terminate(self, timeout: float = GRACE_S) -> None:
        """Asks the server to shut down (SIGTERM), waits, and kills it after `timeout` seconds.

        It stays down until `restart`. Cancelled while waiting, it kills the server at once.
        """
        async with self._lock:
            await self._end(grace_s=timeout)

    async def restart(self) -> None:
        """Starts the server again on the same port and store; a running one is terminated first.

        Returns when it listens. Cancelled, or when it does not start (`EmbeddedServerError`), no
        server is running.
        """
        async with self._lock:
            await self._end(grace_s=GRACE_S)
            await self._start()

    async def _start(self) -> None:
        gate = Gate()
        log = self._launch.open_log()
        try:
            process = await trio.lowlevel.open_process(
                self._launch.command(),
                stdin=gate.child_end,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self._process = self._child = process
            self._last_pid = process.pid
            self._launch.guard.protect(process.pid)
            gate.release()
        finally:
            gate.close()
            os.close(log)
        try:
            await self._wait_ready(process)
        except BaseException:
            await self._end(grace_s=0)
            raise
        self._started.set()

    async def _wait_ready(self, process: trio.Process) -> None:
        # Nothing but its ports file tells that another program listens, so this looks repeatedly.
        with trio.move_on_after(self._startup_timeout_s):
            while not self._launch.is_ready(process.pid):
                status = process.poll()
                if status is not None:
                    raise self._launch.failure(f"ended with status {status} before it was ready")
                await trio.sleep(POLL_INTERVAL_S)
            return
        raise self._launch.failure(
            f"was not ready after {self._startup_timeout_s:g} s (startup_timeout)"
        )

    async def _end(self, *, grace_s: float) -> None:
        process = self._process
        if process is None:
            return
        # From here on the supervisor knows that this end is deliberate.
        self._process = self._child = None
        self._started = trio.Event()
        try:
            if grace_s > 0:
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)  # a paused process would not see it otherwise
                with trio.move_on_after(grace_s):
                    await process.wait()
        finally:
            if process.poll() is None:
                kill_group(process.pid)
            with trio.CancelScope(shield=True):
                await process.wait()
            self._launch.guard.protect(None)
            self._launch.forget(process.pid)

    async def _supervise(self) -> None:
        ends: deque[float] = deque()
        while True:
            await self._started.wait()
            process = self._process
            if process is None:
                # Taken down between being set and being read here.
                await trio.lowlevel.checkpoint()
                continue
            await process.wait()
            async with self._lock:
                if self._process is not process:
                    continue
                status = process.returncode
                await self._end(grace_s=0)
            await self._bring_back(f"ended by itself with status {status}", ends)

    async def _bring_back(self, what: str, ends: deque[float]) -> None:
        while True:
            now = trio.current_time()
            ends.append(now)
            while ends[0] <= now - RESTART_WINDOW_S:
                ends.popleft()
            if len(ends) > RESTART_LIMIT:
                raise self._launch.failure(
                    f"{what}; that was end number {len(ends)} within {RESTART_WINDOW_S:g} s, and "
                    f"{RESTART_LIMIT} restarts are allowed"
                )
            delay = min(_BACKOFF_MOST_S, _BACKOFF_FIRST_S * 2 ** (len(ends) - 1))
            _log.warning(
                "the embedded nats-server %s; restarting it in %g s",
                what,
                delay,
                extra={"server": self.name, "pid": self.pid, "delay_s": delay},
            )
            await trio.sleep(delay)
            async with self._lock:
                if self._process is not None:
                    return  # the user's restart came first
                try:
                    await self._start()
                except EmbeddedServerError as error:
                    what = "could not be restarted"
                    _log.warning("%s", error, extra={"server": self.name})
                else:
                    self._restarts += 1
                    return


@asynccontextmanager
async def embedded_server(
    *,
    store_dir: str | os.PathLike[str] | None = None,
    port: int = 0,
    config: str | None = None,
    extra_args: Sequence[str] = (),
    host: str = "127.0.0.1",
    jetstream: bool = True,
    name: str | None = None,
    startup_timeout: float = 10.0,
    binary: str | os.PathLike[str] | None = None,
    supervise: bool = True,
) -> AsyncIterator[EmbeddedServer]:
    """Runs a `nats-server` for the length of an `async with` block.

        async with embedded_server() as server:
            async with open_broker(NatsConfig(server.url)) as broker:
                ...

    * `store_dir`: where JetStream keeps its files. None is a temporary directory that is removed;
      a directory that you name is kept, and its server is shut down gracefully.
    * `port`: 0 is a free one. Whoever else listens there is never mistaken for this server.
    * `config`: the text of a server configuration file; arguments override what it says. Secrets
      belong here (the file is private), not into `extra_args`, which every user of the machine
      can see.
    * `host`: the address to listen on, by default reachable from this machine only.
    * `name`: the server's name; a unique one by default.
    * `startup_timeout`: seconds until the server must listen.
    * `supervise`: restart a server that ends by itself, on the same port and store, at most five
      times in 30 seconds; one more end raises `EmbeddedServerError` through the block.

    The block is entered when the server listens. When it is left, however it is left, the process
    has ended and been reaped and everything temporary is gone; a small guard process sees to that
    even when this process is killed. An exception of the block leaves it as it is, not in a group.

    Raises `EmbeddedServerError` when no binary is found, the port is taken or the server does not
    start in time; `UsageError` for a bad option, or under a virtual clock, which would skip the
    timeouts of real I/O.
    """
    require_trio("embedded_server")
    refuse_mock_clock("embedded_server")
    # A limiter of its own: leaving must not wait for whatever fills the default one.
    limiter = trio.CapacityLimiter(1)
    launch = await trio.to_thread.run_sync(
        partial(
            Launch,
            store_dir=store_dir,
            port=port,
            config=config,
            extra_args=extra_args,
            host=host,
            jetstream=jetstream,
            name=name,
            binary=binary,
        ),
        limiter=limiter,
    )
    server = EmbeddedServer(launch, startup_timeout)
    try:
        try:
            async with trio.open_nursery(strict_exception_groups=True) as nursery:
                await server._start()
                if supervise:
                    nursery.start_soon(server._supervise, name="embedded server supervisor")
                yield server
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            if len(group.exceptions) > 1:
                raise
            _raise_as_it_was(group.exceptions[0])
    finally:
        with trio.CancelScope(shield=True):
            await server._end(grace_s=GRACE_S if launch.keeps_store else 0)
            await trio.to_thread.run_sync(launch.close, limiter=limiter)


def _raise_as_it_was(error: BaseException) -> None:
    """Raises without recording the group, an internal matter, as the error's context."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
