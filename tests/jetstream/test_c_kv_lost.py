"""C29: watchers outlive restarts, lost consumers and lost connections; or say why not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from shove_actors._errors import BucketNotFound, ConnectionClosed
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Connection, JetStream, KeyValue, connect
from shove_actors.jetstream._subscriptions import Sink

from .kit import SOON_S, Events, fast
from .losses import kill, restart
from .stores import stored

Fresh = Callable[[], str]


async def consumers(js: JetStream, kv: KeyValue) -> list[str]:
    answer = await js.call(f"CONSUMER.NAMES.KV_{kv.bucket}")
    return answer.get("consumers") or []


async def test_c29_a_restart_of_the_server(own_server: ServerProcess) -> None:
    async with connect(fast(own_server.url)) as js:
        events = Events(js.connection)
        kv = await js.create_kv(bucket="b", history=10)
        await kv.put("a", b"0")
        async with kv.watch() as watcher:
            assert [e.value for e in await watcher.initial()] == [b"0"]
            await kv.put("a", b"1")
            await restart(own_server)
            await events.wait("reconnected")
            with trio.fail_after(SOON_S):
                await kv.put("a", b"2")
            with trio.fail_after(3.0):
                values = []
                while b"2" not in values:
                    entry = await watcher.receive()
                    assert entry is not None
                    values.append(entry.value)
            assert values == [b"1", b"2"]  # each once
            await kv.put("a", b"3")
            with trio.fail_after(3.0):
                entry = await watcher.receive()
            assert entry is not None
            assert entry.value == b"3"


async def test_c29_new_ones_are_not_lost_by_a_restart(own_server: ServerProcess) -> None:
    """Nothing had been seen yet: what was written since it began to watch counts all the same."""
    async with connect(fast(own_server.url)) as js:
        kv = await js.create_kv(bucket="b", history=10)
        await kv.put("a", b"old")
        async with kv.watch(updates_only=True) as watcher:
            await restart(own_server)
            async with connect(fast(own_server.url)) as other:
                await (await other.kv("b")).put("a", b"new")
            with trio.fail_after(SOON_S):
                entry = await watcher.receive()
            assert entry is not None
            assert entry.value == b"new"


async def test_c29_the_mark_comes_once_through_a_restart(own_server: ServerProcess) -> None:
    async with connect(fast(own_server.url)) as js:
        events = Events(js.connection)
        kv = await js.create_kv(bucket="b", storage="file")
        for number in range(50):
            await kv.put(f"k{number}", bytes(100))
        async with kv.watch() as watcher:
            first = [await watcher.receive() for _ in range(10)]
            await restart(own_server)
            await events.wait("reconnected")
            await kv.put("last", b"")
            found = [entry.key for entry in first if entry is not None]
            marks = 0
            with trio.fail_after(SOON_S):
                while "last" not in found or not marks:
                    entry = await watcher.receive()
                    if entry is None:
                        marks += 1
                    else:
                        found.append(entry.key)
            assert found == [*(f"k{number}" for number in range(50)), "last"]
            with trio.move_on_after(0.2):
                raise AssertionError(f"unexpected: {await watcher.receive()!r}")
            assert marks == 1


async def test_c29_a_consumer_that_is_deleted(own_server: ServerProcess) -> None:
    """The server tells a push subscriber nothing: two heartbeats are missed."""
    async with connect(fast(own_server.url)) as js:
        kv = await js.create_kv(bucket="b")
        async with kv.watch(idle_heartbeat=0.2) as watcher:
            assert await watcher.initial() == []
            (name,) = await consumers(js, kv)
            await js.delete_consumer("KV_b", name)
            await kv.put("a", b"meanwhile")
            with trio.fail_after(SOON_S):
                entry = await watcher.receive()
            assert entry is not None
            assert entry.value == b"meanwhile"
            assert name not in await consumers(js, kv)


async def test_c29_a_server_that_stands_still(own_server: ServerProcess) -> None:
    async with connect(fast(own_server.url)) as js:
        kv = await js.create_kv(bucket="b")
        async with kv.watch(idle_heartbeat=0.2) as watcher:
            assert await watcher.initial() == []
            own_server.pause()
            await trio.sleep(1.0)
            own_server.resume()
            with trio.fail_after(SOON_S):
                await kv.put("a", b"1")
                entry = await watcher.receive()
            assert entry is not None
            assert entry.value == b"1"
            with trio.move_on_after(0.3):
                raise AssertionError(f"unexpected: {await watcher.receive()!r}")


async def test_c29_a_bucket_that_is_deleted(own_server: ServerProcess) -> None:
    async with connect(fast(own_server.url)) as js:
        kv = await js.create_kv(bucket="b")
        async with kv.watch(idle_heartbeat=0.2) as watcher:
            await watcher.initial()
            await js.delete_kv("b")
            with trio.fail_after(SOON_S), pytest.raises(BucketNotFound):
                await watcher.receive()
            with pytest.raises(BucketNotFound):
                watcher.receive_nowait()


@pytest.mark.parametrize("updates_only", [False, True])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 1), (1, 2), (0, 0)])
async def test_c29_a_bucket_that_is_made_anew(
    own_server: ServerProcess, before: int, after: int, updates_only: bool
) -> None:
    """Its revisions begin at 1 again: going on behind the old ones would hear nothing, ever."""
    async with connect(fast(own_server.url)) as js:
        kv = await js.create_kv(bucket="b")
        for _ in range(before):
            await kv.put("a", b"1")
        async with kv.watch(idle_heartbeat=0.2, updates_only=updates_only) as watcher:
            await watcher.initial()
            await js.delete_kv("b")
            await js.create_kv(bucket="b")
            for _ in range(after):
                await kv.put("a", b"another one")
            with trio.fail_after(SOON_S), pytest.raises(BucketNotFound):
                await watcher.receive()


async def test_c29_the_connection_is_closed(own_server: ServerProcess) -> None:
    connection = Connection(fast(own_server.url))
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run)
        kv = await JetStream(connection).create_kv(bucket="b")
        await kv.put("a", b"1")
        async with kv.watch() as watcher:
            await watcher.wait_initial()
            connection.close()
            await connection.wait_ended()
            # What has arrived is still there, then the reason.
            entry = await watcher.receive()
            assert entry is not None
            assert await watcher.receive() is None
            with pytest.raises(ConnectionClosed):
                await watcher.receive()
            with pytest.raises(ConnectionClosed):
                watcher.receive_nowait()


async def test_c29_the_connection_is_given_up(own_server: ServerProcess) -> None:
    connection = Connection(fast(own_server.url, max_reconnect_attempts=2))
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            with pytest.raises(OSError):  # noqa: PT011
                await connection.run(task_status=task_status)

        await nursery.start(run)
        kv = await JetStream(connection).create_kv(bucket="b")
        async with kv.watch() as watcher:
            assert await watcher.initial() == []
            await kill(own_server)
            with trio.fail_after(SOON_S), pytest.raises(ConnectionClosed):
                await watcher.receive()


def losing(js: JetStream, monkeypatch: pytest.MonkeyPatch, lose: Callable[[int], bool]) -> None:
    """From now on subscriptions do not hear their `n`-th message if `lose(n)`."""
    subscribe = js.connection.subscribe

    def with_holes(subject: bytes, sink: Sink, queue: bytes = b"") -> int:
        count = 0

        def hears(subject: bytes, reply: bytes, block: bytes | None, payload: bytes) -> None:
            nonlocal count
            count += reply.startswith(b"$JS.ACK.")
            if not (reply.startswith(b"$JS.ACK.") and lose(count)):
                sink(subject, reply, block, payload)

        return subscribe(subject, hears, queue)

    monkeypatch.setattr(js.connection, "subscribe", with_holes)


async def test_c29_lost_messages_are_noticed(
    server: ServerProcess, fresh_queue: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every 40th message of a consumer is lost: the next one shows it, and another goes on."""
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue(), history=64)
        for number in range(300):
            js.connection.publish(f"$KV.{kv.bucket}.k{number % 5}".encode(), b"%d" % number)
        await stored(kv, 300)
        losing(js, monkeypatch, lambda count: count % 40 == 0)
        async with kv.watch(include_history=True) as watcher:
            with trio.fail_after(SOON_S):
                entries = await watcher.initial()
            assert [int(entry.value) for entry in entries] == list(range(300))
            with trio.move_on_after(0.2):
                raise AssertionError(f"unexpected: {await watcher.receive()!r}")
        assert watcher._push.renewals == 7  # one for each 39 that had arrived


async def test_c29_a_lost_last_message_is_noticed(
    server: ServerProcess, fresh_queue: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing follows that could show it, but the heartbeat does."""
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue(), history=5)
        once = iter([True])
        losing(js, monkeypatch, lambda count: count == 3 and next(once, False))
        async with kv.watch(updates_only=True, idle_heartbeat=0.2) as watcher:
            for number in range(3):
                await kv.put("a", b"%d" % number)
            with trio.fail_after(SOON_S):
                found = [await watcher.receive() for _ in range(3)]
            assert [entry.value for entry in found if entry is not None] == [b"0", b"1", b"2"]
