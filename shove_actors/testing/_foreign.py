"""Messages that no publisher of a topic would send, and that its consumers get all the same."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from shove_actors._errors import DecodeError, UsageError
from shove_actors.messaging import (
    KEY,
    MSG_ID,
    SequencedTopic,
    Topic,
    encode_headers,
    encode_key,
)

from ._given import check_one_of

#: `undecodable`: a payload that the topic cannot decode. `oversize`: larger than what
#: `max_message_size` allows. `foreign_header`: with a header that is the server's own.
Foreign: TypeAlias = Literal["undecodable", "oversize", "foreign_header"]
ALL_FOREIGN: tuple[Foreign, ...] = get_args(Foreign)

#: What hardly any codec takes.
_ODD = (b"\xff\xfe\xfd no message", b"", b"{")
_STATUS = b"Status: 404\r\n"


#: What a header block and a subject may take of what a server lets through.
_ROOM = 64 * 1024


def check_foreign(value: object, name: str) -> None:
    check_one_of(value, name, ALL_FOREIGN)


def kinds_for(topic: Topic[Any], limit: int, max_payload: int) -> tuple[Foreign, ...]:
    """Which of them this topic can be sent."""
    impossible: set[Foreign] = set()
    if undecodable(topic) is None:
        impossible.add("undecodable")
    if limit + _ROOM >= max_payload:
        impossible.add("oversize")
    return tuple(kind for kind in ALL_FOREIGN if kind not in impossible)


def undecodable(topic: Topic[Any]) -> bytes | None:
    """A payload that this topic refuses; None if it takes anything, as one of bytes does."""
    for payload in _ODD:
        try:
            topic.decode(payload)
        except DecodeError:
            return payload
    return None


def check_possible(kind: Foreign, topic: Topic[Any], limit: int, max_payload: int) -> None:
    if kind in kinds_for(topic, limit, max_payload):
        return
    why = "topic {0!r} decodes any payload: publish 'foreign_header' instead"
    if kind == "oversize":
        why = (
            "max_message_size is {1:,} bytes, and the server takes {2:,} with headers: give a "
            "smaller one in options"
        )
    raise UsageError(f"kind={kind!r}: " + why.format(topic.queue, limit, max_payload))


def foreign_message(
    topic: Topic[Any], kind: Foreign, id_: str, key: str, limit: int
) -> tuple[str, bytes, bytes]:
    """Subject, payload and header block. `limit`: bytes of a payload that are not too many."""
    topology = topic.topology
    headers = {MSG_ID: id_}
    where = topology.default_subject or topology.queue
    if isinstance(topic, SequencedTopic):
        headers[KEY] = encode_key(key)
        where = topology.shard_subject(topic.shard_of(key))
    block = encode_headers(headers, into=topology.queue)
    if kind == "oversize":
        return where, b"\xff" * (limit + 1), block
    payload = undecodable(topic) or b""
    if kind == "foreign_header":
        return where, payload, block[:-2] + _STATUS + b"\r\n"
    return where, payload, block
