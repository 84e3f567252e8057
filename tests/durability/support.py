"""Looking into the streams through JetStream's own API, and a consumer that nobody kills."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import trio

from shove_actors import ConsumerGroup, NatsConfig, Topic, jetstream, open_broker
from shove_actors._errors import ConsumerNotFound, MessageNotFound
from shove_actors.messaging import decode_headers

from .launcher import SOON_S, Child, Launcher
from .notes import Event, Handler, Journal, Kind, Note, make_topic, read_journals
from .plan import Kill, Plan, gate_path


async def until(
    predicate: Callable[[], Awaitable[object]], timeout: float = SOON_S, what: str = ""
) -> None:
    """`tests.support.wait_until` for a predicate that has to ask the server."""
    with trio.move_on_after(timeout):
        while not await predicate():  # noqa: ASYNC110 - the server tells nobody
            await trio.sleep(0.02)
        return
    raise AssertionError(f"still not true after {timeout:g} s: {what or predicate!r}")


@dataclass(frozen=True)
class Found:
    """One message of a stream."""

    sequence: int
    msg_id: str
    headers: Mapping[str, str]
    data: bytes
    time: datetime


class World:
    """One queue on one server: its processes, its journals, its streams.

    The streams are looked at through a connection of its own, opened for each look, so that a test
    may kill the server in between.
    """

    def __init__(
        self,
        launcher: Launcher,
        folder: Path,
        url: str,
        queue: str,
        kind: Kind = "holds",
        *,
        hold_s: float = 1.0,
        shards: int = 2,
    ) -> None:
        self.folder = folder
        self.url = url
        self.queue = queue
        self.topic: Topic[Note] = make_topic(queue, kind, hold_s=hold_s, shards=shards)
        self._launcher = launcher
        self._started = 0
        self._base: dict[str, Any] = {
            "folder": str(folder),
            "url": url,
            "queue": queue,
            "kind": kind,
            "hold_s": hold_s,
            "shards": shards,
        }

    # ------------------------------------------------------------------ names

    @property
    def hold(self) -> str:
        return self.topic.topology.holds[0].name

    @property
    def dlq(self) -> str:
        name = self.topic.topology.dlq
        assert name is not None
        return name

    def _name(self, what: str) -> str:
        self._started += 1
        return f"{self.queue}-{what}-{self._started}"

    # ------------------------------------------------------------------ processes

    async def publish(self, *notes: Note) -> None:
        """Declare the topic and store these notes, each under its own id."""
        async with open_broker(NatsConfig(self.url)) as broker:
            await broker.declare(self.topic)
            for note in notes:
                await broker.publisher().publish(self.topic, note, message_id=note.id)

    async def start(self, *, kill: Kill | None = None, **options: Any) -> Child:
        """A child process that consumes the queue."""
        plan = Plan(name=self._name("child"), kill=kill, **{**self._base, **options})
        return await self._launcher.start(plan)

    @asynccontextmanager
    async def healthy(self, **options: Any) -> AsyncIterator[ConsumerGroup]:
        """A consumer in this process; drained and closed at the end of the block."""
        journal = Journal(self.folder, self._name("healthy"))
        settings: dict[str, Any] = {"ack_wait": 1.0, "handler_timeout": None, **options}
        handler = Handler(journal, gate=gate_path(self.folder, self.queue))
        async with open_broker(NatsConfig(self.url)) as broker, trio.open_nursery() as nursery:
            group = broker.consumer_group()
            group.register(self.topic, handler, **settings)
            await nursery.start(partial(group.serve, drain_timeout=5.0))
            try:
                yield group
            finally:
                group.stop()
        journal.close()

    # ------------------------------------------------------------------ what handlers saw

    def events(self, what: str = "start", **fields: object) -> list[Event]:
        """Events of this queue's processes so far, by time."""
        return [
            event
            for event in read_journals(self.folder)
            if event.who.startswith(f"{self.queue}-")
            and event.what == what
            and all(getattr(event, name) == value for name, value in fields.items())
        ]

    def runs(self, note_id: str) -> list[int]:
        """The retry count of each handler call for this note, in order."""
        return [event.retries for event in self.events(id=note_id)]

    def open_gate(self) -> None:
        gate_path(self.folder, self.queue).touch()

    def close_gate(self) -> None:
        gate_path(self.folder, self.queue).unlink()

    # ------------------------------------------------------------------ what the server has

    async def stored(self, stream: str) -> list[Found]:
        """What is in the stream now, oldest first."""
        found = []
        async with jetstream.connect(self.url) as js:
            info = await js.stream_info(stream)
            for sequence in range(max(1, info.first_seq), info.last_seq + 1):
                try:
                    raw = await js.get_message(stream, sequence)
                except MessageNotFound:
                    continue
                headers = decode_headers(raw.header_block) if raw.header_block else {}
                found.append(
                    Found(
                        sequence=raw.sequence,
                        msg_id=headers.get("Nats-Msg-Id", ""),
                        headers=headers,
                        data=raw.data,
                        time=raw.time,
                    )
                )
        return found

    async def counts(self) -> tuple[int, int, int]:
        """Messages now in the queue, its hold queue and its dead letters."""
        return await self._state("messages")

    async def ever_stored(self) -> tuple[int, int, int]:
        """Messages ever stored there, without what the server swallowed as duplicates."""
        return await self._state("last_seq")

    async def _state(self, field: str) -> tuple[int, int, int]:
        topology = self.topic.topology
        async with jetstream.connect(self.url) as js:
            main = getattr(await js.stream_info(self.queue), field)
            hold = 0
            if topology.holds:
                hold = getattr(await js.stream_info(self.hold), field)
            dead = getattr(await js.stream_info(self.dlq), field)
            # Again: between the two looks a message may have gone from hold queue to queue.
            main = max(main, getattr(await js.stream_info(self.queue), field))
        return main, hold, dead

    async def in_hand(self, stream: str, durable: str) -> int:
        """Delivered and not settled; 0 for a durable that is not there yet."""
        async with jetstream.connect(self.url) as js:
            try:
                return (await js.consumer_info(stream, durable)).num_ack_pending
            except ConsumerNotFound:
                return 0

    async def quiet(self, timeout: float = SOON_S) -> None:
        """Until nothing is left to do: queue and hold queue are empty."""

        async def empty() -> bool:
            return (await self.counts())[:2] == (0, 0)

        await until(empty, timeout, f"{self.queue} is empty")
