# runnable
"""A consumer group that grows with its backlog and shrinks when it is done, beside a second one.

`consumers=(1, 4)` is the range of one process. A second process (here: a second broker) that
registers the same topic shares the work: both pull from one durable. Run it:

    python examples/scaling.py
"""

from __future__ import annotations

import logging

import trio

from shove_actors import (
    AutoscalerConfig,
    NatsConfig,
    Outcome,
    ProportionalStrategy,
    Topic,
    TopologyBuilder,
    embedded_server,
    open_broker,
)

PICTURES = Topic(str, TopologyBuilder("pictures").hold_queue(5).dlq().build())
COUNT = 60
#: Quick, so that there is something to see. In a service: the defaults, 5, 10 and 30 seconds.
QUICK = AutoscalerConfig(
    poll_interval=0.1, hysteresis=0.2, cooldown=0.2, strategy=ProportionalStrategy()
)


class Studio:
    """Counts who works; the first pictures take until four work at once."""

    def __init__(self) -> None:
        self.busy = self.most = 0
        self.done: dict[str, set[str]] = {"first": set(), "second": set()}
        self.four = trio.Event()
        self.second = trio.Event()
        self.complete = trio.Event()

    async def develop(self, picture: str) -> Outcome:
        self.busy += 1
        self.most = max(self.most, self.busy)
        if self.busy == 4:
            self.four.set()
        await self.four.wait()
        await self.second.wait()
        self.busy -= 1
        return self.finish("first", picture)

    async def help_out(self, picture: str) -> Outcome:
        self.second.set()
        return self.finish("second", picture)

    def finish(self, who: str, picture: str) -> Outcome:
        self.done[who].add(picture)
        if sum(map(len, self.done.values())) == COUNT:
            self.complete.set()
        return Outcome.ACK


class Decisions(logging.Handler):
    """The autoscaler's log: what it did, as a program can read it."""

    def __init__(self) -> None:
        super().__init__()
        self.consumers = [1]
        self.shrunk = trio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "shove_event", "") == "scaled":
            self.consumers.append(record.__dict__["shove_consumers"])
            if self.consumers[-1] == 1:
                self.shrunk.set()


async def main() -> None:
    studio, decisions = Studio(), Decisions()
    logger = logging.getLogger("shove_actors.autoscaler")
    logger.setLevel(logging.INFO)
    logger.addHandler(decisions)
    async with (
        embedded_server() as server,
        open_broker(NatsConfig(server.url)) as one,
        open_broker(NatsConfig(server.url)) as other,
        trio.open_nursery() as nursery,
    ):
        await one.declare(PICTURES)
        await one.publisher().publish_batch(PICTURES, [f"picture {n}" for n in range(COUNT)])
        group = one.consumer_group()
        group.register(
            PICTURES,
            studio.develop,
            consumers=(1, 4),
            prefetch=1,
            concurrent_processing=False,
            autoscaler=QUICK,
        )
        await nursery.start(group.serve)
        await studio.four.wait()
        print(f"four consumers work: {group.scale()['pictures']['consumers']}")
        helpers = other.consumer_group()
        helpers.register(PICTURES, studio.help_out)
        await nursery.start(helpers.serve)
        await studio.complete.wait()
        await decisions.shrunk.wait()
        print(f"from {decisions.consumers[0]} to {max(decisions.consumers)} and back to", end=" ")
        print(decisions.consumers[-1])
        for each in (group, helpers):
            each.stop()
    shared = studio.done["first"] & studio.done["second"]
    print(f"both worked: {all(studio.done.values())}, twice: {len(shared)}, at once: {studio.most}")


if __name__ == "__main__":
    trio.run(main)
