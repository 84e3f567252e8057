"""One measurement of `stress`: so many consumers, so much prefetch, one kind of handler.

    dispatch      from just before the publish until the handler begins
    end to end    until the handler has ended, and its acknowledgement is about to be sent

Messages are published as fast as they are stored, or at `rate`, while the consumers run. Without a
rate most of `dispatch` is waiting in the queue: that is what a burst sees. A cell ends when all are
handled, or when its time is up; then running handlers are cancelled. Its streams are deleted.
"""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import trio

from shove_actors import (
    Broker,
    MemoryConfig,
    NatsConfig,
    Outcome,
    Topic,
    TopologyBuilder,
    jetstream,
    open_broker,
)
from shove_actors._errors import StreamNotFound

from ._percentiles import percentiles
from ._resources import LOOK_S, cpu_seconds, resident_bytes

Handler = Literal["zero", "fast", "slow", "heavy"]

#: Seconds that a handler takes, from and to, as in the source system.
WORK_S: Final[dict[Handler, tuple[float, float]]] = {
    "zero": (0.0, 0.0),
    "fast": (0.001, 0.005),
    "slow": (0.05, 0.3),
    "heavy": (1.0, 5.0),
}
BATCH: Final = 500
#: For deleting the streams of a cell, whatever has happened.
CLEAN_UP_S: Final = 5.0


class Ping(msgspec.Struct):
    """`at`: Trio's time just before it was published, which only this process can read."""

    number: int
    at: float


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is measured. `rate`: messages per second; None: as fast as they are stored."""

    handler: Handler
    consumers: int
    prefetch: int
    messages: int
    seconds: float
    rate: float | None = None
    concurrent: bool = True
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class Measured:
    """`handled`: different messages. `repeated`: handler calls beyond that. Times in seconds."""

    cell: Cell
    handled: int
    repeated: int
    seconds: float
    dispatch: dict[str, float]
    end_to_end: dict[str, float]
    cpu_percent: float
    memory_bytes: int | None
    server_cpu_percent: float | None
    server_memory_bytes: int | None

    @property
    def complete(self) -> bool:
        return self.handled == self.cell.messages

    @property
    def per_second(self) -> float:
        return self.handled / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        cell = self.cell
        return {
            "handler": cell.handler,
            "consumers": cell.consumers,
            "prefetch": cell.prefetch,
            "concurrent": cell.concurrent,
            "rate": cell.rate,
            "messages": cell.messages,
            "handled": self.handled,
            "complete": self.complete,
            "repeated": self.repeated,
            "seconds": round(self.seconds, 4),
            "per_second": round(self.per_second, 1),
            "dispatch": self.dispatch,
            "end_to_end": self.end_to_end,
            "cpu_percent": round(self.cpu_percent, 1),
            "memory_bytes": self.memory_bytes,
            "server_cpu_percent": self.server_cpu_percent,
            "server_memory_bytes": self.server_memory_bytes,
        }


class _Probe:
    """The handler, and what it saw."""

    def __init__(self, cell: Cell) -> None:
        self.calls = 0
        self.seen: set[int] = set()
        self.dispatch: list[float] = []
        self.end_to_end: list[float] = []
        self.done = trio.Event()
        self.last_at = 0.0
        self._cell = cell
        self._low, self._high = WORK_S[cell.handler]
        self._rng = random.Random(cell.seed)

    async def handle(self, ping: Ping) -> Outcome:
        began = trio.current_time()
        if self._high:
            await trio.sleep(self._rng.uniform(self._low, self._high))
        ended = trio.current_time()
        self.calls += 1
        self.seen.add(ping.number)
        self.dispatch.append(began - ping.at)
        self.end_to_end.append(ended - ping.at)
        self.last_at = ended
        if len(self.seen) == self._cell.messages:
            self.done.set()
        return Outcome.ACK


async def measure(
    cell: Cell,
    config: NatsConfig | MemoryConfig,
    queue: str,
    *,
    server_pid: int | None = None,
) -> Measured:
    """Raises what the library raises. The streams of the cell are gone afterwards."""
    topic = Topic(Ping, TopologyBuilder(queue).hold_queue(5).dlq().build())
    probe = _Probe(cell)
    peak = _Peak(server_pid)
    async with AsyncExitStack() as stack:
        if isinstance(config, NatsConfig):
            # After the broker, which would wait for its streams to come back.
            stack.push_async_callback(_clean_up, config, topic)
        broker = await stack.enter_async_context(open_broker(config, telemetry=None))
        await broker.declare(topic)
        group = broker.consumer_group()
        group.register(
            topic,
            probe.handle,
            consumers=(cell.consumers, cell.consumers),
            prefetch=cell.prefetch,
            concurrent_processing=cell.concurrent,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(group.serve)
            nursery.start_soon(peak.watch)
            began, cpu, server_cpu = trio.current_time(), cpu_seconds(), cpu_seconds(server_pid)
            with trio.move_on_after(cell.seconds):
                async with trio.open_nursery() as publishing:
                    publishing.start_soon(_publish, broker, topic, cell)
                    await probe.done.wait()
                    publishing.cancel_scope.cancel()
            ended = probe.last_at if probe.done.is_set() else trio.current_time()
            used = _since(cpu, cpu_seconds())
            server_used = None
            if server_pid is not None:
                server_used = _since(server_cpu, cpu_seconds(server_pid))
            wall = max(trio.current_time() - began, 1e-9)
            group.hard_stop()
            nursery.cancel_scope.cancel()
    return Measured(
        cell=cell,
        handled=len(probe.seen),
        repeated=probe.calls - len(probe.seen),
        seconds=ended - began,
        dispatch=percentiles(probe.dispatch),
        end_to_end=percentiles(probe.end_to_end),
        cpu_percent=100 * (used or 0.0) / wall,
        memory_bytes=peak.own,
        server_cpu_percent=None if server_used is None else round(100 * server_used / wall, 1),
        server_memory_bytes=peak.server,
    )


async def _publish(broker: Broker, topic: Topic[Ping], cell: Cell) -> None:
    publisher = broker.publisher()
    began = trio.current_time()
    batch = BATCH if cell.rate is None else max(1, min(BATCH, int(cell.rate / 50)))
    for first in range(0, cell.messages, batch):
        if cell.rate is not None:
            await trio.sleep_until(began + first / cell.rate)
        now = trio.current_time()
        numbers = range(first, min(first + batch, cell.messages))
        await publisher.publish_batch(topic, [Ping(number, now) for number in numbers])


async def _clean_up(config: NatsConfig, topic: Topic[Ping]) -> None:
    topology = topic.topology
    with trio.move_on_after(CLEAN_UP_S, shield=True):
        async with jetstream.connect(config) as js:
            for name in (*topology.stream_names(), *topology.note_streams()):
                try:
                    await js.delete_stream(name)
                except StreamNotFound:
                    pass  # it was never made


class _Peak:
    """The most memory that was seen."""

    def __init__(self, server_pid: int | None) -> None:
        self.own: int | None = None
        self.server: int | None = None
        self._server_pid = server_pid

    async def watch(self) -> None:
        while True:
            self.own = _most(self.own, resident_bytes())
            if self._server_pid is not None:
                self.server = _most(self.server, resident_bytes(self._server_pid))
            await trio.sleep(LOOK_S)


def _most(one: int | None, other: int | None) -> int | None:
    return max((n for n in (one, other) if n is not None), default=None)


def _since(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else now - before
