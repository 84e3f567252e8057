"""C30: objects whose chunks, server or reader go away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import trio

from shove_actors._errors import (
    ConnectionClosed,
    DigestMismatch,
    ObjectChanged,
    ObjectCorrupt,
    ObjectNotFound,
    RequestTimeout,
    UnavailableError,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import (
    Connection,
    JetStream,
    connect,
)

from .kit import SOON_S, Events, fast
from .losses import restart
from .stores import LARGE, SMALL, Fresh, messages, until


async def test_c30_missing_chunks_are_an_error(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        info = await store.put("x", LARGE)
        subject = f"$O.{store.bucket}.C.{info.nuid}"
        await js.purge_stream(f"OBJ_{store.bucket}", subject=subject, keep=39)
        with trio.fail_after(2.0), pytest.raises(ObjectCorrupt, match="39 of its 40"):
            await store.get_bytes("x")
        await js.purge_stream(f"OBJ_{store.bucket}", subject=subject)
        with trio.fail_after(2.0), pytest.raises(ObjectCorrupt):
            await store.get_bytes("x")
        await store.put("x", b"whole again")
        assert await store.get_bytes("x") == b"whole again"


async def test_c30_chunks_that_disappear_while_reading(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """Either all of it had been sent already, or it is an error; it never hangs."""
    async with connect(fast(server.url)) as js:
        far = JetStream(js.connection, timeout=1.0)
        store = await far.create_object_store(bucket=fresh_queue())
        content = LARGE * 4
        info = await store.put("x", content)
        async with store.get("x") as reader:
            read = [await reader.receive_some()]
            await js.purge_stream(f"OBJ_{store.bucket}", subject=f"$O.{store.bucket}.C.{info.nuid}")
            with trio.fail_after(SOON_S):
                try:
                    read += [chunk async for chunk in reader]
                except ObjectCorrupt:
                    with pytest.raises(ObjectCorrupt):  # and stays one
                        await reader.receive_some()
                else:
                    assert b"".join(read) == content


async def test_c30_other_content_is_noticed(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        info = await store.put("x", SMALL)
        subject = f"$O.{store.bucket}.C.{info.nuid}"
        stream = f"OBJ_{store.bucket}"
        await js.purge_stream(stream, subject=subject)
        for chunk in (SMALL[:131072], b"0123456789abcdefg"):
            await js.connection.request(subject, chunk)
        async with store.get("x") as reader:
            await reader.receive_some()
            with pytest.raises(DigestMismatch):
                await reader.receive_some()
        await js.connection.request(subject, b"one more")
        with pytest.raises(DigestMismatch):
            await store.get_bytes("x")
        await js.purge_stream(stream, subject=subject)
        for chunk in (SMALL[:131072], SMALL):
            await js.connection.request(subject, chunk)
        with pytest.raises(ObjectCorrupt, match="more content"):
            await store.get_bytes("x")


async def test_c30_a_reader_that_leaves_early(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        await store.put("x", LARGE * 2)
        before = len(js.connection._subscriptions)
        async with store.get("x") as reader:
            await reader.receive_some()
        with trio.CancelScope() as scope:
            async with store.get("x") as reader:
                await reader.receive_some()
                scope.cancel()
                await reader.read_all()
        assert scope.cancelled_caught
        async with store.get("x") as reader:
            await reader.aclose()
            with pytest.raises(trio.ClosedResourceError):
                await reader.receive_some()
        assert len(js.connection._subscriptions) == before

        async def consumers() -> int:
            return (await store.status()).stream_info.consumer_count

        await until(consumers, 0)


async def test_c30_a_closed_reader_is_not_an_object_that_ends(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """Trio's contract: after `aclose`, and for whoever reads meanwhile, `ClosedResourceError`."""
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue(), storage="memory")
        await store.put("x", LARGE)
        await store.put("empty", b"")
        for name in ("x", "empty"):
            async with store.get(name) as reader:
                await reader.receive_some(10)
                await reader.aclose()
                with pytest.raises(trio.ClosedResourceError):
                    await reader.receive_some()
                with pytest.raises(trio.ClosedResourceError, match="a part of the object"):
                    await reader.read_all()
            async with store.get(name) as left:
                await left.receive_some(10)
            with pytest.raises(trio.ClosedResourceError):
                await left.read_all()
        async with store.get("x") as reader:
            reading = 0

            async def read() -> None:
                nonlocal reading
                async for chunk in reader:
                    reading += len(chunk)
                    first.set()

            async def read_until_closed() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await read()

            first = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_until_closed)
                await first.wait()
                await reader.aclose()
            assert reading < len(LARGE)


@pytest.mark.slow
async def test_c30_a_server_that_stands_still_is_not_a_corrupt_object(
    own_server: ServerProcess,
) -> None:
    """It is out of reach, within about the request's time-out, and can be read on afterwards."""
    async with connect(fast(own_server.url)) as js:
        store = await js.create_object_store(bucket="b")
        content = LARGE * 12  # more than the server sends ahead
        await store.put("x", content)
        async with store.get("x") as reader:
            read = [await reader.receive_some()]

            async def read_on() -> None:
                while chunk := await reader.receive_some():
                    read.append(chunk)

            own_server.pause()
            try:
                with trio.fail_after(15.0 + SOON_S), pytest.raises(RequestTimeout) as caught:
                    await read_on()
            finally:
                own_server.resume()
            assert isinstance(caught.value, UnavailableError)
            assert "store it again" not in str(caught.value)
            with trio.fail_after(2 * SOON_S):
                await read_on()
        assert b"".join(read) == content


