"""The connection's configuration, which also knows how to make its backend."""

from __future__ import annotations

from dataclasses import dataclass

from shove_actors import jetstream

from ._backend import NatsBackend


@dataclass(slots=True, repr=False)
class NatsConfig(jetstream.NatsConfig):
    """`jetstream.NatsConfig` for `open_broker`; same settings, same redaction."""

    def create_backend(self) -> NatsBackend:
        """A backend that connects with these settings once it runs."""
        return NatsBackend(self)
