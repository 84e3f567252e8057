"""The consumers of one stream, as methods of its handle."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._context import JetStream


class StreamConsumers:
    """The part of `Stream` that is about its consumers. `_js` and `name` are the handle's."""

    _js: JetStream
    name: str
