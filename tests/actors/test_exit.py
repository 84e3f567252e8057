"""Which errors are a crash, and which must go through."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from shove_actors.actors import (
    ChildSpec,
    Context,
    Crashed,
    Exited,
    Intensity,
    Killed,
    Returned,
    Shutdown,
    Stopped,
    open_actor_system,
    supervisor,
)
from shove_actors.actors._exit import describe, split_error

from .kit import MANY, Trace, leaves, worker

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup, ExceptionGroup


@pytest.mark.nasty
async def test_check23_error_next_to_a_cancellation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A kill leaves the child as a group of ValueError and Cancelled: only the error counts."""
    trace = Trace()

    async def clumsy() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("in finally")

    async def start(ctx: Context[object]) -> None:
        trace.add("start", "A")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clumsy)
            nursery.start_soon(trio.sleep_forever)
            ctx.started()

    async with open_actor_system(
        children=[ChildSpec(id="A", start=start, shutdown=Shutdown.KILL)], listener=trace.listen
    ) as system:
        await trio.sleep(1)
    assert trace.names("start") == ["A"]
    [late] = system.report.errors
    assert [type(e) for e in leaves(late.error)] == [ValueError]
    [exited] = trace.of(Exited)
    assert isinstance(exited.exit, Crashed)


async def test_check24_a_group_is_one_crash(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        trace.add("start", "A")
        ctx.started()
        if ctx.incarnation == 1:
            raise ExceptionGroup("two", [ValueError(), OSError()])
        await ctx.stop_requested.wait()

    # With this budget a second restart, or a second crash counted, would end the system.
    async with open_actor_system(
        children=[ChildSpec(id="A", start=start)],
        intensity=Intensity(max_restarts=1, period_s=60),
        listener=trace.listen,
    ) as system:
        await trio.sleep(1)
        assert trace.names("start") == ["A", "A"]
        assert system.snapshot().children[0].restarts == 1
        [exited] = trace.of(Exited)
        assert isinstance(exited.exit, Crashed)
        assert [type(e) for e in leaves(exited.exit.error)] == [ValueError, OSError]


def _raise(error: BaseException) -> None:
    raise error


def _interrupt_myself() -> None:
    signal.raise_signal(signal.SIGINT)
    for _ in range(1000):
        pass


async def _fatal(act: Callable[[], None], nested: bool) -> BaseExceptionGroup[BaseException]:
    """B acts at t=1: nothing is restarted, everybody stops in order. Returns what is raised."""
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        trace.add("start", "B")
        ctx.started()
        await trio.sleep(1)
        try:
            act()
        finally:
            trace.add("end", "B")

    children = [worker(trace, "A", stop_s=1), ChildSpec(id="B", start=start), worker(trace, "C")]
    if nested:
        children = [supervisor(id="group", children=children, intensity=MANY)]
    with pytest.raises(BaseExceptionGroup) as caught:
        async with open_actor_system(children=children, intensity=MANY):
            await trio.sleep_forever()
    assert trace.names("start") == ["A", "B", "C"]
    assert trace.at("end") == {"B": 1, "C": 1, "A": 2}
    assert trace.names("end") == ["B", "C", "A"]
    assert trio.current_time() == 2
    return caught.value


@pytest.mark.nasty
@pytest.mark.parametrize("nested", [False, True])
async def test_check25_fatal_in_a_group(
    autojump_clock: trio.testing.MockClock, nested: bool
) -> None:
    """Both leaves reach the caller, and each once."""
    error = BaseExceptionGroup("both", [ValueError(), KeyboardInterrupt()])
    caught = await _fatal(lambda: _raise(error), nested)
    assert list(leaves(caught)) == list(leaves(error))


@pytest.mark.nasty
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("act", "kind"),
    [
        pytest.param(lambda: _raise(KeyboardInterrupt()), KeyboardInterrupt, id="interrupt"),
        pytest.param(lambda: _raise(SystemExit(3)), SystemExit, id="exit"),
        pytest.param(_interrupt_myself, KeyboardInterrupt, id="signal"),
    ],
)
async def test_check26_fatal_exceptions(
    autojump_clock: trio.testing.MockClock,
    act: Callable[[], None],
    kind: type[BaseException],
    nested: bool,
) -> None:
    """Raised, or by a real SIGINT in a child that is busy."""
    assert [type(e) for e in leaves(await _fatal(act, nested))] == [kind]


