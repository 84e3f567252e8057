"""Messages posted to a real server, and every kind of answer."""

from __future__ import annotations

from functools import partial

from shove_actors.backends import Stored
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import StreamConfig

from .nats_process import Fresh, kinds, of, process


async def test_publishing_answers_of_every_kind(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with process(server, fresh_queue()) as one:
        connection = of(one).connection
        answer = {"text": b""}
        connection.subscribe(
            b"strange.>",
            lambda s, reply, h, p: connection.write(partial(_pub, reply)(answer["text"])),
        )
        assert isinstance(await one.publish(), Stored)
        for text, name in (
            (b"", "PublishRefused"),
            (b"not json", "PublishRefused"),
            (b'{"seq":"x"}', "PublishRefused"),
            (b'{"error":{"code":400,"err_code":10059,"description":"no"}}', "PublishRefused"),
            (b'{"error":{"code":400,"err_code":10060,"description":"no"}}', "TopicNotDeclared"),
            (b'{"error":{"code":503,"err_code":10077,"description":"full"}}', "StreamFull"),
            (b'{"error":{"code":400,"err_code":10054,"description":"big"}}', "MessageTooLarge"),
            (b'{"error":{"code":503,"err_code":10008,"description":"later"}}', "PublishUnknown"),
        ):
            answer["text"] = text
            assert type(await one.publish(subject="strange.x")).__name__ == name
        assert type(await one.publish(subject="nobody.x")).__name__ == "NoResponders"
        large = bytes(one.backend.max_payload + 1)
        assert type(await one.publish(large)).__name__ == "MessageTooLarge"
        assert kinds(one) == []


def _pub(reply: bytes, payload: bytes) -> bytes:
    return b"PUB %b %d\r\n%b\r\n" % (reply, len(payload), payload)


async def test_a_stream_that_limits_message_size(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with process(server, fresh_queue()) as one:
        name = fresh_queue()
        await of(one).js.create_stream(
            StreamConfig(name=name, subjects=(name,), max_msg_size=10, discard="new", max_bytes=500)
        )
        assert type(await one.publish(bytes(11), subject=name)).__name__ == "MessageTooLarge"
        results = [await one.publish(bytes(9), subject=name) for _ in range(30)]
        assert type(results[-1]).__name__ == "StreamFull"
