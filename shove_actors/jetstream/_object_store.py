"""Object stores."""

from __future__ import annotations

from ._object_get import ObjectStoreGet
from ._object_meta import ObjectStoreMeta
from ._object_put import ObjectStorePut
from ._object_status import ObjectStoreStatus
from ._object_watch import ObjectStoreWatch
from ._store_errors import of_bucket


class ObjectStore(ObjectStorePut, ObjectStoreGet, ObjectStoreMeta, ObjectStoreWatch):
    """A bucket of objects of any size. Made by `JetStream.object_store` and its like.

        store = await js.create_object_store(bucket="files")
        await store.put("hello", b"world")
        print(await store.get_bytes("hello"))

    An object is its content, kept in chunks, and its description (`ObjectInfo`), kept in one
    message. Errors: the ones named at the calls (`ObjectError`), `ApiError` and its subclasses
    (`StreamSealed` for any change of a sealed bucket), `RequestTimeout`, `ConnectionError`.
    """

    async def seal(self) -> None:
        """Allow no change any more, for good. Raises `BucketNotFound`."""
        with of_bucket(self.bucket):
            await self._js.edit_stream(self._stream, sealed=True)

    async def status(self) -> ObjectStoreStatus:
        """The bucket's settings and size, asked for now. Raises `BucketNotFound`."""
        with of_bucket(self.bucket):
            return ObjectStoreStatus.read(await self._js.stream_info(self._stream))
