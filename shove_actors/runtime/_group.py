"""Consumer groups: registrations with one lifetime.

    group (rest_for_one, budget 0)
    ├─ clock   time-outs of running handlers
    ├─ lanes   DynamicSupervisor: one actor per consumer or shard, stopped in parallel
    └─ scaler  fills the pool, and the autoscalers; last, so it stops first

Registering is `_registering.py`; what runs is said there, once and before the start.

Stopping: lanes are closed (pulls end, what waits is given back), idle workers end, running handlers
may finish until the drain timeout, then they are cancelled and *their* messages are given back;
at last the server confirms the final acknowledgements. Everything is this group's own: stopping
one group touches no other (PC-122).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from shove_actors._errors import ActorGone, UsageError
from shove_actors.actors import (
    ActorRef,
    ChildSpec,
    Context,
    Crashed,
    DynamicSupervisor,
    Intensity,
    Restart,
    StartFailed,
    Strategy,
    supervisor,
)

from ._autoscaler import Autoscaler
from ._checks import check_seconds
from ._group_report import GroupReport
from ._outcome_report import SupervisorOutcome, root_cause
from ._registering import Registering
from ._registration import Registration
from ._scaled_pool import ScaledPool
from ._signals import stop_on_signals

if TYPE_CHECKING:
    from ._broker import Broker

logger = logging.getLogger("shove_actors.group")

Signal: TypeAlias = Callable[[], Awaitable[object]]

DEFAULT_DRAIN_S = 30.0
#: What the consumers of a group may cost on average: more than one of them needs that crashes every
#: ten seconds, less than one uses up that crashes at once each time, at a backoff of five.
SECONDS_PER_RESTART = 8.0
_numbers = itertools.count(1)


class ConsumerGroup(Registering):
    """Consumers of any number of topics with one lifetime. Made by `broker.consumer_group()`.

    Any number of processes may run the same group: they share the durables.
    """

    _kind = "group"

    def __init__(self, broker: Broker, *, context: object = None) -> None:
        super().__init__(f"{self._kind}-{next(_numbers)}", context)
        self._broker = broker
        self._stop = trio.Event()
        self._hard = trio.Event()
        #: What is cancelled by a `stop` while the group starts.
        self._starting = trio.CancelScope()
        self._path = f"services/groups/{self._id}"
        self._report = GroupReport(self._path, self._stop)
        #: Changes that the autoscaler made, per registration.
        self._scaled: dict[str, int] = {}
        self._failures: list[tuple[BaseException, str]] = []
        #: Root cause of the latest crash, and the path of the child it began in.
        self._latest: tuple[BaseException, str] | None = None

    # ------------------------------------------------------------------ running

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called, or the group has ended."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Begin the drain; `serve` and `run_until` return when it is done. Idempotent.

        While the group starts, it ends the start.
        """
        self._stop.set()
        self._starting.cancel()

    def hard_stop(self) -> None:
        """Stop, and cancel running handlers at once. Idempotent."""
        self.stop()
        self._hard.set()

    async def serve(
        self,
        *,
        drain_timeout: float = DEFAULT_DRAIN_S,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> SupervisorOutcome:
        """Run until `stop`, or until the group cannot go on; report started when all are ready.

            async with open_broker(config) as broker, trio.open_nursery() as nursery:
                await nursery.start(group.serve)

        Cancelling it drains too, within `drain_timeout` seconds. Raises what prevents the start
        (`TopicNotDeclared`, `TopologyError`, ...); later failures are in the outcome. A connection
        that is lost while it starts is waited for. A `stop` before it has started ends the start;
        then it reports started as well, and returns.
        """
        if not self._registrations:
            raise UsageError("nothing is registered: call group.register(topic, handler) first")
        check_seconds(drain_timeout, "drain_timeout")
        if self._served:
            raise UsageError(f"{self!r} has been started; make another group for another run")
        self._served = True
        broker = self._broker
        broker.group_runs(self)
        system = broker.system
        ref: ActorRef[Any] | None = None
        opened: list[Registration] = []
        system.add_listener(self._report.on_event)
        try:
            with self._starting:
                await self._open(opened)
            if not self._stop.is_set():
                try:
                    ref = await broker.groups.start_child(self._spec(drain_timeout))
                except StartFailed as exc:
                    raise root_cause(exc) from None
            task_status.started()
            if ref is not None:
                await self._until_stopped(ref)
        finally:
            with trio.CancelScope(shield=True):
                await self._drain(ref, opened, drain_timeout)
            system.remove_listener(self._report.on_event)
        return self.outcome

    async def _open(self, opened: list[Registration]) -> None:
        """Everything that has to be asked of others before the first consumer can start."""
        broker = self._broker
        for registration in self._registrations:
            registration.bind(broker.publish_service)
            registration.observe(broker.instruments)
            await registration.prepare(broker.backend)
            await registration.open(broker.backend)
            opened.append(registration)
            for lane in registration.lanes:
                broker.leases.add(lane)
            await broker.ensure_movers(registration.topic.topology)

    async def _until_stopped(self, ref: ActorRef[Any]) -> None:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                exit_ = await ref.watch()
                if isinstance(exit_, Crashed):
                    self._report.failed(exit_.error, self._id)
                elif not self._stop.is_set():
                    why = self._broker.failure or ActorGone(f"{self._id} was ended by its broker")
                    self._report.failed(why, self._id)
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await self._stop.wait()
            nursery.cancel_scope.cancel()

    async def _drain(
        self, ref: ActorRef[Any] | None, opened: list[Registration], drain_timeout: float
    ) -> None:
        self._stop.set()
        if drain_timeout <= 0:
            # No grace at all, so the tree has none to report the end of.
            self._cut_short()
        async with trio.open_nursery() as nursery:
            for registration in opened:
                nursery.start_soon(registration.close_lanes)
            if ref is not None:
                nursery.start_soon(self._end, ref)
                nursery.start_soon(self._watch_hard, ref)
        for registration in opened:
            await registration.confirm()
            for lane in registration.lanes:
                self._broker.leases.remove(lane)
        for registration in self._registrations:
            registration.ended()

    async def _end(self, ref: ActorRef[Any]) -> None:
        await self._broker.groups.stop_child(ref)

    def _cut_short(self) -> None:
        """Handlers that run now are about to be cancelled."""
        if any(registration.busy for registration in self._registrations):
            self._report.timed_out = True

    async def _watch_hard(self, ref: ActorRef[Any]) -> None:
        """A hard stop during the drain: handlers are cancelled at once."""
        async with trio.open_nursery() as inner:

            async def ended() -> None:
                await ref.watch()
                inner.cancel_scope.cancel()

            inner.start_soon(ended)
            await self._hard.wait()
            self._cut_short()
            for registration in self._registrations:
                registration.kill()
            inner.cancel_scope.cancel()

    async def run_until(
        self, signal: Signal | None = None, *, drain_timeout: float = DEFAULT_DRAIN_S
    ) -> SupervisorOutcome:
        """Run until `signal` returns; by default until SIGINT or SIGTERM.

        On it: stop pulling, give back what has not been started, let running handlers finish, and
        cancel them after `drain_timeout` seconds. A second SIGINT or SIGTERM cancels them at once.
        While the group still starts, it ends the start.
        Returns early, with a failure in the outcome, when the group cannot go on. Raises what
        `serve` raises, and what `signal` raises (after the drain).
        """
        if signal is not None and not callable(signal):
            raise UsageError(
                f"run_until(signal={type(signal).__name__}): give an async function that returns "
                "when the group shall stop, or None for SIGINT and SIGTERM"
            )
        failure: Exception | None = None
        outcome = SupervisorOutcome()

        async def wait_for_signal() -> None:
            nonlocal failure
            try:
                await self._stop_on(signal)
            except Exception as exc:
                failure = exc
                self.stop()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_signal)
            try:
                outcome = await self.serve(drain_timeout=drain_timeout)
            except Exception as exc:
                # Not in a group: that there is a nursery here is nobody's business.
                failure = exc
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return outcome

    async def _stop_on(self, signal: Signal | None) -> None:
        if signal is None:
            await stop_on_signals(self)
        else:
            await signal()
            self.stop()

    # ------------------------------------------------------------------ tree and report

    def _spec(self, drain_timeout: float) -> ChildSpec:
        scaling = [r for r in self._registrations if self._scales(r)]
        fixed = [s for r in self._registrations if r not in scaling for s in r.specs(drain_timeout)]
        restarts = 5 + 2 * (len(fixed) + sum(r.options.consumers[1] for r in scaling))
        pool = DynamicSupervisor(
            intensity=Intensity(max_restarts=restarts, period_s=SECONDS_PER_RESTART * restarts),
            stop_grace_s=drain_timeout,
        )

        async def clock(ctx: Context[None]) -> None:
            ctx.started()
            async with trio.open_nursery() as nursery:
                for registration in self._registrations:
                    nursery.start_soon(registration.clock.run)
                    nursery.start_soon(registration.pacer.run)
                await ctx.stop_requested.wait()
                nursery.cancel_scope.cancel()

        async def scaler(ctx: Context[None]) -> None:
            for spec in fixed:
                await pool.start_child(spec)
            scaled = [
                (ScaledPool(r, pool, self._broker.backend, drain_timeout), r.options)
                for r in scaling
            ]
            for consumers, options in scaled:
                await consumers.grow(options.consumers[0])
            async with trio.open_nursery() as nursery:
                for consumers, options in scaled:
                    autoscaler = Autoscaler(consumers, options.autoscaler, decided=self._decided)
                    nursery.start_soon(autoscaler.run)
                ctx.started()
                await ctx.stop_requested.wait()
                nursery.cancel_scope.cancel()

        return supervisor(
            id=self._id,
            strategy=Strategy.REST_FOR_ONE,
            # A pool that has given up has tried often enough; the group's end says why.
            intensity=Intensity(max_restarts=0, period_s=60.0),
            restart=Restart.TEMPORARY,
            children=[
                ChildSpec(id="clock", start=clock),
                pool.spec(id="lanes"),
                ChildSpec(id="scaler", start=scaler),
            ],
        )

    def _scales(self, registration: Registration) -> bool:
        return registration.scales

    def _decided(self, name: str, before: int, after: int) -> None:
        self._scaled[name] = self._scaled.get(name, 0) + 1
        if self._broker.instruments is not None:
            self._broker.instruments.scaled(name, before, after)

    @property
    def outcome(self) -> SupervisorOutcome:
        """What happened so far."""
        return self._report.outcome()

    def statistics(self) -> dict[str, dict[str, int]]:
        """Counters per registration: outcomes, and `lost` leases."""
        return {
            r.name: {**(r.settler.counts if hasattr(r, "settler") else {}), "lost": r.lost}
            for r in self._registrations
        }

    def scale(self) -> dict[str, dict[str, int]]:
        """Per registration: `consumers` that run now, `changes` that the autoscaler has made."""
        return {
            r.name: {"consumers": r.running, "changes": self._scaled.get(r.name, 0)}
            for r in self._registrations
        }


class ConsumerSupervisor(ConsumerGroup):
    """Many topics under one lifetime, without scaling. Made by `broker.consumer_supervisor()`.

    Of `consumers=(min, max)` it runs `min`.
    """

    _kind = "supervisor"

    def _scales(self, registration: Registration) -> bool:
        return False
