"""A supervisor of children that come and go at run time, each on its own.

All its children are independent (one_for_one) and are stopped *in parallel*, under one deadline
if the pool has one: n lanes with 10 s of grace end in 10 s, not in n times 10 (check 41). Once it
is stopping it refuses new children; after a restart of its own it is empty.
"""

from __future__ import annotations

from typing import Any, TypeVar

import trio

from shove_actors._errors import ActorGone, NameTaken, UsageError

from . import _checks as checks
from ._backoff import Backoff
from ._child import Incarnation
from ._exit import Exit
from ._intensity import Intensity
from ._plan_types import Add, ChildUp, PlanAction, PlanEvent, Remove
from ._pool_plan import PoolPlan
from ._ref import ActorRef
from ._slot import Slot
from ._spec import INTENSITY_FIX, ChildSpec, PoolSpec, Restart, Shutdown, check_paced
from ._stop_many import StopMany
from ._supervisor import Supervisor, plan_slots

M = TypeVar("M")


class DynamicSupervisor:
    """Start and stop children at run time.

    Make one, put `pool.spec(id=...)` into the tree, and use the object; or find it with
    `system.dynamic(path)`. One object stands in one place of one running system.

    `stop_grace_s` (seconds) is one deadline for all children when the pool stops; None lets each
    child have its own `shutdown`, all counted from the same moment. A child that `stop_child` is
    stopping already keeps its own deadline if that is sooner. The deadline is for workers: a child
    that is a supervisor takes as long as the graces of its own children, one after the other; keep
    those small, or end the whole system with `hard_stop()`.

    Example::

        pool = DynamicSupervisor(intensity=Intensity(max_restarts=5, period_s=60))
        async with open_actor_system(children=[pool.spec(id="lanes")]):
            ref = await pool.start_child(ChildSpec(id="lane-1", start=lane))
            await pool.stop_child(ref, grace_s=10)
    """

    def __init__(
        self, *, intensity: Intensity | None = None, stop_grace_s: float | None = None
    ) -> None:
        if stop_grace_s is not None:
            checks.grace_seconds(
                "DynamicSupervisor stop_grace_s",
                stop_grace_s,
                "None lets each child have its own.",
            )
        checks.optional("DynamicSupervisor intensity", intensity, Intensity, INTENSITY_FIX)
        self._intensity = intensity if intensity is not None else Intensity()
        self._stop_grace_s = stop_grace_s
        self._running: _Pool | None = None

    def __repr__(self) -> str:
        return f"<DynamicSupervisor of {len(self)}>"

    def __len__(self) -> int:
        return 0 if self._running is None else len(self._running.owner.children)

    def spec(
        self,
        *,
        id: str,
        restart: Restart = Restart.PERMANENT,
        backoff: Backoff | None = None,
        significant: bool = False,
        name: str | None = None,
    ) -> ChildSpec:
        """This pool as a child of a supervisor. Its shutdown is always `Shutdown.INFINITY`."""
        return ChildSpec(
            id=id,
            start=PoolSpec(pool=self, intensity=self._intensity, stop_grace_s=self._stop_grace_s),
            restart=restart,
            shutdown=Shutdown.INFINITY,
            backoff=backoff,
            significant=significant,
            name=name,
        )

    @property
    def children(self) -> tuple[ActorRef[Any], ...]:
        """The refs of all children that have not ended, oldest first."""
        if self._running is None:
            return ()
        return tuple(slot.ref for slot in self._running.owner.children.values())

    async def start_child(self, spec: ChildSpec[M]) -> ActorRef[M]:
        """Start a child and wait until it has said it is started.

        Several may start at the same time. Cancelled, it takes the child away again. Raises
        `StartFailed` (the child's own fault, see the cause; the pool is not affected),
        `NameTaken` (the id or the name is in use) and `ActorGone` (the pool is stopping, or is
        down at the moment).
        """
        checks.instance_of(
            "start_child spec", spec, ChildSpec, "Write ChildSpec(id=..., start=...)."
        )
        if spec.significant:
            raise UsageError(
                f"child {spec.id!r} is significant, but a dynamic supervisor has no auto_shutdown, "
                "so nothing would ever happen. Drop significant."
            )
        running = self._running
        if running is None or not running.open or running.core.system.stopping:
            raise ActorGone(
                f"cannot start child {spec.id!r}: the dynamic supervisor is stopping, or not "
                "running right now. Children are started only while its tree is up."
            )
        return await running.start_child(spec)

    async def stop_child(
        self, child: ActorRef[Any] | str, *, grace_s: float | None = None
    ) -> Exit | None:
        """Stop a child for good (by ref or id) and wait for its end; returns its last exit.

        `grace_s` (seconds) replaces the grace of its spec. Cancelling this wait does not undo the
        stop. A child that has ended already, or is not here, is no error: returns None for it.
        """
        if grace_s is not None:
            checks.grace_seconds("stop_child grace_s", grace_s, "None keeps the child's own.")
        if not isinstance(child, (ActorRef, str)):
            raise checks.refusal(
                "stop_child child",
                child,
                "it must be an ActorRef or the id of a child. Pass what start_child returned.",
            )
        id_ = child if isinstance(child, str) else child.id
        if self._running is None:
            await trio.lowlevel.checkpoint()
            return None
        slot = self._running.owner.children.get(id_)
        if slot is None or (not isinstance(child, str) and slot.ref is not child):
            await trio.lowlevel.checkpoint()
            return None
        return await self._running.stop_child_slot(slot, grace_s)

    def attach(self, owner: Slot) -> Supervisor:
        """A new incarnation begins. Called by the tree."""
        if self._running is not None:
            raise UsageError(
                f"this DynamicSupervisor runs already at {self._running.owner.path!r}: make one "
                "object for each place in a tree."
            )
        owner.children.clear()
        self._running = _Pool(owner, self, self._intensity, self._stop_grace_s)
        return self._running

    def detach(self) -> None:
        """The incarnation has ended. Called by the tree."""
        self._running = None


