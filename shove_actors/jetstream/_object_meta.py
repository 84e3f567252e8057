"""Changing objects without touching their content: descriptions, deletion, links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from shove_actors._errors import (
    BadObjectMeta,
    NoLinkToDeleted,
    NoLinkToLink,
    ObjectExists,
    ObjectNotFound,
    UpdateMetaDeleted,
)

from ._object_core import ObjectStoreCore
from ._object_info import (
    ObjectHeaders,
    ObjectInfo,
    ObjectLink,
    check_object_name,
    new_id,
    object_headers,
    object_metadata,
)
from ._options import check_kind, check_text

if TYPE_CHECKING:
    from ._object_store import ObjectStore


class ObjectStoreMeta(ObjectStoreCore):
    """The part of `ObjectStore` that changes descriptions."""

    async def update_meta(
        self,
        name: str,
        *,
        new_name: str | None = None,
        description: str | None = None,
        headers: ObjectHeaders | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        """Change what is named of an object's description; None leaves it as it is.

        Renaming writes the new description, then removes the old one; watchers see the first
        only. Raises `UpdateMetaDeleted` for a missing or deleted object, `ObjectExists` when
        another one has the new name.
        """
        changes: dict[str, object] = {}
        if description is not None:
            changes["description"] = check_text("description", description)
        if headers is not None:
            changes["headers"] = object_headers(headers)
        if metadata is not None:
            changes["metadata"] = object_metadata(metadata)
        check_object_name(name)
        if new_name is not None:
            check_object_name(new_name, "new_name")

        def changed(current: ObjectInfo | None) -> ObjectInfo:
            if current is None or current.deleted:
                raise UpdateMetaDeleted(
                    f"there is no object {name!r} in bucket {self.bucket!r} to describe"
                )
            return replace(current, **changes)  # type: ignore[arg-type]

        if new_name is None or new_name == name:
            return (await self._describe(name, changed))[0]
        return await self._rename(name, changed(await self._find(name)), new_name)

    async def _rename(self, name: str, info: ObjectInfo, new_name: str) -> ObjectInfo:
        def unless_taken(current: ObjectInfo | None) -> ObjectInfo:
            if current is not None and not current.deleted:
                raise ObjectExists(
                    f"bucket {self.bucket!r} has an object {new_name!r} already; delete it first"
                )
            return replace(info, name=new_name)

        renamed, _ = await self._describe(new_name, unless_taken)
        await self._js.purge_stream(
            self._stream, subject=self._meta_subject(name), before=info.revision + 1
        )
        return renamed

    async def delete(self, name: str) -> None:
        """Remove an object's content; a description that says so is left for watchers.

        Deleting a deleted one again is no error. Raises `ObjectNotFound`.
        """

        def deleted(current: ObjectInfo | None) -> ObjectInfo:
            if current is None:
                raise ObjectNotFound(f"there is no object {name!r} in bucket {self.bucket!r}")
            return replace(current, deleted=True, size=0, chunks=0, digest="")

        _, before = await self._describe(name, deleted)
        if before is not None and not before.is_link:
            await self._remove_chunks(before.nuid)

    async def add_link(self, name: str, target: ObjectInfo) -> ObjectInfo:
        """Give an object another name, possibly in another bucket. `get` follows it.

        A link of that name is replaced. Raises `ObjectExists` when an object has it (also a
        deleted one), `NoLinkToDeleted`, `NoLinkToLink`.
        """
        check_kind("target", target, ObjectInfo, "an ObjectInfo, such as `await store.info(name)`")
        if target.deleted:
            raise NoLinkToDeleted(f"object {target.name!r} is deleted; a link needs a live one")
        if target.is_link:
            raise NoLinkToLink(f"object {target.name!r} is a link; link to what it points to")
        if not target.name or not target.bucket:
            raise BadObjectMeta("the target has no name or no bucket; give what info() returned")
        return await self._add(name, ObjectLink(bucket=target.bucket, name=target.name))

    async def add_bucket_link(self, name: str, store: ObjectStore) -> ObjectInfo:
        """A name for a whole bucket; `info` tells it, `get` refuses it (`CantGetBucket`).

        Raises `ObjectExists` as `add_link` does.
        """
        check_kind("store", store, ObjectStoreCore, "an ObjectStore")
        return await self._add(name, ObjectLink(bucket=store.bucket))

    async def _add(self, name: str, link: ObjectLink) -> ObjectInfo:
        check_object_name(name)

        def unless_object(current: ObjectInfo | None) -> ObjectInfo:
            if current is not None and not current.is_link:
                raise ObjectExists(
                    f"bucket {self.bucket!r} has an object {name!r}; a link would hide it"
                )
            return ObjectInfo(bucket=self.bucket, name=name, nuid=new_id(), link=link)

        return (await self._describe(name, unless_object))[0]
