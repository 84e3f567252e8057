"""One run of the demonstration, from the first publish to the verdict.

    without chaos    one process: publisher, consumers of all shards, dead-letter consumer
    with chaos       consumers in two child processes, which are killed, as the server is (`_chaos`)

The run is over when the journals account for every flight and the server has nothing left in the
stream, so that what a kill made it deliver again is part of the verdict. A run that makes no
progress for `STALL_S` seconds ends too, with whatever verdict that gives.
"""

from __future__ import annotations

import logging
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from shove_actors import (
    Broker,
    ConsumerGroup,
    NatsConfig,
    SequencedTopic,
    ShoveError,
    SupervisorOutcome,
    UsageError,
    embedded_server,
    jetstream,
    open_broker,
)

from ._chaos import Chaos
from ._flights import Flight, expected, flights_topic, read_flights
from ._handling import DeadHandler, FlightHandler
from ._journal import Journal, read_all
from ._output import Interrupted as Interrupted
from ._progress import Progress
from ._publishing import publish_flights
from ._screen import Screen
from ._verdict import judge

STALL_S: Final = 60.0
#: A message of a killed process comes back after this long; its shard waits meanwhile.
CHAOS_ACK_WAIT_S: Final = 3.0
#: While the server is killed and restarted, publishes are repeated for this long.
PUBLISH_TIMEOUT_S: Final = 60.0
DRAIN_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.1


