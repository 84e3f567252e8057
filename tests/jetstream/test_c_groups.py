"""Priority groups: C21."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from shove_actors._errors import ApiError, InvalidOption
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import MessageIterator, connect
from tests.support import wait_until

from .kit import fast
from .reading import Fresh, fill, js_of, number_of, stream_of


async def reading(messages: MessageIterator, found: list[int]) -> None:
    async for message in messages:
        found.append(number_of(message))
        await message.ack()


async def test_c21_overflow(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(
            durable_name="d", priority_policy="overflow", priority_groups=["g"]
        )
        await fill(stream, 2)
        assert await consumer.fetch_list(5, max_wait=0.5, group="g", min_pending=3) == []
        await fill(stream, 2, start=2)
        # Judged for each message: with two left it is over.
        batch = await consumer.fetch_list(5, max_wait=0.5, group="g", min_pending=3)
        assert [number_of(m) for m in batch] == [0, 1]
        async with consumer.messages(group="g") as messages:
            assert [number_of(await messages.receive()) for _ in range(2)] == [2, 3]


async def test_c21_overflow_by_unacknowledged(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(
            durable_name="d", priority_policy="overflow", priority_groups=["g"]
        )
        await fill(stream, 4)
        assert await consumer.fetch_list(1, max_wait=0.4, group="g", min_ack_pending=2) == []
        held = await consumer.fetch_list(2, group="g")
        assert len(held) == 2
        async with consumer.messages(group="g", min_ack_pending=2) as messages:
            assert number_of(await messages.next(5.0)) == 2


async def test_c21_pinned(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    async with stream_of(server.url, name) as stream, connect(fast(server.url)) as other:
        one = await stream.create_consumer(
            durable_name="d",
            priority_policy="pinned_client",
            priority_groups=["g"],
            priority_timeout=30.0,
        )
        two = await other.consumer(name, "d")
        first: list[int] = []
        second: list[int] = []
        options: dict[str, Any] = {"group": "g", "max_messages": 5, "expiry": 5.0}
        async with (
            one.messages(**options) as mine,
            two.messages(**options, eager=False) as theirs,
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reading, mine, first)
                await fill(stream, 5)
                await wait_until(lambda: len(first) == 5)
                assert one.pin_id is not None
                assert two.pin_id is None
                nursery.start_soon(reading, theirs, second)
                await fill(stream, 5, start=5)
                await wait_until(lambda: len(first) == 10)
                assert second == []
                state = (await one.info()).priority_groups[0]
                assert (state.group, state.pinned_client_id) == ("g", one.pin_id)
                await stream.unpin_consumer("d", "g")
                await fill(stream, 1, start=10)
                await wait_until(lambda: first[10:] or second)
                # Whoever it is now: the other one had its turn when the first was freed.
                assert second == [10]
                assert two.pin_id is not None
                await fill(stream, 5, start=11)
                await wait_until(lambda: len(second) == 6)
                assert one.pin_id is None
                nursery.cancel_scope.cancel()
        assert first == list(range(10))


async def test_c21_pin_moves_when_the_client_goes(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    name = fresh_queue()
    async with stream_of(server.url, name) as stream, connect(fast(server.url)) as other:
        one = await stream.create_consumer(
            durable_name="d",
            priority_policy="pinned_client",
            priority_groups=["g"],
            priority_timeout=1.0,
        )
        two = await other.consumer(name, "d")
        await fill(stream, 1)
        async with one.messages(group="g") as mine:
            assert number_of(await mine.next(5.0)) == 0
        async with two.messages(group="g", expiry=2.0) as theirs:
            await fill(stream, 1, start=1)
            assert number_of(await theirs.next(10.0)) == 1


async def test_c21_prioritized(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    async with stream_of(server.url, name) as stream, connect(fast(server.url)) as other:
        one = await stream.create_consumer(
            durable_name="d", priority_policy="prioritized", priority_groups=["g"]
        )
        two = await other.consumer(name, "d")
        async with two.fetch(1, group="g", priority=5, max_wait=5.0) as later:
            await other.connection.flush()
            async with one.fetch(1, group="g", priority=1, max_wait=5.0) as first:
                await js_of(stream).connection.flush()
                await fill(stream, 1)
                with trio.fail_after(3):
                    assert number_of(await first.receive()) == 0
                with pytest.raises(trio.WouldBlock):
                    later.receive_nowait()
                await fill(stream, 1, start=1)
                with trio.fail_after(3):
                    assert number_of(await later.receive()) == 1


async def test_c21_options(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        with pytest.raises(ApiError) as caught:
            await stream.create_consumer(priority_policy="overflow")
        assert caught.value.err_code == 10159
        consumer = await stream.create_consumer(
            durable_name="d", priority_policy="overflow", priority_groups=["g"]
        )
        with pytest.raises(InvalidOption, match="group='g'"):
            consumer.messages()
        with pytest.raises(InvalidOption, match="group='g'"):
            consumer.fetch(1)
        with pytest.raises(InvalidOption, match="it has g"):
            consumer.messages(group="h")
        with pytest.raises(InvalidOption, match="priority"):
            consumer.messages(group="g", priority=10)
        with pytest.raises(InvalidOption, match="min_pending"):
            consumer.messages(group="g", min_pending=0)
        with pytest.raises(ApiError) as caught:
            await stream.unpin_consumer("d", "h")
        assert caught.value.err_code == 10160