async def test_fatal_exception_while_starting(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with open_actor_system(children=[worker(trace, "A"), ChildSpec(id="B", start=start)]):
            raise AssertionError("not reached")
    assert trace.names("end") == ["A"]


_leaf = st.sampled_from([ValueError, OSError, KeyboardInterrupt, SystemExit]).map(lambda t: t())


_errors = st.recursive(
    _leaf,
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(
        lambda parts: BaseExceptionGroup("group", parts)
    ),
    max_leaves=8,
)


@given(error=_errors)
def test_split_loses_nothing(error: BaseException) -> None:
    ordinary, rest = split_error(error)
    found = {id(e) for part in (ordinary, rest) if part is not None for e in leaves(part)}
    assert found == {id(e) for e in leaves(error)}
    if ordinary is not None:
        assert all(isinstance(e, Exception) for e in leaves(ordinary))
    assert (rest is None) is all(isinstance(e, Exception) for e in leaves(error))


def test_a_group_of_ordinary_errors_is_itself() -> None:
    group = ExceptionGroup("g", [ValueError(), OSError()])
    assert split_error(group) == (group, None)


def test_descriptions_name_types_not_texts() -> None:
    assert describe(Crashed(error=ValueError("payload"))) == "crashed with ValueError"
    assert len({describe(e) for e in (Returned(), Stopped(), Killed())}) == 3


class _Bundle(BaseExceptionGroup[BaseException]):
    """A group that is no `Exception`, whatever it holds: only the plain class adapts itself."""

    def derive(self, excs: Sequence[BaseException]) -> _Bundle:
        return _Bundle(self.message, excs)


def test_a_foreign_group_of_ordinary_errors_is_a_crash() -> None:
    """It must be looked into; a library that subclasses the base would take the tree down."""
    ordinary, rest = split_error(_Bundle("b", [ValueError(), OSError()]))
    assert rest is None
    assert ordinary is not None
    assert [type(e) for e in leaves(ordinary)] == [ValueError, OSError]


async def test_a_crash_with_a_foreign_group_is_restarted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        trace.add("start", "A")
        ctx.started()
        if ctx.incarnation == 1:
            raise _Bundle("b", [ValueError(), OSError()])
        await ctx.stop_requested.wait()

    async with open_actor_system(
        children=[ChildSpec(id="A", start=start)], listener=trace.listen
    ) as system:
        await trio.sleep(1)
        assert trace.names("start") == ["A", "A"]
        [exited] = trace.of(Exited)
        assert isinstance(exited.exit, Crashed)
        assert [type(e) for e in leaves(exited.exit.error)] == [ValueError, OSError]
    assert system.report.clean


@pytest.mark.parametrize("nested", [False, True])
async def test_every_fatal_exception_reaches_the_caller(
    autojump_clock: trio.testing.MockClock, nested: bool
) -> None:
    """B is interrupted; that stops C, which answers with an exit of its own."""
    trace = Trace()

    async def interrupted(ctx: Context[object]) -> None:
        ctx.started()
        await trio.sleep(1)
        raise KeyboardInterrupt

    async def exits(ctx: Context[object]) -> None:
        ctx.started()
        await ctx.stop_requested.wait()
        raise SystemExit(3)

    children = [
        worker(trace, "A"),
        ChildSpec(id="B", start=interrupted),
        ChildSpec(id="C", start=exits),
    ]
    if nested:
        children = [supervisor(id="group", children=children)]
    with pytest.raises(BaseExceptionGroup) as caught:
        async with open_actor_system(children=children):
            await trio.sleep_forever()
    assert sorted(type(e).__name__ for e in leaves(caught.value)) == [
        "KeyboardInterrupt",
        "SystemExit",
    ]
    assert trace.at("end") == {"A": 1}
