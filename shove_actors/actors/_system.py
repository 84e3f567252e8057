"""The root of a tree: opens it, stops it, and passes its failure on.

The block's own code runs in the caller's task; the tree runs beside it, shielded. So a
cancellation from outside first unwinds the block, which may still use its actors for that, and
then stops the tree in order. The other way round, a tree that fails cancels the block.

Ctrl-C reaches Trio's main task even under a shield. In the block it is an exception like any
other: the tree is stopped and it is raised on. A second one, while the tree is being stopped, is
the hard stop. (A program with signals of its own uses `trio.open_signal_receiver` instead.)
"""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from shove_actors._errors import StartFailed, UsageError

from . import _checks as checks
from ._callables import listener_function
from ._core import Core, LateError
from ._dynamic import DynamicSupervisor
from ._inspect import TreeNode, snapshot
from ._intensity import Intensity
from ._lifecycle import Listener, SystemStopped
from ._ref import ActorRef
from ._slot import Slot, State
from ._spec import (
    AutoShutdown,
    ChildSpec,
    Kind,
    PoolSpec,
    Restart,
    Strategy,
    SupervisorSpec,
    supervisor,
)
from ._supervisor import static

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup


@dataclass(frozen=True, kw_only=True)
class ShutdownReport:
    """How the tree ended."""

    failure: BaseException | None
    """What the tree failed with (raised at the block's end), or None."""
    errors: tuple[LateError, ...]
    """Crashes of children that were being stopped. They change nothing, but should be seen.

    The last 100; `errors_dropped` counts the ones before them.
    """
    killed: tuple[str, ...]
    """Paths of children that were cancelled: brutal kill, or out of grace.

    A child that ended for good while the system ran on is not in it.
    """
    errors_dropped: int = 0

    @property
    def clean(self) -> bool:
        """Nothing failed: exit code 0."""
        return self.failure is None and not self.errors


