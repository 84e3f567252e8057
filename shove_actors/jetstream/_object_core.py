"""What every part of an object store stands on: subjects, and the descriptions of objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from shove_actors._errors import (
    BadObjectMeta,
    MessageNotFound,
    NoResponders,
    ObjectNotFound,
    WrongLastSequence,
)

from ._object_info import ObjectInfo, check_object_name, encoded_name
from ._options import check_flag
from ._raw_message import RawMessage
from ._store_errors import of_bucket
from ._store_names import OBJECT_STREAM, chunk_prefix, meta_prefix
from ._stream_info import StreamInfo
from ._times import datetime_of_ns

if TYPE_CHECKING:
    from ._context import JetStream

_ROLLUP = {"Nats-Rollup": "sub"}
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
#: How often a description is written anew because somebody else has changed it meanwhile.
_TRIES = 20


class ObjectStoreCore:
    """One bucket.

    Descriptions are compared and set: a change is stored only if the description is still the one
    that it was made from. So of two writers the later one wins, and knows whose chunks to remove.
    """

    def __init__(self, js: JetStream, info: StreamInfo) -> None:
        self._js = js
        self._stream = info.config.name
        self._direct = info.config.allow_direct
        self.bucket = info.config.name[len(OBJECT_STREAM) :]
        self._chunk_prefix = chunk_prefix(self.bucket)
        self._meta_prefix = meta_prefix(self.bucket)

    def __repr__(self) -> str:
        return f"<ObjectStore {self.bucket}>"

    async def info(self, name: str, *, show_deleted: bool = False) -> ObjectInfo:
        """An object's description. Raises `ObjectNotFound`, also for a deleted one (unless
        `show_deleted`), and `BadObjectMeta` for one that no client has written."""
        check_flag("show_deleted", show_deleted)
        info = await self._find(name)
        if info is None or (info.deleted and not show_deleted):
            raise ObjectNotFound(f"there is no object {name!r} in bucket {self.bucket!r}")
        return info

    async def _find(self, name: str, *, direct: bool = True) -> ObjectInfo | None:
        """The description, also of a deleted object; None without one."""
        subject = self._meta_subject(name)
        try:
            message = await self._stored({"last_by_subj": subject}, direct and self._direct)
        except MessageNotFound:
            return None
        return ObjectInfo.read(
            message.data,
            modified=datetime_of_ns(message.time_ns),
            revision=message.sequence,
        )

    async def _stored(self, which: dict[str, object], direct: bool) -> RawMessage:
        if direct:
            try:
                return await self._js.stored_message(self._stream, which, direct=True)
            except NoResponders:
                pass  # no replica answers just now, or the bucket was changed: ask the leader
        with of_bucket(self.bucket):
            return await self._js.stored_message(self._stream, which)

    async def _describe(
        self, name: str, change: Callable[[ObjectInfo | None], ObjectInfo]
    ) -> tuple[ObjectInfo, ObjectInfo | None]:
        """Store `change(what is there)`; returns both. `change` raises to refuse."""
        for attempt in range(_TRIES):
            # After a refusal from the leader: a replica may not have what it compared with.
            before = await self._find(name, direct=attempt == 0)
            after = change(before)
            try:
                revision = await self._write(after, 0 if before is None else before.revision)
            except WrongLastSequence:
                if attempt == _TRIES - 1:
                    raise
                continue
            return _stored_as(after, revision, self._js.clock.now_ns()), before
        raise AssertionError("not reached")

    async def _write(self, info: ObjectInfo, expected: int) -> int:
        headers = {**_ROLLUP, _EXPECTED: str(expected)}
        ack = await self._js.publish(self._meta_subject(info.name), info.wire(), headers=headers)
        return ack.sequence

    async def _remove_chunks(self, nuid: str) -> None:
        if nuid:
            await self._js.purge_stream(self._stream, subject=self._chunk_subject(nuid))

    def _chunk_subject(self, nuid: str) -> str:
        if not nuid or "." in nuid:
            raise BadObjectMeta(f"an object of bucket {self.bucket!r} does not name its chunks")
        return self._chunk_prefix + nuid

    def _meta_subject(self, name: str) -> str:
        return self._meta_prefix + encoded_name(check_object_name(name))

    @property
    def _patience(self) -> float:
        """Seconds for one request, or one sign of life."""
        timeout = self._js.timeout
        return self._js.connection.request_timeout if timeout is None else timeout


def _stored_as(info: ObjectInfo, revision: int, now_ns: int) -> ObjectInfo:
    return replace(info, revision=revision, modified=datetime_of_ns(now_ns))
