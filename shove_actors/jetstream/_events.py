"""What happens to a connection, as records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ConnectionEventKind = Literal[
    "connected", "disconnected", "reconnected", "closed", "error", "discovered", "lame_duck"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionEvent:
    """`server` is a redacted address; `error` the cause, if any, with redacted text."""

    kind: ConnectionEventKind
    server: str = ""
    error: Exception | None = None
