"""MemoryConfig: how to reach a server in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shove_actors._errors import ConfigError
from shove_actors.backends._port import Backend

from ._backend import MemoryBackend
from ._server import MemoryServer


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """How to reach a server in memory, for `open_broker`.

    `server`: the server to connect to; left out, the configuration makes one of its own and keeps
    it, so opening it twice finds the same messages. Share one between configurations to play
    several processes. `name`: tells processes apart for `server.faults`; left out, the next
    `memory-N`. `max_payload`: bytes, headers included; a shared server's own limit holds as well.
    `ack_timeout`: seconds until a publish without an answer ends with `PublishUnknown`.

    Raises `ConfigError` naming the field.

        async with open_broker(MemoryConfig()) as broker: ...
    """

    # Filled in below when it is left out: a reader always finds a server here.
    server: MemoryServer = None  # type: ignore[assignment]
    name: str | None = None
    max_payload: int = 1_048_576
    ack_timeout: float = 5.0

    def __post_init__(self) -> None:
        if self.name is not None and not self.name:
            raise ConfigError("name must not be empty: leave it out to have one chosen")
        if self.max_payload < 1:
            raise ConfigError(f"max_payload must be at least 1 byte, not {self.max_payload}")
        if not (math.isfinite(self.ack_timeout) and self.ack_timeout > 0):
            raise ConfigError(f"ack_timeout must be seconds above 0, not {self.ack_timeout}")
        given: MemoryServer | None = self.server
        if given is None:
            object.__setattr__(self, "server", MemoryServer(max_payload=self.max_payload))

    def create_backend(self) -> Backend:
        """A backend that is not connected yet: its `run` connects it."""
        return MemoryBackend(
            self.server,
            name=self.name,
            max_payload=self.max_payload,
            ack_timeout_s=self.ack_timeout,
        )
