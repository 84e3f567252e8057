"""The same supervisor and children on real Trio, under a `Stepper`.

Children are actors that do what they are told (`Puppet`). What the supervisor is told, and in which
order, comes from its own lifecycle records, which are made in the same turn as the reports.
"""

from __future__ import annotations

import random
import sys
from contextlib import nullcontext
from functools import partial
from typing import Any

import trio
from supervisor_child import DRAWS, OVERRUN_S, Boom, Fact, Manner, Seen, Setup, Traits, chain

from shove_actors.actors import (
    ActorSystem,
    AutoShutdown,
    BackingOff,
    ChildSpec,
    Context,
    DynamicSupervisor,
    Exit,
    Exited,
    GraceExpired,
    LifecycleEvent,
    Overrun,
    Restart,
    RestartIntensityExceeded,
    Shutdown,
    Started,
    StartFailed,
    StartRejected,
    State,
    StopRequested,
    Strategy,
    open_actor_system,
)
from shove_actors.testing import Step, Stepper

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

POOL = "pool"


class Draws(random.Random):
    """The jitter both worlds share."""

    def __init__(self) -> None:
        super().__init__(0)
        self.count = 0

    def random(self) -> float:
        self.count += 1
        return DRAWS[(self.count - 1) % len(DRAWS)]


class Puppet:
    """One incarnation, as its function sees it."""

    def __init__(self, ctx: Context[str], traits: Traits) -> None:
        self.ctx = ctx
        self.said_started = False
        self._manner = traits.manner
        self._word = ""
        self._told = trio.Event()

    @property
    def stage(self) -> tuple[int, bool, bool]:
        return self.ctx.incarnation, self.said_started, self.ctx.stop_requested.is_set()

    def tell(self, word: str) -> None:
        """up, crash or return; takes effect in the next turn."""
        if self.said_started and self._manner is Manner.PROMPT:
            self.ctx.self_ref.tell_nowait(word)
        else:
            self._word = word
            self._told.set()

    async def live(self) -> None:
        stubborn = self._manner is Manner.STUBBORN
        with trio.CancelScope(shield=True) if stubborn else nullcontext():
            await self._told.wait()
            if self._word == "up":
                self._told = trio.Event()
                self.said_started = True
                self.ctx.started()
                if self._manner is Manner.PROMPT:
                    self._word = await self._receive()
                else:
                    await self._told.wait()
            if self._word == "crash":
                raise Boom(f"{self.ctx.name}.{self.ctx.incarnation}")

    async def _receive(self) -> str:
        async for word in self.ctx:
            return word
        return "return"