class DemoFailed(ShoveError):
    """The demonstration could not go on; the message says what ended it."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """`work_s`: seconds each handler call takes. `store`: a folder to keep, None: temporary."""

    count: int | None = None
    shards: int = 8
    chaos: bool = False
    seed: int = 1
    work_s: float = 0.0
    store: Path | None = None


@dataclass
class _Run:
    """What the parts of one run share."""

    options: DemoOptions
    topic: SequencedTopic[Flight]
    flights: Sequence[Flight]
    folder: Path
    config: NatsConfig
    broker: Broker
    progress: Progress
    screen: Screen
    chaos: Chaos | None
    outcomes: list[SupervisorOutcome] = field(default_factory=list)
    served: trio.Event = field(default_factory=trio.Event)


@dataclass(frozen=True)
class _Ended:
    """How the consumers of this process ended, and what did not fit besides the journals."""

    outcome: SupervisorOutcome
    mistakes: list[str]


async def run_demo(options: DemoOptions, screen: Screen) -> int:
    """Returns the exit code: 0 for a good verdict, 1 for a bad one, 3 for a drain time-out.

    Raises `UsageError` for unusable options, `DemoFailed`, `Interrupted`, and what the library
    raises. Cancelled or not, the server and every child process have ended when it returns.
    """
    topic = flights_topic(options.shards)
    flights = read_flights(options.count)
    with _folder(options.store) as folder, _log_to(folder / "demo.log"):
        async with until_signal():
            ended = await _with_server(options, topic, flights, folder, screen)
            # Only now: it takes a second, in which a broker would miss its timers.
            return _conclude(folder / "journals", flights, options, screen, ended)


async def _with_server(
    options: DemoOptions,
    topic: SequencedTopic[Flight],
    flights: Sequence[Flight],
    folder: Path,
    screen: Screen,
) -> _Ended:
    store = None if options.store is None else folder / "jetstream"
    journals = folder / "journals"
    journals.mkdir()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(embedded_server(store_dir=store))
        config = NatsConfig(server.url, name="demo", reconnect_wait=0.1, reconnect_jitter=0.05)
        broker = await stack.enter_async_context(
            open_broker(config, publish_timeout=PUBLISH_TIMEOUT_S)
        )
        await broker.declare(topic)
        progress = Progress(journals, len(flights))
        chaos = None
        if options.chaos:
            chaos = await stack.enter_async_context(
                Chaos.open(
                    server=server,
                    journals=journals,
                    logs=folder,
                    progress=progress,
                    seed=options.seed,
                    shards=options.shards,
                    work_s=options.work_s,
                    ack_wait_s=CHAOS_ACK_WAIT_S,
                    note=screen.note,
                )
            )
        run = _Run(options, topic, flights, journals, config, broker, progress, screen, chaos)
        with screen:
            mistakes = await _consume_and_publish(run)
        if chaos is not None:
            mistakes += chaos.mistakes()
        return _Ended(run.outcomes[0], mistakes)


async def _consume_and_publish(run: _Run) -> list[str]:
    """Everything between the first publish and the end of the drain."""
    with Journal(run.folder, "publisher") as receipts, Journal(run.folder, "main") as handled:
        group = _group(run, handled)
        async with trio.open_nursery() as nursery:
            await nursery.start(_serve, run, group)
            run.progress.begin()
            if run.chaos is not None:
                nursery.start_soon(run.chaos.run)
            nursery.start_soon(
                publish_flights, run.broker.publisher(), run.topic, run.flights, receipts
            )
            await _watch(run)
            left = await _left_on_server(run)
            if run.chaos is not None:
                await run.chaos.stop_workers()
            group.stop()
            await run.served.wait()
            # Publishing has ended, or is what has stalled.
            nursery.cancel_scope.cancel()
    return left


def _group(run: _Run, journal: Journal) -> ConsumerGroup:
    group = run.broker.consumer_group()
    if run.chaos is None:
        group.register(run.topic, FlightHandler(journal, run.options.work_s))
        group.register_dlq(run.topic, DeadHandler(journal))
    else:
        group.register_dlq(run.topic, DeadHandler(journal), ack_wait=CHAOS_ACK_WAIT_S)
    return group


async def _serve(
    run: _Run,
    group: ConsumerGroup,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    run.outcomes.append(await group.serve(drain_timeout=DRAIN_S, task_status=task_status))
    run.served.set()


async def _watch(run: _Run) -> None:
    """Until everything is accounted for, or nothing moves any more."""
    moved, standing = trio.current_time(), -1
    while True:
        _show(run)
        progress = run.progress
        if progress.done and (run.chaos is None or run.chaos.finished):
            return
        if run.outcomes:
            reasons = "; ".join(run.outcomes[0].reasons) or "no reason given"
            raise DemoFailed(f"the consumers ended before the flights did: {reasons}")
        if progress.events != standing:
            moved, standing = trio.current_time(), progress.events
        elif trio.current_time() - moved > STALL_S:
            run.screen.note(f"nothing has moved for {STALL_S:g} s; giving up")
            return
        await trio.sleep(_LOOK_EVERY_S)


def _show(run: _Run) -> None:
    run.progress.read()
    workers = run.chaos.describe() if run.chaos is not None else ()
    run.screen.update(run.progress.snapshot(run.broker.snapshot(), workers))


async def _left_on_server(run: _Run) -> list[str]:
    """Waits until the server has nothing left to deliver; says what does not fit."""
    queue, dlq = run.topic.queue, run.topic.topology.dlq
    assert dlq is not None
    deadline = trio.current_time() + 10 * CHAOS_ACK_WAIT_S
    async with jetstream.connect(run.config) as js:
        while True:
            left = (await js.stream_info(queue)).messages
            _show(run)
            if not left or trio.current_time() > deadline:
                break
            await trio.sleep(_LOOK_EVERY_S)
        buried = (await js.stream_info(dlq)).messages
    seen = run.progress.dead
    found = []
    if left:
        found.append(f"the server still has {left:,} flights in the stream {queue!r}")
    if buried != seen:
        found.append(f"the stream {dlq!r} holds {buried:,} letters, {seen:,} were seen")
    return found


def _conclude(
    journals: Path, flights: Sequence[Flight], options: DemoOptions, screen: Screen, ended: _Ended
) -> int:
    verdict = judge(read_all(journals))
    mistakes = [
        *verdict.mistakes(expected(flights)),
        *ended.mistakes,
        *(f"consumers: {reason}" for reason in ended.outcome.reasons),
    ]
    screen.verdict(verdict, chaos=options.chaos, mistakes=mistakes)
    return 1 if mistakes else ended.outcome.exit_code


@contextmanager
def _folder(store: Path | None) -> Iterator[Path]:
    """The folder of this run: the one asked for, which must be new or empty, or a temporary one."""
    if store is None:
        with tempfile.TemporaryDirectory(prefix="shove-demo-") as name:
            yield Path(name)
        return
    try:
        store.mkdir(parents=True, exist_ok=True)
        if any(store.iterdir()):
            raise UsageError(f"--store {store}: the folder is not empty; name a new one")
    except OSError as exc:
        raise UsageError(f"--store {store}: {exc.strerror}") from None
    yield store.absolute()


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """What kills make the library say is expected here, and would tear the live picture apart."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("shove_actors")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


@asynccontextmanager
async def until_signal() -> AsyncIterator[None]:
    """Turns SIGINT and SIGTERM into a cancellation, so that every end is an orderly one."""
    received = False

    async def listen(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        nonlocal received
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as numbers:
            task_status.started()
            async for _ in numbers:
                received = True
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        await nursery.start(listen)
        yield
        nursery.cancel_scope.cancel()
    if received:
        raise Interrupted("interrupted")
