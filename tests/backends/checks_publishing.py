"""Conformance: what becomes of a message that is published."""

from __future__ import annotations

import trio

from shove_actors._errors import (
    MessageTooLarge,
    NoResponders,
    StreamFull,
    TopicNotDeclared,
)
from shove_actors.backends import Post, Stored
from shove_actors.messaging import MSG_ID, NatsStreamConfig, decode_headers, encode_headers

from .world import SOON_S, World, drain, receive


async def check_publish_is_acknowledged(world: World) -> None:
    async with world.process() as process:
        first = await process.publish(b"one")
        second = await process.publish(b"two")
        assert first == Stored(world.queue, 1)
        assert second == Stored(world.queue, 2)


async def check_post_again_after_an_answer(world: World) -> None:
    """The same `Post` may be posted again; each time it is answered once."""
    async with world.process() as process:
        answers: list[object] = []
        answered = trio.Event()

        def done(post: Post, result: Stored | Exception) -> None:
            answers.append(result)
            answered.set()

        post = Post(world.queue, b"x", encode_headers({MSG_ID: "same"}), done)
        for _ in range(2):
            answered = trio.Event()
            process.backend.post([post])
            with trio.fail_after(SOON_S):
                await answered.wait()
        assert answers == [Stored(world.queue, 1), Stored(world.queue, 1, duplicate=True)]


async def check_duplicate_id_is_stored_once(world: World) -> None:
    async with world.process() as process:
        first = await process.publish(b"one", headers={MSG_ID: "same"})
        again = await process.publish(b"two", headers={MSG_ID: "same"})
        other = await process.publish(b"three", headers={MSG_ID: "other"})
        assert first == Stored(world.queue, 1)
        assert again == Stored(world.queue, 1, duplicate=True)
        assert other == Stored(world.queue, 2)
        lane = await process.lane(credit=5)
        assert [d.payload for d in await drain(lane, 2)] == [b"one", b"three"]


async def check_pc049_duplicate_of_a_handled_message(world: World) -> None:
    """The window outlives the message: the answer says so, and nothing is stored."""
    async with world.process() as process:
        lane = await process.lane()
        await process.publish(headers={MSG_ID: "same"})
        await drain(lane, 1)
        assert await lane.confirm()
        again = await process.publish(headers={MSG_ID: "same"})
        assert again == Stored(world.queue, 1, duplicate=True)
        assert await process.backlog() == (0, 0)


async def check_pc053_stream_full_until_one_is_handled(world: World) -> None:
    world.topology = world.builder().nats_stream_config(NatsStreamConfig(max_messages=1)).build()
    async with world.process() as process:
        assert await process.publish(b"one") == Stored(world.queue, 1)
        assert isinstance(await process.publish(b"two"), StreamFull)
        lane = await process.lane()
        await drain(lane, 1)
        assert await lane.confirm()
        # The refused one has used up neither a sequence nor, below, its id.
        assert await process.publish(b"three", headers={MSG_ID: "id"}) == Stored(world.queue, 2)
        assert isinstance(await process.publish(headers={MSG_ID: "late"}), StreamFull)
        await drain(lane, 1)
        assert await lane.confirm()
        assert await process.publish(headers={MSG_ID: "late"}) == Stored(world.queue, 3)


async def check_full_stream_still_knows_duplicates(world: World) -> None:
    world.topology = world.builder().nats_stream_config(NatsStreamConfig(max_messages=1)).build()
    async with world.process() as process:
        await process.publish(headers={MSG_ID: "same"})
        again = await process.publish(headers={MSG_ID: "same"})
        assert again == Stored(world.queue, 1, duplicate=True)


async def check_stream_full_by_bytes(world: World) -> None:
    world.topology = world.builder().nats_stream_config(NatsStreamConfig(max_bytes=1000)).build()
    async with world.process() as process:
        assert await process.publish(b"x" * 600) == Stored(world.queue, 1)
        assert isinstance(await process.publish(b"x" * 600), StreamFull)
        assert await process.publish(b"x" * 100) == Stored(world.queue, 2)


