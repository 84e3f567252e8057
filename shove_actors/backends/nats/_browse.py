"""Looking at a stream's messages without consuming them, and taking single ones out.

Every read asks the stream's leader: what was acknowledged before is seen.
"""

from __future__ import annotations

from shove_actors._errors import StreamNotFound, TopicNotDeclared
from shove_actors.backends._port import Kept
from shove_actors.jetstream import JetStream, parse_time_ns


def _missing(stream: str) -> TopicNotDeclared:
    return TopicNotDeclared(
        f"there is no stream {stream!r}; call `await broker.declare(topic)` first"
    )


async def last_sequence(js: JetStream, stream: str) -> int:
    try:
        return (await js.stream_info(stream)).last_seq
    except StreamNotFound as exc:
        raise _missing(stream) from exc


async def next_message(js: JetStream, stream: str, sequence: int) -> Kept | None:
    try:
        raw = await js.next_message(stream, max(1, sequence))
    except StreamNotFound as exc:
        raise _missing(stream) from exc
    if raw is None:
        return None
    return Kept(raw.sequence, raw.subject, raw.data, raw.header_block, parse_time_ns(raw.time))


async def delete_message(js: JetStream, stream: str, sequence: int) -> bool:
    try:
        return await js.delete_message(stream, sequence)
    except StreamNotFound as exc:
        raise _missing(stream) from exc
