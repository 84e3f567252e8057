"""The stop itself goes wrong, or who watches it does: everybody must end all the same."""

from __future__ import annotations

import logging
import sys

import pytest
import trio
import trio.testing

from shove_actors.actors import (
    ActorGone,
    Backoff,
    ChildSpec,
    Context,
    Crashed,
    DynamicSupervisor,
    Ended,
    Exited,
    LifecycleEvent,
    Restart,
    Shutdown,
    State,
    open_actor_system,
    supervisor,
)
from shove_actors.actors._dynamic import _Pool
from shove_actors.actors._slot import Slot
from shove_actors.actors._supervisor import Supervisor

from .kit import Trace, crasher, leaves, worker

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup


_TRANSIENT = Restart.TRANSIENT
_LONG = Backoff(initial_s=60, max_s=60)


class Fatal(BaseException):
    """Neither an ordinary error nor a cancellation, as `pytest.fail()` raises one."""


def break_grace_of(monkeypatch: pytest.MonkeyPatch, owner: type[Supervisor], id_: str) -> None:
    """The ordered stop fails when it comes to the child `id_`."""
    grace_of = owner._grace_of

    def broken(self: Supervisor, slot: Slot) -> float:
        if slot.spec.id == id_:
            raise AttributeError("broken")
        return grace_of(self, slot)

    monkeypatch.setattr(owner, "_grace_of", broken)


