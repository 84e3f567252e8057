"""C28: watching key-value buckets, on a real server."""

from __future__ import annotations

import pytest
import trio

from shove_actors._errors import (
    InvalidKey,
    InvalidOption,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import (
    connect,
)

from .kit import SOON_S, fast
from .stores import (
    DELETE,
    LARGE,
    PURGE,
    PUT,
    Fresh,
    filled,
    nothing_more,
    seen,
    stored,
    take,
    until,
)


async def test_c28_watch(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        kv = await filled(js, fresh_queue())
        async with kv.watch() as watcher:
            assert await take(watcher, 3) == [("a", b"2", PUT), ("b", b"", DELETE), None]
            await nothing_more(watcher)
            await kv.put("c", b"live")
            await kv.purge("a")
            assert await take(watcher, 2) == [("c", b"live", PUT), ("a", b"", PURGE)]


async def test_c28_options(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        kv = await filled(js, fresh_queue())
        everything = [("a", b"1", PUT), ("a", b"2", PUT), ("b", b"1", PUT), ("b", b"", DELETE)]
        async with kv.watch(include_history=True) as watcher:
            assert await take(watcher, 5) == [*everything, None]
        async with kv.watch(resume_from=2) as watcher:
            assert await take(watcher, 4) == [*everything[1:], None]
        async with kv.watch(resume_from=99) as watcher:
            assert await take(watcher, 1) == [None]
        async with kv.watch(ignore_deletes=True) as watcher:
            assert await take(watcher, 2) == [("a", b"2", PUT), None]
        async with kv.watch("b", ignore_deletes=True) as watcher:
            assert await take(watcher, 1) == [None]
        async with kv.watch(meta_only=True) as watcher:
            assert await take(watcher, 3) == [("a", b"", PUT), ("b", b"", DELETE), None]
        async with kv.watch("nothing.>") as watcher:
            assert await take(watcher, 1) == [None]
        async with kv.watch(updates_only=True) as watcher:
            with trio.fail_after(SOON_S):
                await watcher.wait_initial()
                assert await watcher.initial() == []
            await nothing_more(watcher)
            await kv.put("d", b"new")
            assert await take(watcher, 1) == [("d", b"new", PUT)]
        empty = await js.create_kv(bucket=fresh_queue())
        async with empty.watch() as watcher:
            assert await take(watcher, 1) == [None]


async def test_c28_options_that_contradict(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue())
        for wrong in (
            {"include_history": True, "updates_only": True},
            {"include_history": True, "resume_from": 1},
            {"updates_only": True, "resume_from": 1},
            {"resume_from": 0},
            {"idle_heartbeat": 0.01},
        ):
            with pytest.raises(InvalidOption):
                kv.watch(**wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidKey):
            kv.watch("a.>.b")


async def test_c28_the_initial_state_at_once(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        kv = await filled(js, fresh_queue())
        async with kv.watch() as watcher:
            with trio.CancelScope() as scope:
                scope.cancel()
                await watcher.initial()
            assert scope.cancelled_caught  # and has taken nothing
            assert [seen(e) for e in await watcher.initial()] == [
                ("a", b"2", PUT),
                ("b", b"", DELETE),
            ]
            assert await watcher.initial() == []
            await kv.put("c", b"1")
            assert await take(watcher, 1) == [("c", b"1", PUT)]


async def test_c28_entries_count_down(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        kv = await filled(js, fresh_queue())
        async with kv.watch(include_history=True) as watcher:
            assert [entry.delta for entry in await watcher.initial()] == [3, 2, 1, 0]
        async with kv.watch() as watcher:
            assert [entry.revision for entry in await watcher.initial()] == [2, 4]


async def test_c28_a_watcher_is_a_receive_channel(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url)) as js:
        kv = await filled(js, fresh_queue())
        async with kv.watch() as watcher:
            assert isinstance(watcher, trio.abc.ReceiveChannel)
            await watcher.wait_initial()
            found = [watcher.receive_nowait() for _ in range(3)]
            assert found[-1] is None
            with pytest.raises(trio.WouldBlock):
                watcher.receive_nowait()
            await kv.put("c", b"1")
            async for entry in watcher:
                assert entry is not None
                assert entry.key == "c"
                watcher.stop()
            with pytest.raises(trio.EndOfChannel):
                await watcher.receive()
            with pytest.raises(trio.EndOfChannel):
                watcher.receive_nowait()
            await watcher.aclose()


async def test_c28_stopped_by_another_task(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue())
        async with kv.watch(updates_only=True) as watcher, trio.open_nursery() as nursery:
            ended: list[str] = []

            async def read() -> None:
                async for _ in watcher:
                    pass
                ended.append("reader")

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            watcher.stop()
            with trio.fail_after(SOON_S):
                while not ended:
                    await trio.testing.wait_all_tasks_blocked()


async def test_c28_nothing_is_left_behind(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        kv = await filled(js, fresh_queue())
        before = len(js.connection._subscriptions)
        for _ in range(3):
            async with kv.watch() as watcher:
                await watcher.receive()
        with trio.move_on_after(0.05):
            async with kv.watch() as watcher:
                await trio.sleep_forever()
        assert len(js.connection._subscriptions) == before

        async def consumers() -> int:
            return (await kv.status()).stream_info.consumer_count

        await until(consumers, 0)


async def test_c28_cancelled_reads_lose_nothing(server: ServerProcess, fresh_queue: Fresh) -> None:
    """C33 for watchers: 400 updates read with a cancellation every half millisecond."""
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue(), history=64)
        found: list[int] = []
        async with kv.watch(updates_only=True) as watcher, trio.open_nursery() as nursery:

            async def write() -> None:
                for number in range(400):
                    js.connection.publish(f"$KV.{kv.bucket}.k{number % 7}".encode(), b"%d" % number)
                    if number % 20 == 0:
                        await trio.sleep(0.001)

            nursery.start_soon(write)
            with trio.fail_after(SOON_S):
                while len(found) < 400:
                    with trio.move_on_after(0.0005):
                        while True:
                            entry = await watcher.receive()
                            assert entry is not None
                            found.append(int(entry.value))
        assert found == list(range(400))


async def test_c28_a_slow_reader_gets_everything(server: ServerProcess, fresh_queue: Fresh) -> None:
    """More than the server sends without being told that it arrived; nobody reads at first."""
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue(), history=64, storage="memory")
        value = bytes(30_000)
        for number in range(300):
            js.connection.publish(f"$KV.{kv.bucket}.k{number % 5}".encode(), value)
        await stored(kv, 300)
        async with kv.watch(include_history=True, idle_heartbeat=0.2) as watcher:
            await trio.sleep(1.0)  # several heartbeats say that the server is waiting
            with trio.fail_after(SOON_S):
                revisions = []
                while (entry := await watcher.receive()) is not None:
                    revisions.append(entry.revision)
            assert revisions == list(range(1, 301))
        async with kv.watch(include_history=True) as watcher:
            with trio.fail_after(SOON_S):
                await watcher.wait_initial()
                assert len(await watcher.initial()) == 300


async def test_c28_exceptions_leave_the_block_as_they_are(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue())
        with pytest.raises(ZeroDivisionError):
            async with kv.watch():
                raise ZeroDivisionError


async def test_c28_longer_acknowledgement_subjects() -> None:
    """T3: with this flag a watcher of nats-py takes its whole connection down."""
    with ServerProcess(config="feature_flags { js_ack_fc_v2: true }") as process:
        async with connect(fast(process.url)) as js:
            kv = await js.create_kv(bucket="b", history=64, storage="memory")
            for number in range(300):
                js.connection.publish(b"$KV.b.k%d" % (number % 5), bytes(30_000))
            await stored(kv, 300)
            async with kv.watch(include_history=True) as watcher:
                entries = await watcher.initial()
                assert [entry.revision for entry in entries] == list(range(1, 301))
                assert [entry.delta for entry in entries] == list(range(299, -1, -1))
                await kv.put("a", b"live")
                assert await take(watcher, 1) == [("a", b"live", PUT)]
            store = await js.create_object_store(bucket="o")
            await store.put("x", LARGE)
            assert await store.get_bytes("x") == LARGE
