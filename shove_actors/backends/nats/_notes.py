"""Notes beside a queue: one small message per subject, in a stream that is made when needed.

`{stream}-attempts`, subjects `{stream}-attempts.{sequence}`, one message each. Most queues never
need one, so `declare` does not create it; whoever writes the first note does. It ages out after a
week, which also clears up notes about messages that have gone meanwhile.
"""

from __future__ import annotations

import msgspec

from shove_actors._errors import (
    ConnectionError,
    MessageNotFound,
    PublishRefused,
    StreamNameInUse,
    StreamNotFound,
)
from shove_actors.jetstream import JetStream, StreamConfig
from shove_actors.messaging import attempts_stream

#: Longer than a message that fails is likely to be tried again.
KEPT_S = 7 * 24 * 3600.0


class _PubAck(msgspec.Struct):
    seq: int = 0
    error: dict[str, object] | None = None


_decode = msgspec.json.Decoder(_PubAck).decode


async def read_note(js: JetStream, stream: str, sequence: int) -> bytes | None:
    name = attempts_stream(stream)
    try:
        message = await js.get_last_message(name, f"{name}.{sequence}")
    except (StreamNotFound, MessageNotFound):
        return None
    return message.data


async def write_note(js: JetStream, stream: str, sequence: int, note: bytes) -> None:
    name = attempts_stream(stream)
    if await _store(js, f"{name}.{sequence}", note):
        return
    replicas = (await js.stream_info(stream)).config.num_replicas
    try:
        await js.create_stream(
            StreamConfig(
                name=name,
                subjects=(f"{name}.*",),
                description=f"attempts at messages of {stream}, kept by shove_actors",
                max_msgs_per_subject=1,
                max_age=KEPT_S,
                num_replicas=replicas,
            )
        )
    except StreamNameInUse:
        pass  # an operator has changed it, or another process was faster
    if not await _store(js, f"{name}.{sequence}", note):
        raise PublishRefused(f"stream {name} does not take notes")


async def _store(js: JetStream, subject: str, note: bytes) -> bool:
    """False: no stream answers there."""
    reply = await js.connection.request(subject, note)
    if reply.status is not None:
        return False
    try:
        ack = _decode(reply.payload)
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        raise ConnectionError(f"the answer to a note on {subject} is no acknowledgement") from exc
    if ack.error is not None or not ack.seq:
        raise PublishRefused(f"a note on {subject} was refused: {ack.error}")
    return True