@pytest.mark.parametrize("how", ["overwritten", "deleted"])
async def test_c30_changed_while_it_is_read(
    server: ServerProcess, fresh_queue: Fresh, how: str
) -> None:
    async with connect(fast(server.url)) as js:
        far = JetStream(js.connection, timeout=1.0)
        store = await far.create_object_store(bucket=fresh_queue())
        await store.put("x", LARGE * 12)  # more than the server sends ahead
        async with store.get("x") as reader:
            await reader.receive_some()
            await (store.put("x", SMALL) if how == "overwritten" else store.delete("x"))
            with trio.fail_after(2 * SOON_S), pytest.raises(ObjectChanged) as caught:
                await reader.read_all()
            assert how in str(caught.value)
            assert "read it again" in str(caught.value)
            assert isinstance(caught.value, UnavailableError)
            with pytest.raises(ObjectChanged):  # and stays one
                await reader.receive_some()
        if how == "overwritten":
            assert await store.get_bytes("x") == SMALL


async def test_c30_cancelled_reads_lose_nothing(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue(), storage="memory")
        await store.put("x", LARGE)
        read: list[bytes] = []
        ended = False
        async with store.get("x") as reader:
            with trio.fail_after(SOON_S):
                while not ended:
                    with trio.move_on_after(0.0005):
                        while chunk := await reader.receive_some():
                            read.append(chunk)
                        ended = True
        assert b"".join(read) == LARGE


async def test_c30_an_interrupted_put_leaves_nothing(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        await store.put("kept", SMALL)
        before = await messages(store)
        scope = trio.CancelScope()

        async def endless(end: Callable[[], None]) -> AsyncIterator[bytes]:
            for number in range(100):
                yield LARGE[:200_000]
                if number == 50:
                    end()
                await trio.lowlevel.checkpoint()

        def fail() -> None:
            raise RuntimeError("the source is broken")

        with pytest.raises(RuntimeError, match="broken"):
            await store.put("kept", endless(fail))
        assert await messages(store) == before
        with scope:
            await store.put("new", endless(scope.cancel))
        assert scope.cancelled_caught
        assert await messages(store) == before
        assert await store.get_bytes("kept") == SMALL
        with pytest.raises(ObjectNotFound):
            await store.info("new", show_deleted=True)
        assert len(js.connection.replies) == 0


async def test_c30_a_put_without_an_answer(own_server: ServerProcess) -> None:
    """The server stands still: the put fails after its time-out, and takes its chunks back."""
    async with connect(fast(own_server.url)) as js:
        store = await JetStream(js.connection, timeout=0.5).create_object_store(bucket="b")
        scope = trio.CancelScope()

        async def source() -> AsyncIterator[bytes]:
            yield LARGE
            own_server.pause()
            yield LARGE * 3

        async with trio.open_nursery() as nursery:

            async def put() -> None:
                with scope, pytest.raises(TimeoutError):
                    await store.put("x", source())
                assert not scope.cancelled_caught

            nursery.start_soon(put)
            await trio.sleep(1.5)
            own_server.resume()
        with pytest.raises(ObjectNotFound):
            await store.info("x")
        await until(lambda: messages(store), 0)


async def test_c30_a_restart_while_reading(own_server: ServerProcess) -> None:
    async with connect(fast(own_server.url)) as js:
        store = await js.create_object_store(bucket="b")
        content = LARGE * 4
        await store.put("x", content)
        async with store.get("x") as reader:
            read = [await reader.receive_some() for _ in range(5)]
            await restart(own_server)
            with trio.fail_after(SOON_S):
                read += [chunk async for chunk in reader]
        assert b"".join(read) == content


async def test_c30_a_restart_while_storing(own_server: ServerProcess) -> None:
    """The put fails; afterwards nothing is visible, and nothing is left."""
    async with connect(fast(own_server.url)) as js:
        events = Events(js.connection)
        store = await js.create_object_store(bucket="b")

        async def source() -> AsyncIterator[bytes]:
            yield LARGE
            await restart(own_server)
            await events.wait("disconnected")
            yield LARGE

        # Lost, or told by a server that is going down that nobody takes it any more.
        with pytest.raises(UnavailableError):
            await store.put("x", source())
        with pytest.raises(ObjectNotFound):
            await store.info("x")
        assert await messages(store) == 0


async def test_c30_the_connection_is_closed_while_reading(own_server: ServerProcess) -> None:
    connection = Connection(fast(own_server.url))
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run)
        store = await JetStream(connection).create_object_store(bucket="b")
        await store.put("x", LARGE * 4)
        async with store.get("x") as reader:
            await reader.receive_some()
            connection.close()
            await connection.wait_ended()
            with pytest.raises(ConnectionClosed):
                await reader.read_all()
