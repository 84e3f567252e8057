"""Who hears of what happens to a connection: those who listen, and the configuration's callbacks.

All of them are foreign code inside our callbacks: none may end the connection by raising.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable

from shove_actors._log import about

from ._config import NatsConfig
from ._events import ConnectionEvent

logger = logging.getLogger("shove_actors.jetstream")

Listener = Callable[[ConnectionEvent], None]


class Listeners:
    """Listeners in the order in which they came. The callbacks of `config` come first."""

    __slots__ = ("_config", "_listeners")

    def __init__(self, config: NatsConfig) -> None:
        self._config = config
        self._listeners: list[Listener] = [self._call_user]

    def add(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def remove(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def tell(self, event: ConnectionEvent) -> None:
        """One that raises is logged and removed."""
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:
                logger.exception(
                    "a connection listener failed and was removed", extra=about("listener_failed")
                )
                self.remove(listener)

    def _call_user(self, event: ConnectionEvent) -> None:
        """The callbacks of the configuration. One that raises is logged, never passed on."""
        callback = {
            "disconnected": self._config.on_disconnected,
            "reconnected": self._config.on_reconnected,
            "closed": self._config.on_closed,
            "error": self._config.on_error,
            "connected": self._config.on_connected,
            "discovered": self._config.on_discovered,
            "lame_duck": self._config.on_lame_duck,
        }.get(event.kind)
        if callback is not None:
            try:
                answer = callback(event)
                if inspect.iscoroutine(answer):
                    # An async function in disguise, a lambda say; the others are refused.
                    answer.close()
                    raise TypeError("it is async, and nobody awaits it: give a plain function")
            except Exception:
                logger.exception(
                    "the on_%s callback failed",
                    event.kind,
                    extra=about("connection_callback_failed", callback=f"on_{event.kind}"),
                )
