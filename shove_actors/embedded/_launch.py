"""What starting a server needs and leaves behind; everything here that waits for nothing.

Whose server answers? A port alone proves nothing: another program may have taken it. The server
writes a ports file only after it listens, named after its own pid, into a directory that only this
process and its guard know. So "ready" means: the process that was started here is the listener.
A server that cannot have the port ends by itself and writes no such file.

Tests: `test_port_in_use`, `test_a_foreign_server_is_not_mistaken_for_ours`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from shove_actors._errors import EmbeddedServerError, UsageError

from ._binary import find_binary
from ._guard import Guard, gated
from ._port import PortReservation

# Arguments after which the server expects something that must not be shown.
_SECRET_FLAGS = frozenset({"--pass", "-pass", "--auth", "-auth"})
_LOG_TAIL_BYTES = 64 * 1024


class Launch:
    """The private directory, the reserved port, the guard and the command line of one server.

    `close` releases all of them; it may be called more than once.
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
        binary: str | os.PathLike[str] | None = None,
    ) -> None:
        if not 0 <= port <= 65535:
            raise UsageError(f"port is {port}; it must be 0 (a free one) or lie in 1..65535")
        if isinstance(extra_args, str):
            raise UsageError("extra_args is a string; give a sequence, one argument per item")
        self.binary = find_binary(binary)
        self.host = host
        self.name = name if name is not None else f"embedded-{uuid.uuid4().hex[:8]}"
        self.keeps_store = store_dir is not None
        self._jetstream = jetstream
        self._extra_args = [str(argument) for argument in extra_args]
        self._reservation = PortReservation(host, port)
        self.port = self._reservation.port
        self.scheme = "nats"
        try:
            self.private_dir = Path(tempfile.mkdtemp(prefix="shove-nats-"))
        except BaseException:
            self._reservation.close()
            raise
        try:
            self.log_path = self.private_dir / "server.log"
            self.store_dir = (
                Path(store_dir).absolute() if store_dir is not None else self.private_dir / "store"
            )
            self._config_path: Path | None = None
            self.guard = Guard(str(self.private_dir))
        except BaseException:
            self._reservation.close()
            shutil.rmtree(self.private_dir, ignore_errors=True)
            raise
        try:
            if config is not None:
                self._config_path = self.private_dir / "server.conf"
                self._config_path.write_text(config, encoding="utf-8")
        except BaseException:
            self.close()
            raise

    def command(self) -> list[str]:
        """The gated command line; the process becomes the server when its gate opens."""
        command = [
            str(self.binary),
            *("-a", self.host, "-p", str(self.port or -1), "-n", self.name),
            *("--ports_file_dir", str(self.private_dir)),
        ]
        if self._config_path is not None:
            command += ["-c", str(self._config_path)]
        if self._jetstream:
            command += ["-js", "-sd", str(self.store_dir)]
        return gated(command + self._extra_args)

    def open_log(self) -> int:
        return os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def is_ready(self, pid: int) -> bool:
        """Whether the process `pid` listens. Learns the port where the server chose it itself."""
        for path in self.private_dir.glob(f"*_{pid}.ports"):
            try:
                urls = json.loads(path.read_text(encoding="utf-8"))["nats"]
                scheme, _, address = urls[0].partition("://")
                port = int(address.rpartition(":")[2])
            except (OSError, ValueError, LookupError, TypeError):
                return False  # still being written
            self.scheme, self.port = scheme, port
            return True
        return False

    def forget(self, pid: int) -> None:
        """Removes the ports file of a process that ended, because pids are used again."""
        for path in self.private_dir.glob(f"*_{pid}.ports"):
            path.unlink(missing_ok=True)

    def log_tail(self, lines: int) -> str:
        try:
            with open(self.log_path, "rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(0, size - _LOG_TAIL_BYTES))
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:]) if lines > 0 else ""

    def failure(self, what: str) -> EmbeddedServerError:
        """The error to raise, with what the server said last and no secret in it."""
        from shove_actors.jetstream._redact import redact

        secrets = [
            value
            for flag, value in zip(self._extra_args, self._extra_args[1:], strict=False)
            if flag in _SECRET_FLAGS
        ]
        said = redact(self.log_tail(12), secrets)
        ending = f" Its log ends with:\n{said}" if said else ""
        return EmbeddedServerError(f"nats-server ({self.binary}) {what}.{ending}")

    def close(self) -> None:
        self._reservation.close()
        shutil.rmtree(self.private_dir, ignore_errors=True)
        self.guard.close()
