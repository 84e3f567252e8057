"""The loop that carries out the plan: one nursery, one queue, one writer of state.

*Invariant.* The body of the nursery is the loop, the children are its tasks. Exits, requests and
due timers are events of one queue; the pure plan turns each into actions; starting and stopping
happen in small tasks of the same nursery that answer with further events. So the loop never
waits for a child: a backoff, a slow start or a long grace does not keep it from serving the rest.

*Stopping.* Only the body sees a cancellation from outside: children are shielded once started
(`_child.py`). Leaving the body, for whatever reason, runs the ordered stop under a shield:
children still starting are cancelled at once, the others are asked one by one in reverse order,
each with its own grace, and each is waited for until it really has ended. A request to stop *is*
a cancellation of the body, so there is one way down, and it works during a start as well.

*Fatal exceptions* leave a child through the nursery, which cancels the body and so begins the
ordered stop; they are raised on when everybody has ended. Proof: checks 25 and 26.

*Races*, each with its test: cancel while a child calls `started()` (check 7); a stop in the
middle of a backoff (18), of a start (6), of a group restart (`test_stop_during_group_restart`),
and between a start that was ordered and its first step (`test_stop_between_order_and_start`; a
removal there: `test_removal_between_order_and_start`); a crash nobody has looked at yet when the
stop begins (`test_unseen_crash_during_a_group_restart`); an error in the ordered stop itself
(`test_an_error_in_the_ordered_stop_ends_everybody`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import trio

from shove_actors._errors import RestartIntensityExceeded, StartFailed

from ._child import Incarnation, Runner
from ._core import Core
from ._exit import Crashed, Exit, describe
from ._lifecycle import BackingOff, Escalated, StartRejected
from ._plan import PlanState, begin, decide
from ._plan_types import (
    ChildDown,
    ChildRejected,
    ChildUp,
    Delay,
    FailStart,
    Finish,
    Forget,
    GiveUp,
    PlanAction,
    PlanEvent,
    PlanSlot,
    Ready,
    Refuse,
    StartChild,
    StopChild,
    Tick,
)
from ._slot import Slot, State
from ._spec import ChildSpec, PoolSpec, StartFunction, SupervisorSpec
from ._stop import stop_child, wait_after_kill

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup


class Supervisor:
    """One incarnation of a static supervisor, and the base of the dynamic one."""

    nursery: trio.Nursery

    def __init__(self, owner: Slot, plan: PlanState) -> None:
        self.owner = owner
        self.core: Core = owner.core
        self.stopping = False
        self.final = False
        self._plan = plan
        self._post, self._inbox = trio.open_memory_channel[PlanEvent](math.inf)
        self._body = trio.CancelScope()
        self._starting: dict[str, trio.CancelScope] = {}
        self._stops: dict[str, trio.CancelScope] = {}
        self._failure: Exception | None = None
        self._broken = False
        self._on_ready: Callable[[], None] = lambda: None

    @trio.lowlevel.enable_ki_protection
    async def run(self, on_ready: Callable[[], None]) -> None:
        """Start the children, call `on_ready`, supervise until the end.

        Returns when asked to stop or after an automatic shutdown. Raises `StartFailed`,
        `RestartIntensityExceeded`, a fatal exception of a child, or the caller's cancellation,
        always after the ordered stop and never wrapped in a group of its own.
        """
        self._on_ready = on_ready
        error: BaseException | None = None
        try:
            async with trio.open_nursery(strict_exception_groups=True) as self.nursery:
                try:
                    with self._body:
                        await self._loop()
                finally:
                    self.stopping = True
                    with trio.CancelScope(shield=True):
                        await self._stop_in_order()
        except BaseException as exc:
            # A nursery always wraps; one layer per level would bury the error in nested groups.
            error = exc
            if isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
                error = exc.exceptions[0]
        finally:
            self._post.close()
            self._inbox.close()
            if self._broken:
                self._leave()
        if error is None:
            error = self._failure
        if error is not None:
            raise error

    def request_stop(self, final: bool) -> None:
        """Begin the ordered stop. `final`: neither this supervisor nor its children come back."""
        self.final = self.final or final
        self._body.cancel()

    # What incarnations report. Synchronous, so that a start always precedes its exit in the queue.

    def child_started(self, incarnation: Incarnation) -> None:
        """The child is up."""
        self._post.send_nowait(ChildUp(id=incarnation.slot.spec.id))

    def child_ended(self, incarnation: Incarnation, exit_: Exit, fatal: bool) -> None:
        """The child has ended; whoever started it reports an end before it was up."""
        if fatal:
            self.final = True
        elif incarnation.up:
            self._post.send_nowait(
                ChildDown(id=incarnation.slot.spec.id, exit=exit_, draw=self.core.rng.random())
            )

    async def _loop(self) -> None:
        self._dispatch(Tick())
        while not self._plan.over:
            event: PlanEvent = Tick()
            wake_at = self._plan.wake_at
            with trio.CancelScope(deadline=math.inf if wake_at is None else wake_at):
                event = await self._inbox.receive()
            self._dispatch(event)

    def _dispatch(self, event: PlanEvent) -> None:
        for action in self._decide(event, trio.current_time()):
            self._carry_out(action)

    def _decide(self, event: PlanEvent, now: float) -> tuple[PlanAction, ...]:
        self._plan, actions = decide(self._plan, event, now)
        return actions

    def _carry_out(self, action: PlanAction) -> None:
        if isinstance(action, StartChild):
            slot = self._slot(action.id)
            slot.state = State.STARTING
            # Made with the order: a removal may come before the first step of the start.
            self._starting[action.id] = trio.CancelScope()
            self.nursery.start_soon(self._start, slot, name=f"start {slot.path}")
        elif isinstance(action, StopChild):
            self._order_stop(self._slot(action.id))
        elif isinstance(action, Forget):
            self._forget(self._slot(action.id))
        elif isinstance(action, Delay):
            slot = self._slot(action.id)
            slot.state = State.BACKOFF
            self.core.listeners.emit(
                BackingOff(
                    path=slot.path,
                    at=trio.current_time(),
                    delay_s=action.delay_s,
                    failures=action.failures,
                )
            )
        elif isinstance(action, Ready):
            self._on_ready()
        elif isinstance(action, Refuse):
            self._refuse(action.id, action.error)
        elif isinstance(action, FailStart):
            self._failure = action.error
        elif isinstance(action, GiveUp):
            self._give_up(action)
        else:
            assert isinstance(action, Finish)
            # Only who is not started again may have a rule for this, so the children end for
            # good: their mailboxes drain. Proof: `test_an_automatic_shutdown_drains`.
            self.final = True

    def _order_stop(self, slot: Slot) -> None:
        id_, incarnation = slot.spec.id, slot.incarnation
        if id_ in self._stops:
            return
        if incarnation is not None and incarnation.up:
            self._stops[id_] = trio.CancelScope()
            self.nursery.start_soon(self._stop, incarnation, name=f"stop {slot.path}")
        elif id_ in self._starting:
            self._starting[id_].cancel()

    def _give_up(self, action: GiveUp) -> None:
        intensity = self._plan.window.intensity
        child = self._slot(action.id)
        error = RestartIntensityExceeded(
            f"supervisor {self._label} gave up: more than {intensity.max_restarts} restart(s) in "
            f"{intensity.period_s:g} s; last, child {child.path!r} {describe(action.exit)}. "
            "Repair what the cause says, or raise Intensity."
        )
        if isinstance(action.exit, Crashed):
            error.__cause__ = action.exit.error
        self._failure = error
        self.core.listeners.emit(
            Escalated(path=self.owner.path, at=trio.current_time(), child=child.path, error=error)
        )

    @trio.lowlevel.enable_ki_protection
    async def _stop(self, incarnation: Incarnation) -> None:
        slot = incarnation.slot
        try:
            with self._stops[slot.spec.id]:
                await stop_child(incarnation, self._final_for(slot), self._grace_of(slot))
        finally:
            del self._stops[slot.spec.id]

    @trio.lowlevel.enable_ki_protection
    async def _start(self, slot: Slot) -> None:
        scope = self._starting[slot.spec.id]
        if self.stopping or self._body.cancel_called or self.nursery.cancel_scope.cancel_called:
            # Ordered just before the stop began, and not running until now.
            del self._starting[slot.spec.id]
            return
        incarnation = Incarnation(slot, self, runner_of(slot.spec))
        slot.incarnation = incarnation
        timeout = slot.spec.start_timeout_s
        with scope:
            if timeout is not None:
                scope.deadline = trio.current_time() + timeout
            try:
                await self.nursery.start(incarnation.run, name=slot.path)
            except RuntimeError:
                # Trio's word for "returned without started()"; the exit below says more.
                assert incarnation.exit is not None
            finally:
                del self._starting[slot.spec.id]
                # A start that was cancelled before its task ever ran leaves its clone open.
                if not incarnation.up:
                    incarnation.receiver.close()
        if incarnation.up or self.stopping:
            return
        error = self._start_error(incarnation, cancelled=scope.cancel_called)
        self.core.listeners.emit(
            StartRejected(
                path=slot.path,
                at=trio.current_time(),
                incarnation=incarnation.number,
                error=error,
            )
        )
        self._post.send_nowait(
            ChildRejected(id=slot.spec.id, error=error, draw=self.core.rng.random())
        )

    def _start_error(self, incarnation: Incarnation, *, cancelled: bool) -> StartFailed:
        slot, exit_ = incarnation.slot, incarnation.exit
        where = f"child {slot.path!r} failed to start"
        if isinstance(exit_, Crashed):
            error = StartFailed(f"{where}: it {describe(exit_)}. See the cause.")
            error.__cause__ = exit_.error
        elif cancelled and self._is_leaving(slot):
            error = StartFailed(f"{where}: it was stopped while it was starting.")
        elif cancelled:
            error = StartFailed(
                f"{where} within start_timeout_s={slot.spec.start_timeout_s}. Raise it, or find "
                "out what the child waits for."
            )
            error.__cause__ = trio.TooSlowError()
        else:
            error = StartFailed(
                f"{where}: it ended without calling ctx.started(). Call it once the child is ready."
            )
        return error

    async def _stop_in_order(self) -> None:
        """The ordered stop. If that itself goes wrong, everybody is cancelled and it is raised.

        Without this the nursery would wait for ever: nothing else can end a shielded child.
        """
        try:
            await self._stop_all()
        except BaseException:
            self._broken = True
            for slot in reversed(tuple(self.owner.children.values())):
                if slot.incarnation is not None:
                    self.core.killed[slot.path] = None
                    slot.incarnation.kill()
            raise

    def _leave(self) -> None:
        """Everybody has ended, but not by the ordered stop: give each slot its last state."""
        for slot in reversed(tuple(self.owner.children.values())):
            self._leave_slot(slot)

    async def _stop_all(self) -> None:
        self._take_over()
        for slot in reversed(tuple(self.owner.children.values())):
            await self._stop_slot(slot)

    async def _stop_slot(self, slot: Slot) -> None:
        incarnation = slot.incarnation
        if incarnation is not None:
            if incarnation.up:
                await stop_child(incarnation, self._final_for(slot), self._grace_of(slot))
            else:
                incarnation.kill()
                await wait_after_kill(incarnation)
        self._leave_slot(slot)

    def _leave_slot(self, slot: Slot) -> None:
        if self._final_for(slot):
            slot.terminate()
        else:
            slot.state = State.DOWN

    def _take_over(self) -> None:
        """From here on only the ordered stop acts: no start and no other stop is under way."""
        for scope in (*self._starting.values(), *self._stops.values()):
            scope.cancel()
        self._report_unseen()

    def _report_unseen(self) -> None:
        """Crashes that happened before the stop but were never looked at belong in the report."""
        unseen = list(self._plan.deferred)
        while True:
            try:
                event = self._inbox.receive_nowait()
            except trio.WouldBlock:
                break
            if isinstance(event, ChildDown):
                unseen.append(event)
        # By identity, once: comparing each with all would be slow when a whole pool crashed.
        known = {(late.path, id(late.error)) for late in self.core.late_errors}
        for event in unseen:
            slot = self.owner.children.get(event.id)
            if isinstance(event.exit, Crashed) and slot is not None:
                error = event.exit.error
                if (slot.path, id(error)) not in known and isinstance(error, Exception):
                    known.add((slot.path, id(error)))
                    self.core.note_late(slot.path, error)

    def _slot(self, id_: str) -> Slot:
        return self.owner.children[id_]

    def _forget(self, slot: Slot) -> None:
        slot.terminate()

    def _refuse(self, id_: str, error: Exception) -> None:
        """Only children added at run time can be refused."""

    def _final_for(self, slot: Slot) -> bool:
        """Whether the slot ends for good with this stop."""
        return self.final if self.stopping else self._is_leaving(slot)

    def _is_leaving(self, slot: Slot) -> bool:
        plan_slot = self._plan.slots.get(slot.spec.id)
        return plan_slot is not None and plan_slot.leaving

    def _grace_of(self, slot: Slot) -> float:
        return slot.spec.shutdown.grace_s

    @property
    def _label(self) -> str:
        return repr(self.owner.path or self.core.system.name)


def static(owner: Slot, spec: SupervisorSpec) -> Supervisor:
    """A static supervisor over the slots of `owner`, made anew where they have ended."""
    for child in spec.children:
        slot = owner.children.get(child.id)
        if slot is None or slot.ended.is_set():
            owner.children[child.id] = Slot(owner.core, child, owner.child_path(child.id))
    plan = begin(
        plan_slots(spec.children),
        strategy=spec.strategy,
        intensity=spec.intensity,
        auto_shutdown=spec.auto_shutdown,
    )
    return Supervisor(owner, plan)


def plan_slots(children: Iterable[ChildSpec]) -> list[PlanSlot]:
    """What the plan needs to know about each child."""
    return [
        PlanSlot(
            id=child.id,
            restart=child.restart,
            significant=child.significant,
            backoff=child.backoff,
        )
        for child in children
    ]


async def _run_tree(make: Callable[[Slot], Supervisor], incarnation: Incarnation) -> None:
    tree = make(incarnation.slot)
    incarnation.adopt(tree)
    await tree.run(incarnation.context.started)


def _run_worker(start: StartFunction, incarnation: Incarnation) -> Awaitable[None]:
    # Not a coroutine of its own: every idle actor would keep it, and every wake-up pass it.
    return start(incarnation.context)


def runner_of(spec: ChildSpec) -> Runner:
    """What a task of this spec runs: the user's function, or a supervisor over its children."""
    start = spec.start
    if isinstance(start, SupervisorSpec):
        return partial(_run_tree, partial(static, spec=start))
    if isinstance(start, PoolSpec):
        return partial(_run_tree, start.pool.attach)
    return partial(_run_worker, start)
