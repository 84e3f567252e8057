"""The broker: opens the tree, hands out publishers and groups, leaves nothing behind."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from shove_actors._errors import (
    BrokerClosed,
    RestartIntensityExceeded,
    ShoveError,
    UsageError,
)
from shove_actors._groups import unwrapped
from shove_actors._log import about
from shove_actors._real_clock import require_trio
from shove_actors.actors import (
    ActorSystem,
    Backoff,
    ChildSpec,
    Context,
    Listener,
    NameTaken,
    Shutdown,
    StartFailed,
    Strategy,
    TreeNode,
    open_actor_system,
)
from shove_actors.backends import Backend, BackendConfig, BackendEvent, Resharded
from shove_actors.messaging import (
    HoldQueue,
    PoisonedKey,
    SequencedTopic,
    Topic,
    Topology,
    check_collisions,
)

from ._broker_letters import DeadLetterDesk
from ._checks import check_seconds, check_whole
from ._filling import warn_if_it_fills_up
from ._group import ConsumerGroup, ConsumerSupervisor
from ._hold_mover import HoldMover
from ._lease import LeaseKeeper
from ._outcome_report import SupervisorOutcome, root_cause
from ._publish_service import PublishService
from ._publisher import Publisher
from ._release import poisoned, release
from ._telemetry import Telemetry, choose
from ._tree import MOVER_GRACE_S, ROOT_BUDGET, build_tree, groups_pool, movers_pool

if TYPE_CHECKING:
    from shove_actors.jetstream import NatsConfig

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

logger = logging.getLogger("shove_actors.broker")

M = TypeVar("M")
G = TypeVar("G", bound=ConsumerGroup)

_TELEMETRY = Telemetry()


class Broker(DeadLetterDesk):
    """A running broker. Made by `open_broker`; usable inside its block, from any task."""

    def __init__(
        self,
        backend: Backend,
        *,
        max_pending: int,
        publish_timeout: float,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.backend = backend
        self.publish_service = PublishService(
            backend, max_pending=max_pending, timeout_s=publish_timeout
        )
        self.leases = LeaseKeeper()
        self.movers = movers_pool()
        self.groups = groups_pool()
        self._system: ActorSystem | None = None
        #: What ended the connection for good, for the groups that it takes along.
        self.failure: Exception | None = None
        self._topologies: dict[str, Topology] = {}
        #: Made and not run yet; kept alive, because "not at all" is worth a word at the end.
        self._idle_groups: dict[ConsumerGroup, None] = {}
        #: None: nobody looks.
        self.instruments = choose(telemetry)
        if self.instruments is not None:
            self.instruments.publishers.backend = backend.capabilities.name
        self._publisher = Publisher(
            self.publish_service, self.instruments.publishers if self.instruments else None
        )

    def __repr__(self) -> str:
        return f"<Broker {self.backend!r}{'' if self._system else ' (closed)'}>"

    @property
    def system(self) -> ActorSystem:
        """The actor system of this broker. Raises `BrokerClosed` outside its block."""
        if self._system is None:
            raise BrokerClosed("the broker is closed; use it inside its `async with` block")
        return self._system

    # ------------------------------------------------------------------ for users

    async def declare(self, *topics: Topic[Any]) -> None:
        """Create or reconcile the streams of these topics.

        Idempotent, safe at every start and from many processes at once; nothing is sent when
        nothing differs. Raises `TopologyError` for what cannot be reconciled (the message names
        the setting, both values and the way out), `FeatureUnavailable` for a server that is too
        old for a setting, `PermissionDenied`, `JetStreamNotEnabled`, `ConnectionError`.

        Cancelled, some of the streams may have been created; declaring again completes it.
        """
        _ = self.system
        for topic in topics:
            if not isinstance(topic, Topic):
                raise UsageError(f"declare takes topics, not {type(topic).__name__}")
        topologies = {t.queue: t.topology for t in topics}
        if len(topologies) < len({id(t) for t in topics}):
            raise UsageError("two of these topics have the same queue; a queue has one topic")
        check_collisions([*{**self._topologies, **topologies}.values()])
        await self.backend.declare([t.topology for t in topics])
        self._topologies.update(topologies)
        for topology in topologies.values():
            warn_if_it_fills_up(topology)

    async def reshard(self, topic: SequencedTopic[Any], *, timeout: float = 60.0) -> Resharded:
        """Change the number of shards of a topic in use to that of `topic`, and keep all order.

        The stream is closed to publishers (`ReshardUnderWay`), the running consumers of the old
        number drain it to nothing, then the new subjects are bound and durables without a shard
        are deleted. Consumers of the new number may start after that. See docs/operations.md.

        Raises `ReshardTimeout` when it is not drained within `timeout` seconds, `TopicNotDeclared`,
        `TopologyError` while another change is under way, `ConnectionError`. Then, and when it is
        cancelled, the old subjects are put back. If this process is killed, the stream stays
        closed: run it again, which goes on where it was.
        """
        _ = self.system
        check_seconds(timeout, "timeout", positive=True)
        return await self.backend.reshard(topic.topology, timeout)

    def publisher(self) -> Publisher:
        """A publisher. All publishers of a broker share one actor and one window."""
        _ = self.system
        return self._publisher

    def consumer_group(self, *, context: object = None) -> ConsumerGroup:
        """A new group; `context` is handed to every handler that takes three arguments."""
        _ = self.system
        return self._made(ConsumerGroup(self, context=context))

    def consumer_supervisor(self, *, context: object = None) -> ConsumerSupervisor:
        """As `consumer_group`, without scaling."""
        _ = self.system
        return self._made(ConsumerSupervisor(self, context=context))

    def _made(self, group: G) -> G:
        self._idle_groups[group] = None
        return group

    def group_runs(self, group: ConsumerGroup) -> None:
        """From the group, when it is served."""
        self._idle_groups.pop(group, None)

    def _name_the_forgotten(self) -> None:
        """Somebody registered handlers and never ran them: no message has come, and no error."""
        for group in self._idle_groups:
            if group.registered:
                logger.warning(
                    "%r was never run, so none of its handlers was called: "
                    "`await group.run_until()`, or `await nursery.start(group.serve)`",
                    group,
                    extra=about("group_never_run"),
                )

    async def run_dlq(
        self,
        topic: Topic[M],
        handler: Any,
        *,
        signal: Any = None,
        drain_timeout: float = 30.0,
        context: object = None,
        **options: Any,
    ) -> SupervisorOutcome:
        """Consume a topic's dead letters until `signal` (default: SIGINT or SIGTERM).

        See `ConsumerGroup.register_dlq` for the options and what becomes of a dead letter.
        """
        group = self.consumer_supervisor(context=context)
        group.register_dlq(topic, handler, **options)
        return await group.run_until(signal, drain_timeout=drain_timeout)

    async def poisoned(self, topic: Topic[Any]) -> tuple[PoisonedKey, ...]:
        """The keys of a FAIL_ALL topic of which nothing is handled, and why.

        Raises `UsageError` for a topic that is not FAIL_ALL, `TopicNotDeclared`,
        `ConnectionError`.
        """
        _ = self.system
        return await poisoned(self.backend, topic)

    async def release(self, topic: Topic[M], key: str, *, replay: bool = False) -> bool:
        """Let a poisoned key of a FAIL_ALL topic go on. False: it was not poisoned.

        From then on its new messages are handled; its dead letters stay where they are. With
        `replay=True` the dead letters that it has had since it was poisoned are handled first, in
        their order, by the consumers of the topic, each with a fresh budget; then the newer
        messages. If one of them fails for good again, the key stays poisoned, that letter and
        those behind it stay. Returns once the request is stored, not once it is carried out:
        see `poisoned`. Repeating it is safe.

        Raises `UsageError` for a topic that is not FAIL_ALL or, with `replay`, has no dead-letter
        queue; `TopicNotDeclared`, `ConnectionError`, and what a publish raises. Cancelled, it may
        have been carried out.
        """
        _ = self.system
        return await release(self.publish_service, topic, key, replay=replay)

    def snapshot(self) -> TreeNode:
        """The supervision tree at this moment: states, restarts, mailbox depths, last exits."""
        return self.system.snapshot()

    # ------------------------------------------------------------------ for the tree

    async def run_backend(self, ctx: Context[None]) -> None:
        """The bridge actor's body: the backend's run, ended politely when asked to stop."""
        try:
            with unwrapped(layers=1):
                await self._run_backend(ctx)
        except Exception as exc:
            self.failure = exc
            raise

    def count_event(self, event: BackendEvent) -> None:
        """For the metric of errors below."""
        if self.instruments is not None and event.kind not in ("reconnected", "closed"):
            self.instruments.backend_error(self.backend.capabilities.name, event.kind)

    async def _run_backend(self, ctx: Context[None]) -> None:
        async with trio.open_nursery() as nursery:

            async def close_when_asked() -> None:
                await ctx.stop_requested.wait()
                self.backend.close()

            nursery.start_soon(close_when_asked)

            async def run(*, task_status: trio.TaskStatus[None]) -> None:
                await self.backend.run(task_status=task_status)
                nursery.cancel_scope.cancel()

            await nursery.start(run)
            ctx.started()

    async def ensure_movers(self, topology: Topology) -> None:
        """Start a mover for each hold queue that has none in this process."""
        for hold in topology.holds:
            if topology.sequenced:
                continue  # a lane waits in place; its hold queues only name the delays
            try:
                await self.movers.start_child(self._mover(topology, hold))
            except NameTaken:
                continue
            except StartFailed as exc:
                raise exc.__cause__ or exc from None

    def _mover(self, topology: Topology, hold: HoldQueue) -> ChildSpec:
        mover = HoldMover(self.backend, self.publish_service, topology, hold)
        return ChildSpec(
            id=hold.name,
            start=mover.run,
            shutdown=Shutdown.within(MOVER_GRACE_S),
            backoff=Backoff(initial_s=0.2, max_s=5.0, jitter=0.2, reset_after_s=30.0),
        )


@asynccontextmanager
async def open_broker(
    config: BackendConfig | NatsConfig,
    *,
    max_pending: int = 4096,
    publish_timeout: float = 10.0,
    listener: Listener | None = None,
    rng: random.Random | None = None,
    telemetry: Telemetry | None = _TELEMETRY,
) -> AsyncIterator[Broker]:
    """Connect, start the supervision tree, run the block, stop everything in order.

        async with open_broker(NatsConfig("nats://localhost:4222")) as broker:
            await broker.declare(ORDERS)

    `max_pending`: publishes that may be unacknowledged at once; callers wait beyond.
    `publish_timeout`: seconds after which a publish without acknowledgement is given up.
    `listener`: called with every lifecycle event of the tree.
    `telemetry`: metrics and traces, recorded if the application has installed an SDK of
    OpenTelemetry before; None: never.

    Raises on entry what prevents the connection: `ConfigError`, `ConnectionError` and its
    subclasses. If the tree fails later (the reconnect limit is reached, a restart budget is spent),
    the block is cancelled and an exception group with the failure (a `ConnectionError`) is raised
    at its end. Whatever happens, no task, socket or asyncio loop is left behind.
    """
    require_trio("open_broker")
    check_whole(max_pending, "max_pending", least=1)
    check_seconds(publish_timeout, "publish_timeout", positive=True)
    if telemetry is not None and not isinstance(telemetry, Telemetry):
        raise UsageError(
            f"telemetry={type(telemetry).__name__}: give a Telemetry(...), or None for none"
        )
    if listener is not None and not callable(listener):
        raise UsageError(f"listener={type(listener).__name__}: give a function of one event")
    broker = Broker(
        _backend_of(config),
        max_pending=max_pending,
        publish_timeout=publish_timeout,
        telemetry=telemetry,
    )
    broker.backend.listen(_log_event)
    if broker.instruments is not None:
        broker.backend.listen(broker.count_event)
    entered = False
    try:
        async with open_actor_system(
            name="broker",
            strategy=Strategy.REST_FOR_ONE,
            intensity=ROOT_BUDGET,
            children=build_tree(broker),
            listener=listener,
            rng=rng,
        ) as system:
            broker._system = system
            entered = True
            yield broker
            broker._name_the_forgotten()
    except StartFailed as exc:
        if entered:
            raise
        raise _first_cause(exc) from None
    except BaseExceptionGroup as group:
        failure = broker._system.report.failure if broker._system is not None else None
        if not isinstance(failure, RestartIntensityExceeded) or failure not in group.exceptions:
            raise
        # Who asks for `ConnectionError` shall find it, and not the budget that it used up.
        raise group.derive(
            [root_cause(exc) if exc is failure else exc for exc in group.exceptions]
        ) from failure
    finally:
        broker._system = None
        # However the publisher has ended, nobody is left waiting for it.
        broker.publish_service.abandon()


def _backend_of(config: object) -> Backend:
    create: Callable[[], Backend] | None = getattr(config, "create_backend", None)
    if create is not None and not isinstance(config, type):
        return create()
    # Here, because a program on another backend shall not load this one.
    from shove_actors.backends.nats import NatsBackend
    from shove_actors.jetstream import NatsConfig

    if isinstance(config, NatsConfig):
        return NatsBackend(config)  # of `shove_actors.jetstream`: the same settings
    shown = f"the class {config.__name__}" if isinstance(config, type) else type(config).__name__
    raise UsageError(
        f"open_broker takes a configuration such as NatsConfig(...) or MemoryConfig(), not {shown}"
    )


def _first_cause(error: StartFailed) -> BaseException:
    """What the user can act on: why the connection could not be had."""
    cause: BaseException = error
    while cause.__cause__ is not None and not (
        isinstance(cause, ShoveError) and not isinstance(cause, StartFailed)
    ):
        cause = cause.__cause__
    return cause


def _log_event(event: BackendEvent) -> None:
    level = logging.INFO if event.kind in ("reconnected", "closed") else logging.WARNING
    text = f"{event.kind}: {event.detail}" if event.detail else event.kind
    logger.log(level, "%s", text, extra=about(event.kind))
