"""What a conformance check is given: a server, and processes that connect to it.

Checks are written once and run on every backend, in virtual time where the backend allows it and
in real time elsewhere. So they are short (an ack wait of one second), they wait for events, and
where an amount of time is the point they compare with room to spare on the late side only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from shove_actors.backends import Backend, BackendEvent, Delivery, Lane, LaneSpec, Post, Stored
from shove_actors.messaging import Topology, TopologyBuilder, encode_headers

if TYPE_CHECKING:
    from .disturbance import Disturbance

#: For something that should happen at once: long enough for a busy machine.
SOON_S = 10.0

#: The shortest lease that real servers and a busy machine leave room for.
ACK_WAIT_S = 1.0


class Process:
    """One connected backend, with the few calls the checks are made of."""

    def __init__(self, backend: Backend, queue: str) -> None:
        self.backend = backend
        self.queue = queue
        self.events: list[BackendEvent] = []
        self._lanes: list[Lane] = []
        backend.listen(self.events.append)

    async def publish(
        self,
        payload: bytes = b"x",
        *,
        subject: str | None = None,
        headers: dict[str, str] | None = None,
        block: bytes | None = None,
    ) -> Stored | Exception:
        """The result of one post. `block` is a header block as it goes over the wire."""
        if block is None:
            block = encode_headers(headers) if headers else b""
        return (await self.publish_all([(subject or self.queue, payload, block)]))[0]

    async def publish_all(self, messages: list[tuple[str, bytes, bytes]]) -> list[object]:
        """Results in the order of the messages, which go out as one batch."""
        results: dict[int, object] = {}
        complete = trio.Event()

        def done(post: Post, result: Stored | Exception) -> None:
            assert isinstance(post.tag, int)
            assert post.tag not in results, "answered twice"
            results[post.tag] = result
            if len(results) == len(messages):
                complete.set()

        self.backend.post(
            [
                Post(subject, body, block, done, tag)
                for tag, (subject, body, block) in enumerate(messages)
            ]
        )
        with trio.fail_after(SOON_S):
            await complete.wait()
        return [results[tag] for tag in range(len(messages))]

    async def stored(self, count: int, *, subject: str | None = None) -> None:
        """Publishes b"0", b"1", ... and insists that they are stored, in this order."""
        name = subject or self.queue
        results = await self.publish_all([(name, b"%d" % n, b"") for n in range(count)])
        sequences = [result.sequence for result in results if isinstance(result, Stored)]
        assert len(sequences) == count, results
        assert sequences == sorted(sequences)

    async def lane(
        self,
        *,
        stream: str | None = None,
        durable: str | None = None,
        filter_subject: str | None = None,
        credit: int = 1,
        max_ack_pending: int = 1000,
        ack_wait_s: float = 30.0,
    ) -> Lane:
        stream = stream or self.queue
        lane = await self.backend.open_lane(
            LaneSpec(
                stream=stream,
                durable=durable or f"{stream}-consumer",
                filter_subject=filter_subject,
                credit=credit,
                max_ack_pending=max_ack_pending,
                ack_wait_s=ack_wait_s,
            )
        )
        self._lanes.append(lane)
        return lane

    async def close_lanes(self) -> None:
        for lane in self._lanes:
            await lane.close()

    async def backlog(self) -> tuple[int, int]:
        """Pending and ack-pending of the queue's main durable, which must exist."""
        found = await self.backend.backlog(self.queue, f"{self.queue}-consumer")
        assert found is not None
        return found.pending, found.ack_pending

    async def event(self, kind: str) -> BackendEvent:
        await eventually(lambda: any(event.kind == kind for event in self.events))
        return next(event for event in self.events if event.kind == kind)


@dataclass
class World:
    """A server with nothing on it under `queue`, and ways to reach and to disturb it."""

    create_backend: Callable[[], Backend | Awaitable[Backend]]
    queue: str
    delete_stream: Callable[[str], Awaitable[None]]
    delete_durable: Callable[[str, str], Awaitable[None]]
    disturbance: Disturbance | None = None
    #: What `process` declares; a check may replace it first.
    topology: Topology = field(init=False)

    def __post_init__(self) -> None:
        self.topology = self.builder().build()

    @property
    def disturb(self) -> Disturbance:
        assert self.disturbance is not None
        return self.disturbance

    def builder(self) -> TopologyBuilder:
        return TopologyBuilder(self.queue)

    @asynccontextmanager
    async def process(self, *, declare: bool = True) -> AsyncIterator[Process]:
        """One more process, connected, for the length of the block."""
        made = self.create_backend()
        backend = await made if isinstance(made, Awaitable) else made
        async with trio.open_nursery() as nursery:
            await nursery.start(backend.run)
            process = Process(backend, self.queue)
            try:
                if declare:
                    await backend.declare([self.topology])
                yield process
            finally:
                with trio.move_on_after(SOON_S, shield=True):
                    await process.close_lanes()
                backend.close()


async def receive(lane: Lane, within: float = SOON_S) -> Delivery:
    with trio.fail_after(within):
        return await lane.receive()


async def eventually(predicate: Callable[[], bool]) -> None:
    """For what a backend tells nobody. In Trio's time, which may be virtual."""
    with trio.fail_after(SOON_S):
        while True:
            if predicate():
                return
            await trio.sleep(0.01)


async def nothing_comes(lane: Lane, for_s: float) -> None:
    """Fails if anything is delivered in this time: here the time is the point."""
    with trio.move_on_after(for_s):
        delivery = await lane.receive()
        raise AssertionError(f"{delivery!r} was delivered")


async def drain(lane: Lane, count: int) -> list[Delivery]:
    """Receives and acknowledges `count` messages, one after the other."""
    drained = []
    for _ in range(count):
        delivery = await receive(lane)
        lane.ack(delivery)
        drained.append(delivery)
    return drained


Check = Callable[[World], Awaitable[None]]