class _StartRequest:
    """Somebody waits in `start_child`."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: Exception | None = None

    def finish(self, error: Exception | None) -> None:
        self.error = error
        self.done.set()


class _Pool(Supervisor):
    """One incarnation of a dynamic supervisor."""

    def __init__(
        self,
        owner: Slot,
        handle: DynamicSupervisor,
        intensity: Intensity,
        stop_grace_s: float | None,
    ) -> None:
        self._pool_plan = PoolPlan(intensity)
        super().__init__(owner, self._pool_plan.shared)
        self.open = True
        self._handle = handle
        self._stop_grace_s = stop_grace_s
        self._requests: dict[str, _StartRequest] = {}
        self._graces: dict[str, float] = {}
        self._stop_many: StopMany | None = None

    def request_stop(self, final: bool) -> None:
        self.open = False
        super().request_stop(final)

    def child_ended(self, incarnation: Incarnation, exit_: Exit, fatal: bool) -> None:
        super().child_ended(incarnation, exit_, fatal)
        if self._stop_many is not None:
            self._stop_many.ended(incarnation)

    async def start_child(self, spec: ChildSpec[M]) -> ActorRef[M]:
        if spec.id in self.owner.children:
            raise NameTaken(
                f"child id {spec.id!r} is in use under {self.owner.path!r}. Choose another id, or "
                "stop that child first."
            )
        check_paced(spec, self._plan.window.intensity)
        slot = Slot(self.core, spec, self.owner.child_path(spec.id))
        self.owner.children[spec.id] = slot
        request = self._requests[spec.id] = _StartRequest()
        [plan_slot] = plan_slots([spec])
        self._post.send_nowait(Add(slot=plan_slot))
        try:
            await request.done.wait()
        except trio.Cancelled:
            # Nobody would ever know of the child: it must not stay behind without an owner.
            if not slot.ended.is_set():
                self._post_if_open(Remove(id=spec.id))
            raise
        if request.error is not None:
            raise request.error
        return slot.ref

    async def stop_child_slot(self, slot: Slot, grace_s: float | None) -> Exit | None:
        if grace_s is not None:
            self._graces[slot.spec.id] = grace_s
        self._post_if_open(Remove(id=slot.spec.id))
        await slot.ended.wait()
        return slot.last_exit

    def _dispatch(self, event: PlanEvent) -> None:
        super()._dispatch(event)
        if isinstance(event, ChildUp):
            request = self._requests.pop(event.id, None)
            if request is not None:
                request.finish(None)

    def _decide(self, event: PlanEvent, now: float) -> tuple[PlanAction, ...]:
        actions = self._pool_plan.decide(event, now)
        self._plan = self._pool_plan.shared
        return actions

    def _is_leaving(self, slot: Slot) -> bool:
        plan_slot = self._pool_plan.slots.get(slot.spec.id)
        return plan_slot is not None and plan_slot.leaving

    def _refuse(self, id_: str, error: Exception) -> None:
        request = self._requests.pop(id_, None)
        if request is not None:
            request.finish(error)

    def _forget(self, slot: Slot) -> None:
        slot.terminate()
        self._graces.pop(slot.spec.id, None)
        del self.owner.children[slot.spec.id]
        self._refuse(
            slot.spec.id, ActorGone(f"child {slot.path!r} was stopped before it had started.")
        )

    async def _stop_all(self) -> None:
        self.open = False
        self._take_over()
        slots = tuple(self.owner.children.values())
        self._stop_many = StopMany(self.core.hard, Slot.terminate)
        for slot in slots:
            if slot.incarnation is None:
                slot.terminate()
            else:
                self._stop_many.stop(slot.incarnation, self._final_for(slot), self._grace_of(slot))
        await self._stop_many.wait()
        self._leave()

    def _leave(self) -> None:
        for slot in tuple(self.owner.children.values()):
            # Even if the pool itself comes back, its children do not.
            slot.terminate()
        self.owner.children.clear()
        gone = f"dynamic supervisor {self._label} stopped before the child had started."
        for request in self._requests.values():
            request.finish(ActorGone(gone))
        self._handle.detach()

    def _final_for(self, slot: Slot) -> bool:
        return True

    def _grace_of(self, slot: Slot) -> float:
        own = self._graces.get(slot.spec.id)
        if self.stopping and self._stop_grace_s is not None:
            asked_at = None if slot.incarnation is None else slot.incarnation.asked_at
            if asked_at is None:
                return self._stop_grace_s if own is None else min(own, self._stop_grace_s)
            # A grace counts from when the child was asked, the pool's deadline from now.
            left_s = trio.current_time() - asked_at + self._stop_grace_s
            return min(slot.spec.shutdown.grace_s if own is None else own, left_s)
        return slot.spec.shutdown.grace_s if own is None else own

    def _post_if_open(self, event: PlanEvent) -> None:
        if not self.stopping:
            self._post.send_nowait(event)
