"""Running an application: signals, drain, exit code.

    first SIGINT or SIGTERM     groups drain; `stop` is set; an actor system stops in order
    second                      handlers are cancelled, actors are killed
    --drain-timeout             of each group, and for a function that waits for `stop`

Everything that runs is in one nursery below the broker, so leaving is one way, whatever began it: a
signal, a group that cannot go on, a connection that is given up, an exception of the application.
"""

from __future__ import annotations

import inspect
import logging
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import trio

from shove_actors import Broker, ConsumerGroup, ExitCode, SupervisorOutcome, open_broker
from shove_actors._groups import unwrapped
from shove_actors.actors import ActorSystem, ChildSpec, open_actor_system
from shove_actors.backends import BackendConfig

from ._apps import App, Work, work_of

logger = logging.getLogger("shove_actors.cli")


@dataclass(kw_only=True)
class Running:
    """What runs, for whoever looks at it meanwhile (`_live.py`)."""

    app: App
    drain_timeout: float
    broker: Broker | None = None
    groups: tuple[ConsumerGroup, ...] = ()
    system: ActorSystem | None = None
    outcomes: list[SupervisorOutcome] = field(default_factory=list)
    stop: trio.Event = field(default_factory=trio.Event)
    #: Set by the second signal.
    hard: trio.Event = field(default_factory=trio.Event)

    @property
    def reasons(self) -> list[str]:
        return [reason for outcome in self.outcomes for reason in outcome.reasons]


#: Stands around everything that runs; entered when there is a broker.
Around = Callable[[Running], AbstractAsyncContextManager[None]]


async def run_app(running: Running, config: BackendConfig, *, around: Around | None = None) -> int:
    """Returns the exit code. Raises what the application and the library raise."""
    code = 0
    with unwrapped(layers=1):
        async with trio.open_nursery() as nursery:
            await nursery.start(_listen, running)
            if running.app.wants_broker:
                async with open_broker(config) as broker:
                    running.broker = broker
                    async with nullcontext() if around is None else around(running):
                        code = await _application(running)
            else:
                code = await _application(running)
            nursery.cancel_scope.cancel()
    return code


async def _listen(
    running: Running, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as numbers:
        task_status.started()
        async for number in numbers:
            name = signal.Signals(number).name
            if running.stop.is_set():
                logger.warning("%s again: ending at once", name)
                running.hard.set()
            else:
                logger.info("%s: stopping; another one ends it at once", name)
                running.stop.set()


async def _application(running: Running) -> int:
    """The function, what it started in its nursery, and what it returned to be run."""
    code, cut_short, on_its_own = 0, False, True
    app = running.app

    async def end() -> None:
        nonlocal cut_short
        await running.stop.wait()
        if app.wants_stop:
            with trio.move_on_after(running.drain_timeout):
                await running.hard.wait()
            cut_short = True
        if on_its_own:
            scope.cancel()

    with trio.CancelScope() as scope, unwrapped(layers=2):
        async with trio.open_nursery() as watching:
            watching.start_soon(end)
            async with trio.open_nursery() as nursery:
                work = await _call(running, nursery)
                code = work.code
                if work.groups or work.specs:
                    on_its_own = False  # each has a drain of its own
                    if work.groups:
                        code = await _serve(running, work.groups)
                    else:
                        code = await _act(running, work.specs)
                    nursery.cancel_scope.cancel()
            watching.cancel_scope.cancel()
    return ExitCode.DRAIN_TIMEOUT if cut_short and scope.cancelled_caught else code


async def _call(running: Running, nursery: trio.Nursery) -> Work:
    app = running.app
    if app.function is None:
        return Work(specs=app.specs)
    given = {"broker": running.broker, "nursery": nursery, "stop": running.stop}
    result: Any = app.function(**{name: given[what] for name, what in app.wants.items()})
    if inspect.isawaitable(result):
        result = await result
    return work_of(app.target, result)


async def _serve(running: Running, groups: tuple[ConsumerGroup, ...]) -> int:
    running.groups = groups

    async def serve(group: ConsumerGroup) -> None:
        running.outcomes.append(await group.serve(drain_timeout=running.drain_timeout))
        # One that cannot go on takes the others along, in order.
        running.stop.set()

    async def stop() -> None:
        await running.stop.wait()
        for group in groups:
            group.stop()
        await running.hard.wait()
        for group in groups:
            group.hard_stop()

    with unwrapped(layers=2):
        async with trio.open_nursery() as watching:
            watching.start_soon(stop)
            async with trio.open_nursery() as serving:
                for group in groups:
                    serving.start_soon(serve, group)
            watching.cancel_scope.cancel()
    return max(outcome.exit_code for outcome in running.outcomes)


async def _act(running: Running, specs: tuple[ChildSpec, ...]) -> int:
    async with open_actor_system(children=list(specs)) as system:
        running.system = system

        async def stop() -> None:
            await running.stop.wait()
            system.stop()
            await running.hard.wait()
            system.hard_stop()

        async with trio.open_nursery() as watching:
            watching.start_soon(stop)
            report = await system.wait_stopped()
            watching.cancel_scope.cancel()
    if report.killed and running.hard.is_set():
        return ExitCode.DRAIN_TIMEOUT
    return ExitCode.ERROR if report.errors else ExitCode.CLEAN
