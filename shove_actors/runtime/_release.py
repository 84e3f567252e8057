"""What an operator can ask about poisoned keys, and do about them (`_poison.py`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from shove_actors._errors import PublishRefused, UsageError
from shove_actors.backends import Backend
from shove_actors.messaging import (
    Control,
    PoisonedKey,
    SequencedTopic,
    Topic,
    control_headers,
    encode_headers,
    poison_bucket,
)

from ._poison import Entry, PoisonBook
from ._publish_service import PublishService

#: How often a record that changes at the same moment is looked at again.
TRIES: Final = 5


async def poisoned(backend: Backend, topic: Topic[Any]) -> tuple[PoisonedKey, ...]:
    """See `Broker.poisoned`."""
    ordered = _checked(topic, "poisoned")
    await backend.last_sequence(topic.queue)  # `TopicNotDeclared` if there is no such thing
    found = await PoisonBook(backend, topic.queue).all()
    # Where it is now: the number of shards may have changed since it was poisoned.
    return tuple(replace(each, shard=ordered.shard_of(each.key)) for each in found)


async def release(publisher: PublishService, topic: Topic[Any], key: str, *, replay: bool) -> bool:
    """See `Broker.release`."""
    ordered = _checked(topic, "release")
    if not isinstance(key, str):
        raise UsageError(
            f"release({topic.queue!r}): a key is a str, not {type(key).__name__}. Give it as the "
            "topic's key function returns it, or as `key` of what broker.poisoned() lists"
        )
    if replay and topic.topology.dlq is None:
        raise UsageError(
            f"release({topic.queue!r}, replay=True): the topic has no dead-letter queue, so there "
            "is nothing to replay. Release the key without replay, or add .dlq() to its topology"
        )
    await publisher.backend.last_sequence(topic.queue)
    book = PoisonBook(publisher.backend, topic.queue)
    swallowed = ""
    for _ in range(TRIES):
        entry = await book.find(key)
        if entry.record is None:
            return False
        if not replay:
            if await book.remove(key, entry.revision):
                return True
            continue
        spent = await _ask_for_replay(publisher, ordered, key, entry, swallowed)
        if spent is None:
            return True
        swallowed += f".{spent}"
    raise PublishRefused(
        f"release({topic.queue!r}, replay={replay}): the record of the key in the bucket "
        f"{poison_bucket(topic.queue)}, or the request, was dealt with by others {TRIES} times "
        "while this went on. Look at broker.poisoned(), then release the key again"
    )


async def _ask_for_replay(
    publisher: PublishService,
    topic: SequencedTopic[Any],
    key: str,
    entry: Entry,
    swallowed: str,
) -> int | None:
    """None: the request is on its way. Else it was swallowed as a repetition of that message,
    which has been dealt with and has not released the key: `swallowed` of the next try.
    """
    record = entry.record
    assert record is not None
    # Asked twice for the same state of the key is asked once.
    state = f"{entry.revision}.{record.stored_ns:x}{swallowed}"
    headers = control_headers(
        Control.REPLAY,
        key=key,
        poisoning=entry.poisoning,
        message_id=f"{topic.queue}:replay:{state}",
    )
    shards = topic.topology.routing_shards
    # In another lane than the key's it would be of no use, so the number has to be the stream's.
    publisher.fence.expect(topic.queue, shards)
    subject = topic.topology.shard_subject(topic.shard_of(key))
    receipt = await publisher.publish(subject, b"", encode_headers(headers, into=topic.queue))
    if not receipt.duplicate:
        return None
    waiting = await publisher.backend.next_message(topic.queue, receipt.sequence)
    if waiting is not None and waiting.sequence == receipt.sequence:
        return None
    return receipt.sequence


def _checked(topic: Topic[Any], what: str) -> SequencedTopic[Any]:
    if not isinstance(topic, Topic):
        raise UsageError(f"{what} takes a topic, not {type(topic).__name__}")
    if not topic.topology.fails_all:
        raise UsageError(
            f"{what}({topic.queue!r}): only keys of a topic with SequenceFailure.FAIL_ALL are ever "
            "poisoned; on any other topic a message that fails takes no later one with it. Build "
            "its topology with .sequenced(SequenceFailure.FAIL_ALL), or leave out the call"
        )
    assert isinstance(topic, SequencedTopic)  # a plain one with such a topology is refused
    return topic
