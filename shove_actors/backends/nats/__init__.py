"""The NATS JetStream backend."""

from ._backend import NatsBackend as NatsBackend
from ._config import NatsConfig as NatsConfig

__all__ = ["NatsBackend", "NatsConfig"]
