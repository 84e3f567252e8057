"""What both kinds of server handle offer without waiting."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Protocol

from shove_actors._errors import EmbeddedServerError

from ._launch import Launch


class Child(Protocol):
    """The common part of `subprocess.Popen` and `trio.Process`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def send_signal(self, sig: signal.Signals) -> None: ...


class ServerFacts:
    """Address, process and log of a server, and pausing it."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._child: Child | None = None
        self._last_pid = 0

    @property
    def url(self) -> str:
        """The address for clients, such as `nats://127.0.0.1:41909` (`tls://` with TLS)."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self._launch.scheme}://{host}:{self.port}"

    @property
    def host(self) -> str:
        return self._launch.host

    @property
    def port(self) -> int:
        """The client port. It stays the same over restarts."""
        return self._launch.port

    @property
    def name(self) -> str:
        """The server's name, as clients see it in the server's INFO."""
        return self._launch.name

    @property
    def store_dir(self) -> Path:
        """Where JetStream keeps its files. It stays the same over restarts."""
        return self._launch.store_dir

    @property
    def pid(self) -> int:
        """The pid of the present server, or of the last one when none is running."""
        return self._last_pid

    @property
    def running(self) -> bool:
        """Whether the server process exists (a paused one does)."""
        return self._child is not None and self._child.poll() is None

    def log_tail(self, lines: int = 50) -> str:
        """The last lines of what the server logged, over restarts too. For tests and errors."""
        return self._launch.log_tail(lines)

    def pause(self) -> None:
        """Stops the process without ending it (SIGSTOP): connections stay, nothing answers.

        Returns once the process has stopped. Raises `EmbeddedServerError` when none is running.
        """
        child = self._running_child("pause")
        child.send_signal(signal.SIGSTOP)
        if hasattr(os, "waitid"):
            # WEXITED keeps this from waiting for a stop that an ended process never makes;
            # WNOWAIT leaves the exit status to its owner.
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continues a paused process (SIGCONT). Harmless when it was not paused."""
        self._running_child("resume").send_signal(signal.SIGCONT)

    def _running_child(self, verb: str) -> Child:
        if self._child is None or self._child.poll() is not None:
            raise EmbeddedServerError(f"cannot {verb} the server: it is not running; restart() it")
        return self._child

    def __repr__(self) -> str:
        if not hasattr(self, "_launch"):
            return f"<{type(self).__name__} not entered>"
        state = f"pid {self.pid}" if self.running else "not running"
        return f"<{type(self).__name__} {self.url} {state}>"
