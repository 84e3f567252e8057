"""What the tests of key-value buckets and object stores share."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from shove_actors.jetstream import (
    JetStream,
    KeyOperation,
    KeyValue,
    KeyValueEntry,
    ObjectInfo,
    ObjectStore,
    Watcher,
)

from .kit import SOON_S

Fresh = Callable[[], str]
PUT, DELETE, PURGE = KeyOperation.PUT, KeyOperation.DELETE, KeyOperation.PURGE

Seen = tuple[str, bytes, KeyOperation]


def seen(entry: KeyValueEntry | None) -> Seen | None:
    return None if entry is None else (entry.key, entry.value, entry.operation)


async def take(watcher: Watcher[KeyValueEntry], count: int) -> list[Seen | None]:
    with trio.fail_after(SOON_S):
        return [seen(await watcher.receive()) for _ in range(count)]


async def nothing_more(watcher: Watcher[KeyValueEntry]) -> None:
    with trio.move_on_after(0.2):
        raise AssertionError(f"unexpected: {await watcher.receive()!r}")


async def until(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    """The server tells nobody when it changes."""
    with trio.fail_after(SOON_S):
        while await ask() != wanted:  # noqa: ASYNC110
            await trio.sleep(0.02)


async def stored(kv: KeyValue, count: int) -> None:
    """Until the bucket has so many messages. A flush says nothing of what its stream has stored."""

    async def messages_of() -> int:
        return (await kv.status()).stream_info.messages

    await until(messages_of, count)


async def filled(js: JetStream, bucket: str, **settings: Any) -> KeyValue:
    """a=1 (revision 1), a=2, b=1, b deleted (revision 4)."""
    kv = await js.create_kv(bucket=bucket, history=5, **settings)
    await kv.put("a", b"1")
    await kv.put("a", b"2")
    await kv.put("b", b"1")
    await kv.delete("b")
    return kv


#: Forty chunks, no two of them alike.
LARGE = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(5 * 1024 * 1024 // 32))
#: One full chunk and a bit.
SMALL = LARGE[: 128 * 1024 + 17]


async def messages(store: ObjectStore) -> int:
    return (await store.status()).stream_info.messages


async def chunk_subjects(js: JetStream, store: ObjectStore) -> dict[str, int]:
    info = await js.stream_info(f"OBJ_{store.bucket}", subject_filter=f"$O.{store.bucket}.C.>")
    return dict(info.state.subjects)


Told = tuple[str, str, bool]


def told(info: ObjectInfo | None) -> Told | None:
    return None if info is None else (info.name, info.description, info.deleted)


async def take_infos(watcher: Watcher[ObjectInfo], count: int) -> list[Told | None]:
    with trio.fail_after(SOON_S):
        return [told(await watcher.receive()) for _ in range(count)]