class TrioWorld:
    """A running system with one supervisor, and its children."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.dynamic = setup.strategy is None
        self.pool = DynamicSupervisor(intensity=setup.intensity, stop_grace_s=setup.pool_grace_s)
        self.system: ActorSystem | None = None
        self.entered = False
        self.alive: dict[str, Puppet] = {}
        self.seen: list[Seen] = []
        self.begun: set[tuple[str, int]] = set()
        """Incarnations whose function has begun, since `take_begun`."""
        self.facts: list[Fact] = []
        self.outcome: list[str] | None = None
        """How it ended: ["returned"], or the failure and its causes."""
        self.adds: dict[str, Step[object]] = {}
        self.removes: dict[int, Step[Exit | None]] = {}
        self._overlap = ""
        self._letting_go = False
        self.trio = Stepper()
        self.trio.open()

    # ------------------------------------------------------------------- what is done to it

    def begin(self) -> None:
        self._main = self.trio.post(self._run)

    def tell(self, *words: tuple[str, str]) -> None:
        """Tell children, all in one turn."""
        for id_, word in words:
            self.alive[id_].tell(word)
        self.trio.settle()

    def add(self, id_: str, traits: Traits) -> None:
        self.adds[id_] = self.trio.post(self._add, self._spec(id_, traits))

    def give_up_add(self, id_: str) -> None:
        self.adds.pop(id_).cancel()
        self.trio.settle()

    def remove(self, id_: str, grace_s: float | None, ticket: int) -> None:
        self.removes[ticket] = self.trio.post(self._remove, id_, grace_s)

    def remove_telling(self, id_: str, ticket: int, who: str, word: str) -> None:
        """A removal and an end in one turn."""
        self.alive[who].tell(word)
        self.removes[ticket] = self.trio.post(self._remove, id_, None)

    def stop(self, how: str) -> None:
        if how == "ask" and self.system is not None:
            self.system.stop()
        else:
            self._main.cancel()
        self.trio.settle()

    def hard_stop(self) -> None:
        assert self.system is not None
        self.system.hard_stop()
        self.trio.settle()

    def close(self) -> None:
        """Let everybody go, whatever they were told, and end the run."""
        self._letting_go = True
        try:
            self._main.cancel()
            self.trio.settle()
            while self.alive:
                self.tell(*[(id_, "return") for id_ in self.alive])
            steps: list[Step[Any]] = [self._main, *self.adds.values(), *self.removes.values()]
            for step in steps:
                # What matters of it was compared; the rest comes of letting go.
                assert step.done
                assert step.error is None or step.failed or step.cancelled
        finally:
            self.trio.close()

    # ----------------------------------------------------------------------- what is seen

    def take_seen(self) -> list[Seen]:
        assert not self._overlap, self._overlap
        seen, self.seen = self.seen, []
        return seen

    def take_begun(self) -> set[tuple[str, int]]:
        begun, self.begun = self.begun, set()
        return begun

    def states(self) -> dict[str, tuple[State, int]]:
        """State and number of the last incarnation of each slot there is."""
        assert self.system is not None
        root = self.system.snapshot()
        node = root.find(POOL) if self.dynamic else root
        return {} if node is None else {c.name: (c.state, c.incarnation) for c in node.children}

    def late(self) -> list[str]:
        assert self.system is not None
        # A pool that gives up while all is being stopped is a late error itself.
        errors = self.system.report.errors
        return [str(late.error) for late in errors if late.path != POOL]

    def killed(self) -> list[str]:
        assert self.system is not None
        return [path.rpartition("/")[2] for path in self.system.report.killed]

    @staticmethod
    def result_of(step: Step[object]) -> list[str] | None:
        """What `start_child` has come to, as in `PlanWorld.adds`."""
        if not step.done:
            return None
        return ["ok"] if step.error is None else chain(step.error)

    # ---------------------------------------------------------------------------- private

    async def _run(self) -> None:
        try:
            async with open_actor_system(
                children=self._children(),
                strategy=self.setup.strategy or Strategy.ONE_FOR_ONE,
                intensity=None if self.dynamic else self.setup.intensity,
                auto_shutdown=self._auto(),
                listener=self._listen,
                rng=Draws(),
            ) as system:
                self.system = system
                self.entered = True
                await system.wait_stopped()
        except BaseException as error:
            self._over(error)
            if not isinstance(error, Exception):
                raise
        else:
            self._over(None)

    def _over(self, error: BaseException | None) -> None:
        if self.outcome is None:
            self.outcome = ["returned"] if error is None else _failure(error)

    def _auto(self) -> AutoShutdown:
        if self.dynamic:
            return AutoShutdown.ANY
        # With nobody significant it would never happen, and the specs refuse that.
        significant = any(traits.significant for traits in self.setup.named().values())
        return self.setup.auto if significant else AutoShutdown.NEVER

    def _children(self) -> list[ChildSpec]:
        if self.dynamic:
            # Its end ends the system.
            return [self.pool.spec(id=POOL, restart=Restart.TEMPORARY, significant=True)]
        return [self._spec(id_, traits) for id_, traits in self.setup.named().items()]

    def _spec(self, id_: str, traits: Traits) -> ChildSpec:
        return ChildSpec(
            id=id_,
            start=partial(self._child, traits),
            restart=traits.restart,
            backoff=traits.backoff,
            significant=traits.significant and not self.dynamic,
            shutdown=Shutdown.within(traits.grace_s),
            start_timeout_s=traits.timeout_s,
            overrun_s=OVERRUN_S,
        )

    async def _child(self, traits: Traits, ctx: Context[str]) -> None:
        if ctx.name in self.alive:
            self._overlap = f"two incarnations of {ctx.name} at once"
        self.begun.add((ctx.name, ctx.incarnation))
        puppet = self.alive[ctx.name] = Puppet(ctx, traits)
        if self.system is None:
            self.system = ctx.system
        try:
            if not self._letting_go:
                await puppet.live()
        finally:
            del self.alive[ctx.name]

    async def _add(self, spec: ChildSpec) -> object:
        self._see("add", spec.id)
        try:
            return await self.pool.start_child(spec)
        except trio.Cancelled:
            self._see("remove", spec.id)
            raise

    async def _remove(self, id_: str, grace_s: float | None) -> Exit | None:
        self._see("remove", id_)
        return await self.pool.stop_child(id_, grace_s=grace_s)

    def _see(self, word: str, id_: str, exit_: str = "") -> None:
        self.seen.append((word, id_, exit_, trio.current_time()))

    def _listen(self, event: LifecycleEvent) -> None:
        id_, at = event.path.rpartition("/")[2], event.at
        if id_ == POOL:
            if isinstance(event, Exited):
                error = getattr(event.exit, "error", None)
                self.outcome = ["returned"] if error is None else _failure(error)
        elif isinstance(event, Started):
            self._see("up", id_)
        elif isinstance(event, Exited):
            self._see("down", id_, type(event.exit).__name__)
        elif isinstance(event, StartRejected):
            self._see("rejected", id_)
        elif isinstance(event, BackingOff):
            self.facts.append(("backing off", id_, at, event.delay_s, event.failures))
        elif isinstance(event, StopRequested):
            self.facts.append(("asked", id_, at, event.grace_s, event.incarnation))
        elif isinstance(event, GraceExpired):
            self.facts.append(("grace over", id_, at, 0.0, event.incarnation))
        elif isinstance(event, Overrun):
            self.facts.append(("overrun", id_, at, event.since_s, event.incarnation))


def _failure(error: BaseException) -> list[str]:
    """What a system failed with, as `chain` names it; what came along with it is left out."""
    if isinstance(error, (StartFailed, RestartIntensityExceeded)):
        return chain(error)
    if isinstance(error, BaseExceptionGroup):
        found = [_failure(part) for part in error.exceptions]
        return next((each for each in found if each != ["returned"]), ["returned"])
    return ["returned"] if isinstance(error, trio.Cancelled) else chain(error)
