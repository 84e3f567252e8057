"""The NATS JetStream backend."""

from ._backend import NatsBackend as NatsBackend

__all__ = ["NatsBackend"]
