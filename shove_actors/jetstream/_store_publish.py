"""Storing one message of a bucket, acknowledged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

from shove_actors._errors import MessageTooLarge

from ._headers import encode_headers
from ._pub_ack import PubAck, is_no_responders, read_ack

if TYPE_CHECKING:
    from ._context import JetStream

#: Nobody listens while a stream's leader is being elected.
_PAUSES = (0.25, 0.25, None)


async def store(
    js: JetStream, subject: str, payload: bytes, headers: Mapping[str, str] | None = None
) -> PubAck:
    """Raises what the stream answers, `NoStreamResponse`, `RequestTimeout`, `ConnectionError`,
    `MessageTooLarge`. Cancelled, the message may be stored."""
    block = encode_headers(headers)
    check_size(js, len(block) + len(payload))
    for pause in _PAUSES:
        reply = await js.connection.request(
            subject, payload, timeout=js.timeout, header_block=block
        )
        if pause is None or not is_no_responders(reply.header_block, reply.payload):
            break
        await trio.sleep(pause)
    ack = read_ack(subject, reply.header_block, reply.payload)
    if isinstance(ack, Exception):
        raise ack
    return ack


def check_size(js: JetStream, size: int) -> None:
    """The server would close the connection."""
    limit = js.connection.max_payload
    if size > limit:
        raise MessageTooLarge(
            f"a message of {size} bytes (with its headers) exceeds the server's max_payload of "
            f"{limit}; store it in an object store, or raise that limit"
        )


def publish_prefix(js: JetStream) -> str:
    """Before the subjects of a bucket that lives in another domain, or behind a prefix."""
    return "" if js.prefix == "$JS.API." else js.prefix
