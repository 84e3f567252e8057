"""What every part of a key-value handle stands on: the names of a bucket on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._store_names import KV_STREAM, kv_prefix
from ._stream_info import StreamInfo

if TYPE_CHECKING:
    from ._context import JetStream


class KeyValueCore:
    """One bucket: where its keys are read, and where they are written.

    A mirror keeps its origin's subjects, so its keys are read below the origin's name, and what is
    written goes to the origin: in another domain by way of that domain's prefix.
    """

    def __init__(self, js: JetStream, info: StreamInfo) -> None:
        config = info.config
        self._js = js
        self._stream = config.name
        self._direct = config.allow_direct
        self.bucket = config.name[len(KV_STREAM) :]
        mirror = config.mirror
        origin = self.bucket if mirror is None else mirror.name.removeprefix(KV_STREAM)
        self._read_prefix = kv_prefix(origin)
        if mirror is not None and mirror.external is not None and mirror.external.api:
            self._write_prefix = f"{mirror.external.api.rstrip('.')}.{kv_prefix(origin)}"
        else:
            # A bucket of another domain is written through that domain's prefix, too.
            away = "" if js.prefix == "$JS.API." else js.prefix
            self._write_prefix = away + kv_prefix(origin)

    def __repr__(self) -> str:
        return f"<KeyValue {self.bucket}>"
