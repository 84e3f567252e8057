"""A consumer process of `demo --chaos`; made to be killed."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import trio

from shove_actors import ConsumerGroup, NatsConfig, SupervisorOutcome, open_broker

from ._chaos import READY
from ._flights import flights_topic
from ._handling import FlightHandler
from ._journal import Journal

_DRAIN_S = 5.0


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    url: str
    journals: Path
    name: str
    shards: int
    work_s: float
    ack_wait_s: float


async def run_worker(options: WorkerOptions) -> int:
    """Consumes all shards until SIGTERM, SIGINT, or the end of standard input.

    Returns the outcome's exit code: 0 clean, 1 error, 2 panic, 3 drain time-out.
    """
    topic = flights_topic(options.shards)
    # It may be started while the server is being restarted.
    config = NatsConfig(
        options.url,
        name=options.name,
        reconnect_wait=0.1,
        reconnect_jitter=0.05,
        retry_first_connect=True,
    )
    outcomes: list[SupervisorOutcome] = []
    groups: list[ConsumerGroup] = []
    with Journal(options.journals, options.name) as journal:
        async with trio.open_nursery() as nursery:

            def stop() -> None:
                if groups:
                    groups[0].stop()
                else:
                    nursery.cancel_scope.cancel()

            async def on_signal() -> None:
                with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as numbers:
                    async for _ in numbers:
                        stop()

            async def on_orphaned() -> None:
                async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as pipe:
                    while await pipe.receive_some():
                        pass
                stop()

            nursery.start_soon(on_signal)
            nursery.start_soon(on_orphaned)
            async with open_broker(config) as broker, trio.open_nursery() as serving:
                await broker.declare(topic)
                group = broker.consumer_group()
                group.register(
                    topic, FlightHandler(journal, options.work_s), ack_wait=options.ack_wait_s
                )

                async def serve(
                    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
                ) -> None:
                    outcomes.append(
                        await group.serve(drain_timeout=_DRAIN_S, task_status=task_status)
                    )

                groups.append(group)
                await serving.start(serve)
                os.write(sys.stdout.fileno(), READY)
            nursery.cancel_scope.cancel()
    return outcomes[0].exit_code if outcomes else 1
