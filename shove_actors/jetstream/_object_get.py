"""Reading an object: its chunks in order, checked against its digest."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import trio

from shove_actors._errors import (
    CantGetBucket,
    DigestMismatch,
    JetStreamError,
    NoLinkToLink,
    ObjectChanged,
    ObjectCorrupt,
    ObjectError,
    RequestTimeout,
)

from ._block import block
from ._object_chunks import Progress
from ._object_core import ObjectStoreCore
from ._object_info import ObjectInfo
from ._options import check_count, check_kind
from ._ordered_push import OrderedPush, OrderedRequest, ordered_push
from ._store_errors import Translate, bucket_errors

#: Consumers are replaced after two heartbeats; that has to be well within the patience with them.
_HEARTBEATS = 4
_SLOWEST_HEARTBEAT = 5.0
#: How often a reader looks whether the server is silent, in the patience with it.
_LOOKS = 4
#: With a shorter patience it is still that much: a cluster takes 5 to 11 s to elect a leader.
_SHORTEST_SILENCE = 15.0
#: How often a reader that finds the content replaced begins with the new one.
_TRIES = 5
#: A replica gets that long, and then twice, four times ... to have what the leader has.
_CATCH_UP_S = 0.1
#: Written to a file at once.
_BLOCK = 1 << 20


class ObjectReader(trio.abc.ReceiveStream):
    """An object's content as a stream of bytes, chunk by chunk as it was stored.

        async with store.get("report.pdf") as reader:
            print(reader.info.size)
            async for chunk in reader:
                ...

    What has been read is the object only when the end was reached without an exception: the last
    chunk is handed out after the digest has been compared (`DigestMismatch`). `ObjectCorrupt`:
    chunks are missing; `ObjectChanged`, one of those, because somebody has overwritten or deleted
    the object meanwhile: read it again. `RequestTimeout`: the server says nothing, for the time of
    one request (five seconds at least); reading may be gone on with. Lost connections are bridged;
    `ConnectionClosed` ends it. A cancelled read loses nothing. Closed, by `aclose` or by leaving
    the block, it raises `trio.ClosedResourceError`.
    """

    def __init__(
        self,
        info: ObjectInfo,
        push: OrderedPush | None,
        patience: float,
        translate: Translate,
        find: Callable[[], Awaitable[ObjectInfo | None]],
    ) -> None:
        #: The description of what is being read (of the target, if that was a link).
        self.info = info
        self._push = push
        self._patience = patience
        self._translate = translate
        #: What the bucket describes under this name now.
        self._find = find
        self._closed = False
        self._progress = Progress(info.size, info.digest)
        self._rest = b""
        self._ended = push is None
        self._failure: ObjectError | None = None

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The next chunk, or what is left of one, at most `max_bytes` of it; b"" at the end."""
        if max_bytes is not None:
            check_count("max_bytes", max_bytes)
        if self._closed:
            await trio.lowlevel.checkpoint()
            raise self._closed_error()
        if self._rest:
            await trio.lowlevel.checkpoint()
            data, self._rest = self._rest, b""
        elif self._failure is not None:
            raise type(self._failure)(str(self._failure))
        elif self._ended:
            await trio.lowlevel.checkpoint()
            return b""
        else:
            try:
                data = await self._next()
            except ObjectError as exc:
                self._failure = exc
                raise
        if max_bytes is not None and len(data) > max_bytes:
            data, self._rest = data[:max_bytes], data[max_bytes:]
        return data

    async def __anext__(self) -> bytes:
        chunk = await self.receive_some()
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def read_all(self) -> bytes:
        """The rest of it. Cancelled, it has lost what it had read by then."""
        return b"".join([chunk async for chunk in self])

    async def aclose(self) -> None:
        """Read no more: whoever reads now or later gets `trio.ClosedResourceError`."""
        self._close()
        await trio.lowlevel.checkpoint()

    def _close(self) -> None:
        self._closed = True
        self._rest = b""
        if self._push is not None:
            self._push.stop()

    def _closed_error(self) -> trio.ClosedResourceError:
        return trio.ClosedResourceError(
            f"this reader of object {self.info.name!r} was closed; what it has handed out may be "
            "a part of the object only"
        )

    async def _next(self) -> bytes:
        push, progress = self._push, self._progress
        assert push is not None
        began = silent_since = trio.current_time()
        alive_since: float | None = began
        renewals = push.renewals
        while True:
            with trio.move_on_after(self._patience / _LOOKS):
                try:
                    message = await push.buffer.receive()
                except trio.EndOfChannel:
                    if self._closed:
                        raise self._closed_error() from None
                    return b""  # another task has read the end
                except JetStreamError as exc:
                    self._translate(exc)
                    raise
                break
            now = trio.current_time()
            if not push.connected:
                silent_since = now  # how long to try is the connection's decision
            if not push.alive or push.renewals != renewals:
                alive_since, renewals = None, push.renewals
                limit = max(self._patience, _SHORTEST_SILENCE)
                if now - silent_since >= limit:
                    raise self._silent(now - silent_since)
            elif alive_since is None:
                alive_since = now
            elif now - alive_since >= self._patience:
                # Its heartbeats came, or it would have been replaced.
                raise await self._missing(f"no chunk within {self._patience:g} s")
        if message is None:
            raise await self._missing("its chunks are missing")
        if not progress.add(message.payload):
            raise await self._missing("it has more content than it should have")
        if progress.complete:
            self._ended = True
            push.stop()
            if not progress.genuine:
                raise DigestMismatch(
                    f"the content of object {self.info.name!r} is not what was stored: its "
                    "SHA-256 digest differs; discard what was read"
                )
        elif message.pending == 0:
            raise await self._missing("chunks at its end are missing")
        return message.payload

    async def _missing(self, why: str) -> ObjectCorrupt:
        """Because it is not what the bucket has any more, or for no good reason?"""
        now = await self._find()
        name, size, missing = self.info.name, self.info.size, self._progress.missing
        if now is None or now.deleted or now.nuid != self.info.nuid:
            happened = "deleted" if now is None or now.deleted else "overwritten"
            return ObjectChanged(
                f"object {name!r} was {happened} while it was being read, with {missing} of "
                f"{size} bytes to come; read it again"
            )
        return ObjectCorrupt(
            f"object {name!r} cannot be read: {why}, with {missing} of {size} bytes to come; store "
            "it again"
        )

    def _silent(self, seconds: float) -> RequestTimeout:
        return RequestTimeout(
            f"object {self.info.name!r} cannot be read on: the server has not answered for "
            f"{seconds:.0f} s, with {self._progress.missing} of {self.info.size} bytes to come; "
            "what is stored is not in doubt, read it again later"
        )