async def test_an_error_in_the_ordered_stop_ends_everybody(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C is stopped in order, B's stop breaks; B and A are cancelled and the error is raised."""
    break_grace_of(monkeypatch, Supervisor, "B")
    trace = Trace()
    children = [
        worker(trace, "A", stop_s=100, shutdown=Shutdown.within(200)),
        worker(trace, "B", stop_s=100, shutdown=Shutdown.within(200)),
        worker(trace, "C", stop_s=3, shutdown=Shutdown.within(200)),
    ]
    with pytest.raises(BaseExceptionGroup) as caught:
        async with open_actor_system(children=children) as system:
            refs = [system.ref(name) for name in "ABC"]
    assert [str(error) for error in leaves(caught.value)] == ["broken"]
    assert trace.at("end") == {"C": 3, "B": 3, "A": 3}
    assert all(ref.ended for ref in refs)
    assert not system.report.clean
    assert system.report.killed == ("B", "A")


async def test_an_error_in_the_stop_of_a_nested_supervisor_is_recorded(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group's end is a late error of the tree's stop, and the others are stopped in order.

    One of its children is in a backoff then, and has nobody to cancel.
    """
    break_grace_of(monkeypatch, Supervisor, "B")
    trace = Trace()
    group = supervisor(
        id="g", children=[worker(trace, "A"), worker(trace, "B", stop_s=100)], restart=_TRANSIENT
    )
    async with open_actor_system(children=[worker(trace, "first", stop_s=1), group]) as system:
        pass
    assert [(late.path, str(late.error)) for late in system.report.errors] == [("g", "broken")]
    assert trace.at("end") == {"A": 0, "B": 0, "first": 1}


async def test_an_error_in_the_stop_of_a_pool_ends_everybody(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also who waits in `start_child` gets an answer, and the pool is let go of."""
    break_grace_of(monkeypatch, _Pool, "B")
    trace = Trace()
    pool = DynamicSupervisor()
    answers: list[type[Exception]] = []

    async def never_up(ctx: Context[object]) -> None:
        await trio.sleep_forever()

    async def start_it() -> None:
        try:
            await pool.start_child(ChildSpec(id="never", start=never_up, start_timeout_s=None))
        except ActorGone as error:
            answers.append(type(error))

    async with trio.open_nursery() as nursery:
        async with open_actor_system(children=[pool.spec(id="pool")]) as system:
            for name in "ABC":
                await pool.start_child(
                    worker(trace, name, stop_s=100, shutdown=Shutdown.within(200))
                )
            nursery.start_soon(start_it)
            await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == 0
    assert answers == [ActorGone]
    assert pool.children == ()
    assert trace.at("end") == dict.fromkeys("ABC", 0)
    assert [(late.path, str(late.error)) for late in system.report.errors] == [("pool", "broken")]


async def test_a_child_that_waits_for_its_restart_survives_a_broken_stop(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no incarnation that could be cancelled; its slot ends with the others."""
    break_grace_of(monkeypatch, Supervisor, "B")
    trace = Trace()
    children = [crasher(trace, "A", after_s=1, backoff=_LONG), worker(trace, "B")]
    with pytest.raises(BaseExceptionGroup):  # noqa: PT012
        async with open_actor_system(children=children) as system:
            await trio.sleep(2)
            assert system.snapshot().children[0].state is State.BACKOFF
    assert [node.state for node in system.snapshot().children] == [State.ENDED, State.ENDED]


_EVENTS = ["Started", "StopRequested", "GraceExpired", "Exited", "Ended", "SystemStopped"]


@pytest.mark.parametrize("kind", _EVENTS)
async def test_fatal_listener_on_any_event(
    autojump_clock: trio.testing.MockClock, kind: str
) -> None:
    """It is raised at the system's end, once, after everybody has ended as in any other stop."""
    trace = Trace()
    pool = DynamicSupervisor()
    calls: list[str] = []

    def listen(event: LifecycleEvent) -> None:
        trace.listen(event)
        if type(event).__name__ == kind:
            calls.append(event.path)
            raise Fatal(kind)

    children = [
        pool.spec(id="pool"),
        worker(trace, "slow", stop_s=100, shutdown=Shutdown.within(1)),
    ]
    system = None
    with pytest.raises(BaseException) as caught:  # noqa: PT011, PT012
        async with open_actor_system(children=children, listener=listen) as system:
            for name in "ab":
                await pool.start_child(worker(trace, name))
    assert [str(error) for error in leaves(caught.value)] == [kind]
    assert len(calls) == 1
    assert trace.names("end") == trace.names("start")[::-1] or kind != "Started"
    if system is not None:
        assert isinstance(system.report.failure, Fatal)
        assert trio.current_time() == 1


async def test_a_fatal_listener_stops_a_running_tree(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Two of them, and the block's own error: all are raised together."""
    trace = Trace()

    def first(event: LifecycleEvent) -> None:
        if type(event).__name__ == "Exited":
            raise SystemExit(3)

    def second(event: LifecycleEvent) -> None:
        if type(event).__name__ == "SystemStopped":
            raise Fatal("second")

    children = [worker(trace, "A", stop_s=5), crasher(trace, "B", after_s=1)]
    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012
        async with open_actor_system(children=children, listener=first) as system:
            system.add_listener(second)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("of the block")
    assert [type(e) for e in caught.value.exceptions] == [SystemExit, Fatal, ValueError]
    assert trace.times("end", "A") == [6]


async def test_a_listener_that_raises_cancelled_is_only_removed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It was saved from elsewhere; nobody has cancelled anything."""
    saved: list[BaseException] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep(1)
        except trio.Cancelled as error:
            saved.append(error)
            raise

    def listen(event: LifecycleEvent) -> None:
        saved.append(ValueError())
        raise saved[0]

    async with open_actor_system(children=[worker(Trace(), "A")], listener=listen) as system:
        await trio.sleep(1)
        assert not system.stopping
    assert system.report.clean
    assert len(saved) == 2


async def test_what_children_left_behind_is_bounded(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A pool's children come and go for months; the report must not grow with them."""
    pool = DynamicSupervisor()

    async def late(ctx: Context[object]) -> None:
        ctx.started()
        await ctx.stop_requested.wait()
        raise ValueError(ctx.name)

    async with open_actor_system(children=[pool.spec(id="pool")]) as system:
        for n in range(150):
            await pool.start_child(worker(Trace(), f"k{n}", shutdown=Shutdown.KILL))
            await pool.stop_child(f"k{n}")
            await pool.start_child(ChildSpec(id=f"e{n}", start=late))
            await pool.stop_child(f"e{n}")
        assert not system.report.killed
        await pool.start_child(worker(Trace(), "last", shutdown=Shutdown.KILL))
    assert list(system.report.killed) == ["pool/last"]
    assert [late.path for late in system.report.errors] == [f"pool/e{n}" for n in range(50, 150)]
    assert system.report.errors_dropped == 50
    assert not system.report.clean


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, Fatal])
async def test_a_fatal_exception_is_the_exit_that_listeners_see(
    autojump_clock: trio.testing.MockClock, kind: type[BaseException]
) -> None:
    """Nobody killed the child: it crashed, with that exception, and its watchers are told so."""
    trace = Trace()

    async def bad(ctx: Context[object]) -> None:
        ctx.started()
        await trio.sleep(1)
        raise kind

    children = [ChildSpec(id="bad", start=bad)]
    refs = []
    with pytest.raises(BaseExceptionGroup):  # noqa: PT012
        async with open_actor_system(children=children, listener=trace.listen) as system:
            refs.append(system.ref("bad"))
            await trio.sleep_forever()
    [exited], [ended] = trace.of(Exited), trace.of(Ended)
    for exit_ in (exited.exit, ended.exit, await refs[0].watch()):
        assert isinstance(exit_, Crashed)
        assert type(exit_.error) is kind
    assert exited.level == logging.ERROR
    assert not system.report.errors
    assert not system.report.killed
