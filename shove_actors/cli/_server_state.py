"""What a server knows of its topics: read twice, it gives rates.

Streams are listed in one request per page, consumers in one per topic. Which stream belongs to
which topic is read from the names (`messaging/_names.py`): `{queue}-hold-5s`, `{queue}-dlq`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import trio

from shove_actors._errors import ApiError
from shove_actors.jetstream import JetStream

from ._poison_counts import PoisonCounts, bucket_of

_HOLD: Final = re.compile(r"(?P<queue>.+)-hold-\d+(?:ms|s)")
_SIDE: Final = re.compile(r"(?P<queue>.+)-(?:dlq|attempts)")
_FOREIGN: Final = ("KV_", "OBJ_")
#: More topics than that are not looked at: nobody would read them.
TOPICS: Final = 200


@dataclass(frozen=True, kw_only=True)
class Counts:
    """One topic at one moment, by the server's own counters.

    `poisoned`: keys; None of a topic that is not FAIL_ALL (`fails_all`), or if it is not known.
    """

    queue: str
    stored: int
    last_sequence: int
    pending: int
    in_flight: int
    held: int
    dead: int
    fails_all: bool
    poisoned: int | None
    deliveries: int
    redelivered: int
    pulls: int
    durables: int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """All topics at one moment of Trio's clock."""

    at: float
    round_trip: float
    topics: Mapping[str, Counts]
    truncated: bool = False


async def sample(
    js: JetStream, queues: Collection[str] = (), poison: PoisonCounts | None = None
) -> Sample:
    """`queues`: only these topics. `poison`: remembers, for the next look. Raises what prevents
    the look.
    """
    poison = poison if poison is not None else PoisonCounts(js)
    began = trio.current_time()
    await js.connection.flush()
    round_trip = trio.current_time() - began
    streams = await _streams(js)
    mains, sides = _sorted(streams)
    wanted = [name for name in sorted(mains) if not queues or name in queues]
    topics = {}
    for name in wanted[:TOPICS]:
        state = streams[name]["state"]
        consumers = await _consumers(js, name)
        bucket = streams.get(bucket_of(name))
        topics[name] = Counts(
            queue=name,
            stored=state.get("messages", 0),
            last_sequence=state.get("last_seq", 0),
            pending=_sum(consumers, "num_pending"),
            in_flight=_sum(consumers, "num_ack_pending"),
            held=sum(_messages(streams, side) for side in sides[name] if _HOLD.fullmatch(side)),
            dead=_messages(streams, f"{name}-dlq"),
            fails_all=bucket is not None,
            poisoned=None if bucket is None else await poison.of(bucket_of(name), bucket),
            deliveries=sum(c.get("delivered", {}).get("consumer_seq", 0) for c in consumers),
            redelivered=_sum(consumers, "num_redelivered"),
            pulls=_sum(consumers, "num_waiting"),
            durables=len(consumers),
        )
    return Sample(
        at=began, round_trip=round_trip, topics=topics, truncated=len(wanted) > len(topics)
    )


def state(before: Sample, now: Sample) -> list[dict[str, Any]]:
    """The topics of `now` as JSON, with what moved since `before`, per second."""
    seconds = max(now.at - before.at, 1e-9)
    found = []
    for name, topic in now.topics.items():
        was = before.topics.get(name, topic)
        settled = topic.deliveries - topic.in_flight - (was.deliveries - was.in_flight)
        found.append(
            {
                "queue": name,
                "stored": topic.stored,
                "pending": topic.pending,
                "in_flight": topic.in_flight,
                "held": topic.held,
                "dead": topic.dead,
                "fails_all": topic.fails_all,
                "poisoned": topic.poisoned,
                "redelivered": topic.redelivered,
                "pulls": topic.pulls,
                "durables": topic.durables,
                # A stream or durable that was made again counts from zero.
                "stored_per_s": _rate(topic.last_sequence - was.last_sequence, seconds),
                "settled_per_s": _rate(settled, seconds),
            }
        )
    return found


def _rate(count: int, seconds: float) -> float:
    return round(max(0, count) / seconds, 2)


async def _streams(js: JetStream) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    offset = 0
    while True:
        page = await js.call("STREAM.LIST", {"offset": offset})
        streams = page.get("streams") or []
        found |= {stream["config"]["name"]: stream for stream in streams}
        offset += len(streams)
        if not streams or offset >= page.get("total", 0):
            return found


async def _consumers(js: JetStream, stream: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    while True:
        try:
            page = await js.call(f"CONSUMER.LIST.{stream}", {"offset": len(found)})
        except ApiError:
            return found  # deleted since it was listed
        consumers = page.get("consumers") or []
        found += consumers
        if not consumers or len(found) >= page.get("total", 0):
            return found


def _sorted(streams: Mapping[str, Any]) -> tuple[set[str], dict[str, list[str]]]:
    """Main streams, and what belongs to each."""
    mains = {name for name in streams if not name.startswith(_FOREIGN)}
    owners: dict[str, str] = {}
    for name in mains:
        match = _HOLD.fullmatch(name) or _SIDE.fullmatch(name)
        if match is not None and match["queue"] in mains:
            owners[name] = match["queue"]
    mains -= owners.keys()
    sides: dict[str, list[str]] = {name: [] for name in mains}
    for name, owner in owners.items():
        sides.setdefault(owner, []).append(name)
    return mains, sides


def _messages(streams: Mapping[str, Any], name: str) -> int:
    stream = streams.get(name)
    return 0 if stream is None else int(stream["state"].get("messages", 0))


def _sum(consumers: list[Mapping[str, Any]], field: str) -> int:
    return sum(int(consumer.get(field, 0)) for consumer in consumers)