async def check_oversize_is_refused_and_harms_nobody(world: World) -> None:
    async with world.process() as process:
        limit = process.backend.max_payload
        block = encode_headers({"A": "b"})
        results = await process.publish_all(
            [
                (world.queue, b"before", b""),
                (world.queue, b"x" * (limit - len(block) + 1), block),
                (world.queue, b"after", b""),
            ]
        )
        assert results[0] == Stored(world.queue, 1)
        assert isinstance(results[1], MessageTooLarge)
        assert results[2] == Stored(world.queue, 2)


async def check_payload_of_exactly_the_limit(world: World) -> None:
    async with world.process() as process:
        block = encode_headers({"A": "b"})
        body = b"x" * (process.backend.max_payload - len(block))
        assert await process.publish(body, block=block) == Stored(world.queue, 1)
        lane = await process.lane()
        assert (await receive(lane)).payload == body


async def check_pc055_no_stream_takes_the_subject(world: World) -> None:
    async with world.process(declare=False) as process:
        result = await process.publish()
        assert isinstance(result, NoResponders)
        reason = await process.backend.diagnose(world.queue)
        assert isinstance(reason, TopicNotDeclared)
        assert world.queue in str(reason)


async def check_diagnose_a_declared_subject(world: World) -> None:
    async with world.process() as process:
        assert not isinstance(await process.backend.diagnose(world.queue), TopicNotDeclared)


async def check_headers_come_back_byte_for_byte(world: World) -> None:
    """Also what no header of ours looks like: other bytes, repeated names, empty values."""
    async with world.process() as process:
        blocks = [
            encode_headers({"Name": "value", "X-Utf8": "grüße 漢字"}),
            b"NATS/1.0\r\nX-Raw: \xff\xfe\x80\r\n\r\n",
            b"NATS/1.0\r\nTwice: 1\r\nTwice: 2\r\nEmpty: \r\n\r\n",
        ]
        await process.publish_all([(world.queue, b"body", block) for block in blocks])
        lane = await process.lane(credit=5)
        came = await drain(lane, 3)
        assert [d.raw_headers for d in came] == blocks
        assert all(d.payload == b"body" for d in came)
        assert came[0].headers == {"Name": "value", "X-Utf8": "grüße 漢字"}
        assert came[1].headers == decode_headers(blocks[1])


async def check_empty_payload_with_and_without_headers(world: World) -> None:
    async with world.process() as process:
        lane = await process.lane(credit=5)
        await process.publish(b"")
        await process.publish(b"", headers={"A": "b"})
        bare, dressed = await drain(lane, 2)
        assert bare.payload == b""
        assert not bare.raw_headers
        assert bare.headers == {}
        assert dressed.payload == b""
        assert dressed.headers == {"A": "b"}


async def check_status_header_is_an_ordinary_message(world: World) -> None:
    """A foreign `Status` header on a stored message must not pass for a pull status (PC-059)."""
    async with world.process() as process:
        lane = await process.lane()
        await process.publish(b"", block=b"NATS/1.0\r\nStatus: 404\r\n\r\n")
        await process.publish(b"next")
        assert [d.payload for d in await drain(lane, 2)] == [b"", b"next"]


async def check_delivery_facts(world: World) -> None:
    async with world.process() as process:
        lane = await process.lane()
        await process.publish(b"payload")
        delivery = await receive(lane)
        assert delivery.lane is lane
        assert delivery.subject == world.queue
        assert delivery.stream == world.queue
        assert delivery.sequence == 1
        assert delivery.num_delivered == 1
        assert abs(process.backend.now_ns() - delivery.timestamp_ns) < 60 * 10**9
        assert delivery.leased_at <= trio.current_time()
        assert delivery.size == len(b"payload")
        lane.ack(delivery)
