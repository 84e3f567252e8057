"""A server for code outside Trio: test fixtures, benchmarks, child processes of a demo."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from types import TracebackType

from shove_actors._errors import EmbeddedServerError

from ._facts import ServerFacts
from ._guard import Gate, kill_group
from ._launch import Launch

# How often a starting server is looked at. It takes about 30 ms to start.
POLL_INTERVAL_S = 0.005
GRACE_S = 5.0


class ServerProcess(ServerFacts):
    """A `nats-server` child process as an ordinary context manager. Blocks; never use it in Trio.

        with ServerProcess() as server:
            print(server.url)

    The options are those of `embedded_server`, without supervision: a server that ends by itself
    stays down until `restart`. Leaving the block ends and reaps the process and removes what was
    temporary; that happens even when this process is killed.

    Raises `EmbeddedServerError` when no binary is found or the server does not start in time,
    `UsageError` for a bad option.
    """

    def __init__(
        self,
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
    ) -> None:
        self._prepare = partial(
            Launch,
            store_dir=store_dir,
            port=port,
            config=config,
            extra_args=extra_args,
            host=host,
            jetstream=jetstream,
            name=name,
            binary=binary,
        )
        self._startup_timeout_s = startup_timeout
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ServerProcess:
        # Only here, so that an object that is never entered holds nothing.
        super().__init__(self._prepare())
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def kill(self) -> None:
        """Ends the server at once (SIGKILL) and reaps it, as a crash would. Nothing is lost that
        the server had written. Harmless when it is not running."""
        if self._process is not None:
            if self._process.poll() is None:
                kill_group(self._process.pid)
            self._reap()

    def terminate(self, timeout: float = GRACE_S) -> None:
        """Asks the server to shut down (SIGTERM), waits, and kills it after `timeout` seconds."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        self._process.send_signal(signal.SIGCONT)  # a paused process would not see it otherwise
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            kill_group(self._process.pid)
        self._reap()

    def restart(self) -> None:
        """Starts the server again on the same port and store; a running one is terminated first.

        Returns when it listens. Raises `EmbeddedServerError` when it does not start.
        """
        self.terminate()
        self._start()

    def close(self) -> None:
        """Ends the server and removes what was temporary; what leaving the block does."""
        try:
            if self._launch.keeps_store:
                self.terminate()
            else:
                self.kill()
        finally:
            self._launch.close()

    def _start(self) -> None:
        gate = Gate()
        log = self._launch.open_log()
        try:
            process = subprocess.Popen(
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
            self._wait_ready(process)
        except BaseException:
            self.kill()
            raise

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._startup_timeout_s
        while not self._launch.is_ready(process.pid):
            status = process.poll()
            if status is not None:
                raise self._launch.failure(f"ended with status {status} before it was ready")
            if time.monotonic() >= deadline:
                raise self._launch.failure(
                    f"was not ready after {self._startup_timeout_s:g} s (startup_timeout)"
                )
            time.sleep(POLL_INTERVAL_S)

    def _reap(self) -> None:
        process = self._process
        if process is None:
            raise EmbeddedServerError("there is no server process")
        process.wait()
        self._launch.guard.protect(None)
        self._launch.forget(process.pid)
        self._process = self._child = None