class ActorSystem:
    """A running tree. Got from `open_actor_system`."""

    def __init__(self, spec: ChildSpec, rng: random.Random) -> None:
        self._core = Core(self, rng)
        self._name = spec.id
        self._root = Slot(self._core, spec, "")
        assert isinstance(spec.start, SupervisorSpec)
        self._supervisor_spec = spec.start
        self._settled = trio.Event()
        self._stopped = trio.Event()
        self._block = trio.CancelScope()
        self._failure: BaseException | None = None
        self._asked = False
        # Making the children's slots can fail (a name taken twice): before anything runs.
        self._supervisor = static(self._root, self._supervisor_spec)
        self._core.listeners.on_fatal = self.stop

    def __repr__(self) -> str:
        return f"<ActorSystem {self._name!r}>"

    @property
    def name(self) -> str:
        """The system's name; the name of the root in snapshots and messages."""
        return self._name

    def ref(self, path: str) -> ActorRef[Any]:
        """The ref of the slot at `path` (ids joined by '/').

        Raises `UsageError` if there is no such slot, or a supervisor lives there.
        """
        slot = self._find(path)
        if slot.spec.kind is not Kind.WORKER:
            raise UsageError(
                f"{path!r} is a supervisor and has no mailbox: name one of its children"
                f" ({', '.join(slot.children) or 'it has none'})."
            )
        return slot.ref

    def dynamic(self, path: str) -> DynamicSupervisor:
        """The dynamic supervisor at `path`. Raises `UsageError` if something else lives there."""
        slot = self._find(path)
        if not isinstance(slot.spec.start, PoolSpec):
            raise UsageError(f"{path!r} is a {slot.spec.kind.value}, not a dynamic supervisor.")
        return slot.spec.start.pool

    def whereis(self, name: str) -> ActorRef[Any] | None:
        """The ref registered under `name`, or None."""
        return self._core.registry.whereis(name)

    def register(self, name: str, ref: ActorRef[Any]) -> None:
        """Give a slot a (further) name, until it ends. Raises `NameTaken` and `ActorGone`."""
        checks.readable("register name", name)
        checks.instance_of("register ref", ref, ActorRef, "Pass system.ref(path).")
        self._core.registry.register(name, ref)

    def unregister(self, name: str) -> None:
        """Free a name. Unknown names are ignored."""
        self._core.registry.unregister(name)

    def add_listener(self, listener: Listener) -> None:
        """Call `listener` with every lifecycle event from now on. See `Listener`."""
        self._core.listeners.add(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Stop calling `listener`. Unknown ones are ignored."""
        self._core.listeners.remove(listener)

    def snapshot(self) -> TreeNode:
        """The tree at this moment."""
        return snapshot(self._root)

    @property
    def dead_letters(self) -> int:
        """Messages dropped so far, because their slot ended or cleared its mailbox."""
        return self._core.dead_letters

    @property
    def messages_lost(self) -> int:
        """Messages so far that were in hand when their actor crashed."""
        return self._core.messages_lost

    @property
    def report(self) -> ShutdownReport:
        """How the tree has ended; so far, while it still runs."""
        return ShutdownReport(
            failure=self._failure,
            errors=tuple(self._core.late_errors),
            killed=tuple(self._core.killed),
            errors_dropped=self._core.late_errors_dropped,
        )

    def stop(self) -> None:
        """Begin the ordered stop and return: last child first, each with its grace. Idempotent."""
        self._asked = True
        self._supervisor.request_stop(True)

    @property
    def stopping(self) -> bool:
        """Whether the whole tree is being stopped, or has ended."""
        return self._asked or self._supervisor.stopping

    def hard_stop(self) -> None:
        """Stop with no more grace anywhere, now and for children asked later. Idempotent."""
        self._core.hard.set()
        self.stop()

    async def wait_stopped(self) -> ShutdownReport:
        """Wait until the whole tree has ended, for whatever reason. Does not stop it."""
        await self._stopped.wait()
        return self.report

    def _find(self, path: str) -> Slot:
        checks.readable("path", path)
        slot = self._root
        for step in path.split("/"):
            child = slot.children.get(step)
            if child is None:
                raise UsageError(
                    f"there is no actor at {path!r}: {slot.path or self._name!r} has "
                    f"{', '.join(map(repr, slot.children)) or 'no children'}."
                )
            slot = child
        return slot

    @trio.lowlevel.enable_ki_protection
    async def _run(self) -> None:
        with trio.CancelScope(shield=True):
            self._root.state = State.STARTING
            try:
                # The root never comes back, whatever it ends by.
                self._supervisor.final = True
                await self._supervisor.run(self._ready)
            except BaseException as exc:
                self._failure = exc
            try:
                for slot in reversed(tuple(self._root.children.values())):
                    slot.terminate()
                self._root.state = State.ENDED
                self._note_fatal_listener()
                self._core.listeners.emit(
                    SystemStopped(path="", at=trio.current_time(), error=self._failure)
                )
                self._note_fatal_listener()
            finally:
                self._settled.set()
                self._stopped.set()
                if self._failure is not None:
                    self._block.cancel()

    def _note_fatal_listener(self) -> None:
        if self._failure is None and self._core.listeners.fatal:
            self._failure = self._core.listeners.fatal[0]

    def _ready(self) -> None:
        self._root.incarnations = 1
        self._root.state = State.RUNNING
        self._settled.set()

    @trio.lowlevel.enable_ki_protection
    async def _wait_stopped_for_good(self) -> KeyboardInterrupt | None:
        """Wait for the end under a shield; Ctrl-C meanwhile is the hard stop."""
        interrupt = None
        while not self._stopped.is_set():
            try:
                with trio.CancelScope(shield=True):
                    await self._stopped.wait()
            except KeyboardInterrupt as exc:
                interrupt = exc
                self.hard_stop()
        return interrupt


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def open_actor_system(
    *,
    children: Sequence[ChildSpec],
    name: str = "system",
    strategy: Strategy = Strategy.ONE_FOR_ONE,
    intensity: Intensity | None = None,
    auto_shutdown: AutoShutdown = AutoShutdown.NEVER,
    listener: Listener | None = None,
    rng: random.Random | None = None,
) -> AsyncIterator[ActorSystem]:
    """Start a tree, run the block, stop the tree.

    The block is entered when every child has said it is started. Leaving it, by whatever way,
    runs the ordered stop to its end: no task is left behind. Cancelled, the block unwinds first.

    Raises `StartFailed` on entry if a child does not start (the error as its cause; those already
    up are stopped), or if one calls `ctx.system.stop()` before all have. If the tree fails later
    (`RestartIntensityExceeded`, or a fatal exception in a child), the block is cancelled and the
    failure is raised at its end in an exception group, together with the block's own error if
    there is one. The block's own error alone is raised as it is. `rng` is the source of all
    jitter; give a seeded one to repeat a run.

    Example::

        async with open_actor_system(children=[ChildSpec(id="greeter", start=greeter)]) as system:
            print(await system.ref("greeter").ask("Ada", timeout=1))
    """
    checks.readable("open_actor_system name", name)
    checks.optional("open_actor_system rng", rng, random.Random, "Write random.Random(seed).")
    if listener is not None:
        # Also checked when it is added, but that is after names have been taken.
        listener_function("open_actor_system listener", listener)
    spec = supervisor(
        id=name,
        children=children,
        strategy=strategy,
        intensity=intensity,
        restart=Restart.TEMPORARY,
        auto_shutdown=auto_shutdown,
    )
    system = ActorSystem(spec, rng if rng is not None else random.Random())
    if listener is not None:
        system.add_listener(listener)
    block_error: BaseException | None = None
    started = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(system._run, name=f"actor system {name}")
        try:
            await system._settled.wait()
            started = system._root.incarnations > 0
            if started:
                with system._block:
                    yield system
        except BaseException as exc:
            block_error = exc
        system.stop()
        interrupt = await system._wait_stopped_for_good()
    failure = system._failure
    fatal = [e for e in system._core.listeners.fatal if e is not failure]
    errors = [e for e in (failure, *fatal, block_error, interrupt) if e is not None]
    if failure is not None and not started and errors == [failure]:
        raise failure
    if not started and not errors:
        # A child, or its system's `stop`, was faster than the block, which was never entered.
        raise StartFailed(
            f"actor system {name!r} was stopped before all its children had started, so its block "
            "could not be entered. Call stop() after that, or expect this."
        )
    if failure is not None:
        raise BaseExceptionGroup(f"actor system {name!r} failed", errors)
    if errors:
        raise errors[0]
