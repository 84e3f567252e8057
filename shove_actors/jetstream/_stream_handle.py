"""A stream, as an object: what nats.go calls `jetstream.Stream`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._stream import StreamConfig, StreamInfo
from ._stream_consumers import StreamConsumers

if TYPE_CHECKING:
    from ._context import JetStream


class Stream(StreamConsumers):
    """One stream. Made by `JetStream.stream`, `create_stream` and their like, never by hand."""

    def __init__(self, js: JetStream, info: StreamInfo) -> None:
        self._js = js
        self.name = info.config.name
        self._info = info

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    @property
    def cached_info(self) -> StreamInfo:
        """What the last answer told; asks nobody. `info` refreshes it."""
        return self._info

    @property
    def config(self) -> StreamConfig:
        """The configuration of `cached_info`."""
        return self._info.config