@contextlib.contextmanager
def _closing(reader: ObjectReader) -> Iterator[None]:
    try:
        yield
    finally:
        reader._close()


class ObjectStoreGet(ObjectStoreCore):
    """The part of `ObjectStore` that reads content."""

    def get(
        self, name: str, *, show_deleted: bool = False
    ) -> AbstractAsyncContextManager[ObjectReader]:
        """An object's content as an async byte stream, see `ObjectReader`.

        A link to an object is followed, also into another bucket. With `show_deleted` a deleted
        object is an empty stream. Entering raises `ObjectNotFound`, `CantGetBucket` (a link to a
        bucket), `ObjectCorrupt`, `BadObjectMeta`, `ApiError`, `RequestTimeout`. Leaving it early
        ends the transfer; no subscription is left.
        """
        return self._reading(name, show_deleted)

    @block(ObjectReader, "get(...)")
    async def _reading(self, name: str, show_deleted: bool) -> AsyncIterator[ObjectReader]:
        info = await self.info(name, show_deleted=show_deleted)
        if info.link is not None and not info.deleted:
            store, info = await self._target(info)
        else:
            store = self
        async with store._content(info) as reader:
            yield reader

    async def _target(self, info: ObjectInfo) -> tuple[ObjectStoreGet, ObjectInfo]:
        link = info.link
        assert link is not None
        if link.name is None:
            raise CantGetBucket(
                f"object {info.name!r} is a link to the bucket {link.bucket!r}; open that one"
            )
        store: ObjectStoreGet = self
        if link.bucket != self.bucket:
            store = await self._js.object_store(link.bucket)
        target = await store.info(link.name)
        if target.link is not None:
            raise NoLinkToLink(
                f"object {info.name!r} is a link to {link.name!r}, which is a link itself"
            )
        return store, target

    @asynccontextmanager
    async def _content(self, info: ObjectInfo) -> AsyncIterator[ObjectReader]:
        translate = bucket_errors(self.bucket)
        if info.size == 0 or info.deleted:
            reader = self._reader(info, None, translate)
            if info.digest and not info.deleted and not reader._progress.genuine:
                raise DigestMismatch(f"object {info.name!r} is empty, but its digest is not")
            with _closing(reader):
                yield reader
            return
        for attempt in range(_TRIES):
            request = OrderedRequest(
                stream=self._stream,
                filters=(self._chunk_subject(info.nuid),),
                heartbeat=max(0.1, min(_SLOWEST_HEARTBEAT, self._patience / _HEARTBEATS)),
                mark=True,
            )
            async with ordered_push(self._js, request, translate) as push:
                if push.initial_pending >= info.chunks:
                    reader = self._reader(info, push, translate)
                    with _closing(reader):
                        yield reader
                    return
            # Removed: because there is newer content?
            newer = await self._find(info.name, direct=False)
            if newer is None or newer.deleted or newer.is_link:
                raise ObjectChanged(f"object {info.name!r} was removed just now")
            if newer.nuid == info.nuid and attempt < _TRIES - 1:
                # In a cluster the consumer may be where the last chunks have not arrived yet.
                await trio.sleep(_CATCH_UP_S * 2**attempt)
            elif newer.nuid == info.nuid:
                raise ObjectCorrupt(
                    f"object {info.name!r} cannot be read: {push.initial_pending} of its "
                    f"{info.chunks} chunks are there; store it again"
                )
            info = newer
        raise ObjectChanged(
            f"object {info.name!r} was overwritten {_TRIES} times before reading it could begin; "
            "read it again"
        )

    def _reader(
        self, info: ObjectInfo, push: OrderedPush | None, translate: Translate
    ) -> ObjectReader:
        find = partial(self._find, info.name, direct=False)
        return ObjectReader(info, push, self._patience, translate, find)

    async def get_bytes(self, name: str, *, show_deleted: bool = False) -> bytes:
        """All of an object's content, checked."""
        async with self.get(name, show_deleted=show_deleted) as reader:
            return await reader.read_all()

    async def get_string(self, name: str, *, show_deleted: bool = False) -> str:
        """All of an object's content as text. Raises `UnicodeDecodeError` for what is not UTF-8."""
        return (await self.get_bytes(name, show_deleted=show_deleted)).decode()

    async def get_file(
        self, name: str, path: str | os.PathLike[str], *, show_deleted: bool = False
    ) -> ObjectInfo:
        """An object's content as a file, in place of what was there. Returns the description.

        It is written beside it under another name and renamed when it is complete and checked; any
        failure, and a cancellation, leave `path` as it was. Raises `OSError` as well.
        """
        check_kind("path", path, (str, os.PathLike), "the path of a file")
        async with self.get(name, show_deleted=show_deleted) as reader:
            target = os.fspath(path)
            folder, base = os.path.split(target)
            beside = os.path.join(folder, f".{base}.{secrets.token_hex(6)}.part")
            try:
                async with await trio.open_file(beside, "xb") as file:
                    block: list[bytes] = []
                    size = 0
                    async for chunk in reader:
                        block.append(chunk)
                        size += len(chunk)
                        if size >= _BLOCK:
                            await file.write(b"".join(block))
                            block.clear()
                            size = 0
                    await file.write(b"".join(block))
                await trio.to_thread.run_sync(os.replace, beside, target)
            except BaseException:
                # At once, without a thread: nothing may be waited for any more.
                with contextlib.suppress(OSError):
                    os.unlink(beside)
                raise
            return reader.info
