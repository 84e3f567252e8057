"""Publishing into streams."""

from __future__ import annotations

from ._context_core import ContextCore


class PublishApi(ContextCore):
    """The part of `JetStream` that publishes."""
