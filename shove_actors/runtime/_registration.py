"""One topic in one group: what its workers share, and its lanes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from shove_actors._errors import UnavailableError, UsageError
from shove_actors.actors import (
    Backoff,
    ChildSpec,
    Context,
    MailboxSpec,
    OnRestart,
    Restart,
    Shutdown,
)
from shove_actors.backends import Backend, Delivery, Lane, LaneSpec
from shove_actors.messaging import (
    MessageMetadata,
    Topic,
    skip_refusal,
)

from ._attempts import AttemptLedger
from ._audit import audits_of, resolve_audited
from ._balance import Balance
from ._handler import Resolved
from ._handler_clock import HandlerClock
from ._job import Gate
from ._keyed import KeyedWorker, consume_keyed, keyed_lanes, keyed_spec
from ._options import ConsumerOptions
from ._pacer import Pacer
from ._poison_settle import PoisonSettler
from ._publish_service import PublishService
from ._replay import KeyGate
from ._settle import Settler
from ._worker import Worker

if TYPE_CHECKING:
    from ._instruments import Instruments
    from ._observer import TopicObserver

logger = logging.getLogger("shove_actors.consumer")

#: An unsequenced durable lets any number of messages out: what one process holds is bounded by its
#: own credit, and messages waiting out a delayed NAK must not fill a shared window (PC-031).
UNLIMITED = -1


class Registration:
    """Everything about `group.register(topic, handler, ...)`. Satisfies `_job.Job`."""

    _reads_shards = True

    def __init__(
        self,
        topic: Topic[Any],
        options: ConsumerOptions,
        *,
        handler: object = None,
        factory: Callable[[], object] | None = None,
        context: object = None,
        method: str = "handle",
    ) -> None:
        if (handler is None) == (factory is None):
            raise UsageError(
                f"register({topic.queue!r}): give either a handler or factory=, not both or none"
            )
        self.topic = topic
        self.options = options
        self.context = context
        self.factory = factory
        self._method = method
        #: Telemetry, where somebody looks.
        self.observer: TopicObserver | None = None
        self._first = factory() if factory is not None else handler
        self.handler: Resolved = self._resolved(self._first)
        self._unused = factory is not None
        self.lane_topology = topic.topology
        if topic.topology.sequenced and self._reads_shards:
            options.check_shard_lease(topic.queue)
        self.counts_hops = True
        self.limits = options.limits
        self.clock = HandlerClock(options.handler_timeout)
        self.pacer = Pacer()
        self.suspects = trio.Lock()
        self.max_message_size = options.max_message_size
        self.decode: Callable[[bytes], Any] = topic.decode
        self.busy = 0
        self.lost = 0
        self.lanes: list[Lane] = []
        self.workers: dict[Worker, None] = {}
        #: The workers of each consumer that runs or has run.
        self.consumers: dict[int, list[Worker]] = {}
        self.settler: Settler
        self.ledger: AttemptLedger
        self.gate: Gate | None = None

    @property
    def name(self) -> str:
        return self.topic.queue

    def bind(self, publisher: PublishService) -> None:
        self.ledger = AttemptLedger(publisher.backend)
        if self.topic.topology.fails_all:
            self.gate = gate = KeyGate(self, publisher.backend, self.ledger)
            self.settler = PoisonSettler(self.lane_topology, publisher, gate)
        else:
            self.settler = Settler(self.lane_topology, publisher)

    def observe(self, instruments: Instruments | None) -> None:
        """After `bind`; with None, nobody looks."""
        if instruments is None:
            return
        durable = self.lane_topology.durable
        self.observer = instruments.topic(self.name, durable, lambda: self.busy)
        self.observer.open()
        self.settler.observer = self.observer
        self.handler = self._resolved(self._first)  # anew, with the observer around it

    def ended(self) -> None:
        """The group has ended."""
        if self.gate is not None:
            self.gate.close()
        if self.observer is not None:
            self.observer.close()

    async def prepare(self, backend: Backend) -> None:
        """Let the audit sinks get ready; raises what prevents that."""
        for audit in audits_of(self._first):
            while True:
                try:
                    await audit.prepare()
                    break
                except UnavailableError:
                    if backend.connected:
                        raise
                # It may need the connection, as everything here does: waited for.
                await backend.wait_connected()

    def now_ns(self) -> int:
        """The server's clock."""
        return self.settler.publisher.backend.now_ns()

    def metadata(
        self, delivery: Delivery, retry_count: int | None, shard: int | None
    ) -> MessageMetadata:
        return MessageMetadata(delivery, retry_count=retry_count, shard=shard)

    async def owns(self, delivery: Delivery) -> bool:
        """Whether a delivery on a shard is still ours to handle."""
        return await self.settler.publisher.backend.owns(delivery)

    def report_lost(self, delivery: Delivery) -> None:
        self.lost += 1

    # ------------------------------------------------------------------ lanes

    @property
    def consumer_count(self) -> int:
        topology = self.topic.topology
        return topology.routing_shards if topology.sequenced else self.options.consumers[0]

    def lane_specs(self) -> list[LaneSpec]:
        """One lane per shard, or one that all consumers of this process share."""
        topology, options = self.topic.topology, self.options
        if topology.keyed is not None:
            return [
                keyed_spec(
                    topology,
                    self.topic,  # type: ignore[arg-type]
                    shard,
                    max_in_flight=topology.keyed,
                    ack_wait_s=options.ack_wait,
                )
                for shard in range(topology.routing_shards)
            ]
        if topology.sequenced:
            return [
                LaneSpec(
                    stream=topology.queue,
                    durable=topology.shard_durable(shard),
                    filter_subject=topology.shard_subject(shard),
                    credit=1,
                    max_ack_pending=1,
                    ack_wait_s=options.ack_wait,
                )
                for shard in range(topology.routing_shards)
            ]
        return [
            LaneSpec(
                stream=topology.queue,
                durable=topology.durable,
                filter_subject=self._filter(),
                credit=options.prefetch * self.consumer_count,
                max_ack_pending=UNLIMITED,
                ack_wait_s=options.ack_wait,
            )
        ]

    def _filter(self) -> str | None:
        topology = self.topic.topology
        # A stream with several subjects is read whole; an external one may hold other flows.
        return topology.queue if topology.external else None

    async def open(self, backend: Backend) -> None:
        """Open all lanes. Raises the first failure after closing what was opened."""
        topology = self.topic.topology
        if self.gate is not None:
            self.gate.open()
        elif (
            # Declared long ago, maybe, when nobody said FAIL_ALL (`backends/_policy.py`).
            topology.sequenced and self._reads_shards and await backend.keeps_marks(topology.queue)
        ):
            raise skip_refusal(topology.queue)
        self.lanes = list(await backend.open_lanes(self.lane_specs()))

    async def confirm(self) -> None:
        """Wait (bounded) until the server has processed the last acknowledgements."""
        async with trio.open_nursery() as nursery:
            for lane in self.lanes:
                nursery.start_soon(lane.confirm)

    async def close_lanes(self) -> None:
        """Give back what waits; running handlers go on."""
        async with trio.open_nursery() as nursery:
            for lane in self.lanes:
                nursery.start_soon(lane.close)

    def kill(self) -> None:
        """Cancel every running handler of this process."""
        for worker in list(self.workers):
            worker.kill()

    # ------------------------------------------------------------------ actors

    def specs(self, drain_timeout: float) -> list[ChildSpec]:
        """The consumers that a group starts with, as children of its pool."""
        found = [self.spec(index, drain_timeout) for index in range(self.consumer_count)]
        if self.topic.topology.keyed is not None and self._reads_shards:
            found.append(
                ChildSpec(
                    id=f"{self.name}-shares",
                    start=self._share_shards,
                    restart=Restart.PERMANENT,
                    backoff=Backoff(initial_s=0.2, max_s=5.0, jitter=0.2, reset_after_s=30.0),
                )
            )
        return found

    async def _share_shards(self, ctx: Context[None]) -> None:
        """An actor beside the consumers of a keyed topic."""
        backend = self.settler.publisher.backend
        balance = Balance(backend, self.topic.queue, keyed_lanes(self.lanes))
        ctx.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(balance.run)
            await ctx.stop_requested.wait()
            nursery.cancel_scope.cancel()

    def spec(self, index: int, drain_timeout: float) -> ChildSpec:
        """One consumer; of a sequenced topic, that of the shard `index`."""
        sequenced = self.topic.topology.sequenced
        return ChildSpec(
            id=f"{self.name}-shard-{index}" if sequenced else f"{self.name}-{index}",
            start=partial(self._consume, index),
            restart=Restart.PERMANENT,
            shutdown=Shutdown.within(drain_timeout),
            # What a lane holds is under a server lease that may have ended meanwhile.
            mailbox=MailboxSpec(capacity=1, on_restart=OnRestart.CLEAR),
            backoff=Backoff(initial_s=0.2, max_s=5.0, jitter=0.2, reset_after_s=30.0),
        )

    @property
    def scales(self) -> bool:
        """Whether the number of consumers changes. That of shards never does by itself."""
        low, high = self.options.consumers
        return low < high and not self.topic.topology.sequenced

    @property
    def running(self) -> int:
        """Consumers that run now."""
        return sum(
            any(worker in self.workers for worker in workers) for workers in self.consumers.values()
        )

    def is_busy(self, index: int) -> bool:
        """Whether a handler of this consumer is running."""
        return any(worker.busy for worker in self.consumers.get(index, ()))

    async def _consume(self, index: int, ctx: Context[None]) -> None:
        """A consumer actor: one worker, or up to `prefetch` of them as its handlers wait.

        Of a keyed shard up to as many as keys are handled at once.
        """
        if self.topic.topology.keyed is None:
            await self._work(index, ctx)
            return
        await consume_keyed(self.lanes[index], partial(self._work, index, ctx))

    async def _work(self, index: int, ctx: Context[None]) -> None:
        keyed = self.topic.topology.keyed
        sequenced = self.topic.topology.sequenced
        lane = self.lanes[index if sequenced else 0]
        concurrent = keyed is not None or (self.options.concurrent_processing and not sequenced)
        most = keyed if keyed is not None else self.options.prefetch if concurrent else 1
        make = Worker if keyed is None else KeyedWorker
        handler = self._own_handler()
        workers: list[Worker] = []
        self.consumers[index] = workers
        async with trio.open_nursery() as nursery:

            def more() -> None:
                needed = not lane.wake_next()
                # Also when nothing waits at this moment: whatever comes while all workers are in
                # handlers would find nobody who could start another one.
                if (
                    len(workers) < most
                    and not ctx.stop_requested.is_set()
                    and (needed or all(worker.busy for worker in reversed(workers)))
                ):
                    worker = make(
                        self,
                        lane,
                        shard=index if sequenced else None,
                        more=more if concurrent else None,
                        handler=handler,
                    )
                    workers.append(worker)
                    nursery.start_soon(self._run, worker, trio.current_time())

            more()
            ctx.started()
            await ctx.stop_requested.wait()
            for worker in workers:
                worker.stop()

    def _own_handler(self) -> Resolved:
        """The shared handler, or the next one of the factory: each start of a consumer has its
        own."""
        if self.factory is None:
            return self.handler
        if self._unused:
            # The one that was made to look at its signature.
            self._unused = False
            return self.handler
        return self._resolved(self.factory())

    def _resolved(self, handler: object) -> Resolved:
        return resolve_audited(handler, self, method=self._method)

    async def _run(self, worker: Worker, asked_at: float) -> None:
        self.pacer.started(asked_at)
        self.workers[worker] = None
        try:
            await worker.run()
        finally:
            self.workers.pop(worker, None)
