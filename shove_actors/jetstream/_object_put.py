"""Storing an object: chunks first, then the description that makes them an object.

Nobody sees the chunks before the description is there, and the description is one message. So an
object is visible whole or not at all; what has to be taken care of is what remains otherwise.

* Interrupted before the description: the chunks are removed, shielded from the cancellation and
  bounded by `_CLEAN_UP` (`test_c30_an_interrupted_put_leaves_nothing`).
* The description itself is not interrupted: one request, bounded by its time-out. If its answer
  never comes, the leader is asked what is true. Chunks are never removed while the object that they
  belong to may be visible: at worst a lost connection leaves chunks that nobody refers to.
* The content that was replaced is removed after it; a failure there costs space, and is logged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace

import trio

from shove_actors._errors import InvalidOption, ShoveError, UnavailableError
from shove_actors._log import about

from ._object_chunks import CHUNK_SIZE, Digest
from ._object_core import ObjectStoreCore
from ._object_info import (
    ObjectHeaders,
    ObjectInfo,
    check_object_name,
    new_id,
    object_headers,
    object_metadata,
)
from ._object_source import ObjectSource, check_source, chunks_of
from ._object_upload import Upload
from ._options import check_count, check_kind, check_text

logger = logging.getLogger("shove_actors.jetstream")

#: How long removing the chunks of an interrupted object may take.
_CLEAN_UP = 5.0


class ObjectStorePut(ObjectStoreCore):
    """The part of `ObjectStore` that stores."""

    async def put(
        self,
        name: str,
        source: ObjectSource,
        *,
        description: str = "",
        headers: ObjectHeaders | None = None,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int = CHUNK_SIZE,
    ) -> ObjectInfo:
        """Store an object, in place of the one that had this name.

            await store.put("report.pdf", Path("/tmp/report.pdf"), description="January")

        `source`: bytes, a `str` (its UTF-8), a `pathlib.Path`, a file opened in binary mode (read
        in a thread, left open), or an async iterable of bytes. `chunk_size`: bytes per message, at
        most the server's max_payload (`InvalidOption`).

        Returns its description. Raises `BadObjectMeta`, `StreamSealed`, `ApiError`,
        `RequestTimeout`, `ConnectionError`, and what the source raises: then nothing is stored,
        and the former object is untouched. The same when it is cancelled, which takes up to five
        seconds when the server does not answer; once all content is there, it is not interrupted
        any more.
        """
        check_object_name(name)
        check_source(source)
        most = self._js.connection.max_payload
        if check_count("chunk_size", chunk_size) > most:
            raise InvalidOption(
                f"chunk_size is {chunk_size}; it must be at most the server's max_payload, {most}"
            )
        wanted = ObjectInfo(
            bucket=self.bucket,
            name=name,
            description=check_text("description", description),
            headers=object_headers({} if headers is None else headers),
            metadata=object_metadata({} if metadata is None else metadata),
            nuid=new_id(),
            chunk_size=chunk_size,
        )
        subject = self._chunk_subject(wanted.nuid)
        upload = Upload(self._js.connection, subject, chunk_size, self._patience)
        digest = Digest()
        # A bucket that does not answer shows here, before anything is sent.
        await self._find(name)
        try:
            async with aclosing(chunks_of(source, chunk_size)) as chunks:
                async for chunk in chunks:
                    digest.update(chunk)
                    await upload.send(chunk)
            await upload.finish()
            wanted = replace(wanted, size=digest.size, chunks=upload.count, digest=digest.text)
            with trio.CancelScope(shield=True):
                stored = await self._commit(wanted)
        except BaseException:
            await self._undo(upload, wanted)
            raise
        return stored

    async def put_file(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        *,
        description: str = "",
        headers: ObjectHeaders | None = None,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int = CHUNK_SIZE,
    ) -> ObjectInfo:
        """As `put`, from a file; without a `name` its path is the object's."""
        check_kind("path", path, (str, os.PathLike), "the path of a file")
        return await self.put(
            os.fspath(path) if name is None else name,
            trio.Path(path),
            description=description,
            headers=headers,
            metadata=metadata,
            chunk_size=chunk_size,
        )

    async def _commit(self, wanted: ObjectInfo) -> ObjectInfo:
        try:
            stored, before = await self._describe(wanted.name, lambda _: wanted)
        except UnavailableError:
            # No answer; it may be stored. Whoever reads it then must find its chunks.
            found = await self._find(wanted.name, direct=False)
            if found is None or found.nuid != wanted.nuid:
                raise
            return found
        if before is not None and before.nuid and not before.is_link:
            try:
                await self._remove_chunks(before.nuid)
            except ShoveError:
                logger.warning(
                    "bucket %s: the former content of an object could not be removed",
                    self.bucket,
                    extra=about("object_chunks_left", queue=self._stream),
                )
        return stored

    async def _undo(self, upload: Upload, wanted: ObjectInfo) -> None:
        """Remove the chunks of an object that did not come to be."""
        if not upload.count:
            return
        with trio.move_on_after(_CLEAN_UP, shield=True) as bound:
            try:
                await upload.settle()
                found = await self._find(wanted.name, direct=False)
                if found is None or found.nuid != wanted.nuid:
                    await self._remove_chunks(wanted.nuid)
                return
            except ShoveError:
                pass
        logger.warning(
            "bucket %s: the chunks of an interrupted object could not be removed%s",
            self.bucket,
            f" within {_CLEAN_UP:g} s" if bound.cancelled_caught else "",
            extra=about("object_chunks_left", queue=self._stream),
        )
