"""Wrong values are refused where they are given: named, with the rule and the fix."""

from __future__ import annotations

import functools
import inspect
import math
import random
import sys
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest
import trio
import trio.testing

from shove_actors._errors import UsageError
from shove_actors.actors import (
    AutoShutdown,
    Backoff,
    ChildSpec,
    Context,
    DynamicSupervisor,
    Intensity,
    LifecycleEvent,
    MailboxSpec,
    OnRestart,
    OnStop,
    Restart,
    Shutdown,
    Strategy,
    of_class,
    open_actor_system,
    supervisor,
)
from shove_actors.actors._checks import shown
from shove_actors.actors._lifecycle import Listeners
from shove_actors.actors._spec import SupervisorSpec

from .kit import echo

NAN, INF, HUGE = math.nan, math.inf, 10**400
NO_SECONDS = ["1", None, NAN, -1, True, HUGE, b"1", [1]]


class Receiving:
    def __init__(self, ctx: Context[Any]) -> None: ...

    async def receive(self, message: Any) -> None: ...

    async def start(self, ctx: Context[Any]) -> None:
        ctx.started()

    def plain(self, ctx: Context[Any]) -> None: ...

    @staticmethod
    async def static(ctx: Context[Any]) -> None: ...

    @classmethod
    async def of_the_class(cls, ctx: Context[Any]) -> None: ...


class Called:
    async def __call__(self, ctx: Context[Any]) -> None: ...


class CalledPlainly:
    def __call__(self, ctx: Context[Any]) -> None: ...


class CalledAsStream:
    async def __call__(self, ctx: Context[Any]) -> AsyncIterator[int]:
        yield 1


class Awaited:
    def __init__(self, ctx: Context[Any]) -> None: ...

    def __await__(self) -> Iterator[Any]:
        return iter(())


class Making(type):
    def __call__(cls, *args: Any) -> Any:
        return echo(*args)


class MadeElsewhere(metaclass=Making): ...


class Unsigned:
    """A callable whose parameters nobody can know."""

    __signature__ = "none"

    async def __call__(self, *args: Any) -> None: ...


def plain(ctx: Context[Any]) -> None: ...


def generator(ctx: Context[Any]) -> Iterator[int]:
    yield 1


async def stream(ctx: Context[Any]) -> AsyncIterator[int]:
    yield 1


async def nothing() -> None: ...


async def two(ctx: Context[Any], other: int) -> None: ...


async def keyword(ctx: Context[Any], *, other: int) -> None: ...


def awaitable(ctx: Context[Any]) -> Awaitable[None]:
    return echo(ctx)


def coroutine(ctx: Context[Any]) -> Coroutine[Any, Any, None]:
    raise NotImplementedError


@types.coroutine
def iterable_coroutine(ctx: Context[Any]) -> Iterator[None]:
    yield


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function()

    return wrapper


def child(**options: Any) -> ChildSpec[Any]:
    return ChildSpec(**{"id": "A", "start": echo, **options})


def tree(**options: Any) -> ChildSpec[Any]:
    return supervisor(**{"id": "S", "children": [child()], **options})


#: Without its types, which would refuse some of these.
_PARTIAL: Any = functools.partial

WRONG_STARTS: list[tuple[Any, str]] = [
    (None, "start is None: it must be an async function"),
    (5, "start is 5: .*async def"),
    (DynamicSupervisor(), "type DynamicSupervisor: .*pool.spec"),
    (child(), "type ChildSpec: "),
    (Receiving, "class Receiving: .*of_class"),
    (plain, "function plain: it is not async"),
    (lambda ctx: None, "<lambda>: it is not async"),
    (generator, "not async"),
    (_PARTIAL(plain), "not async"),
    (Receiving.plain, "not async"),
    (Receiving(None).plain, "not async"),  # type: ignore[arg-type]
    (CalledPlainly(), "type CalledPlainly: it is not async"),
    (stream, "async generator.*Take"),
    (_PARTIAL(_PARTIAL(stream)), "async generator"),
    (CalledAsStream(), "async generator"),
    (nothing, "function nothing: it cannot be called with one argument.*partial"),
    (two, "one argument"),
    (keyword, "one argument"),
    (_PARTIAL(echo, None), "one argument"),
    (Receiving.start, "one argument"),
]

RIGHT_STARTS: list[Any] = [
    echo,
    functools.partial(two, other=1),
    functools.partial(functools.partial(keyword, other=1)),
    Called(),
    functools.partial(Called()),
    Receiving(None).start,  # type: ignore[arg-type]
    Receiving.static,
    Receiving.of_the_class,
    of_class(Receiving),
    awaitable,
    coroutine,
    iterable_coroutine,
    decorated(nothing),
    Awaited,
    MadeElsewhere,
    Unsigned(),
    trio.sleep,
    max,
]


@pytest.mark.parametrize(("start", "message"), WRONG_STARTS)
def test_start_refused(start: Any, message: str) -> None:
    with pytest.raises(
        UsageError, match=rf"(?s)child 'A': start is .*{message.split('start is ')[-1]}"
    ):
        child(start=start)


@pytest.mark.parametrize("start", RIGHT_STARTS)
def test_start_accepted(start: Any) -> None:
    assert child(start=start).start is start


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": 5}, "ChildSpec.id is 5: it must be a str"),
        ({"id": None}, "ChildSpec.id is None: it must be a str"),
        ({"id": ""}, "ChildSpec.id is '': .*empty or blank"),
        ({"id": " \t"}, "empty or blank"),
        ({"id": "a/b"}, "'a/b': it must not contain '/'"),
        ({"restart": "permanent"}, r"restart is 'permanent': .* Write Restart.PERMANENT\."),
        ({"restart": "TRANSIENT"}, r"Write Restart.TRANSIENT\."),
        ({"restart": "always"}, "Write Restart.PERMANENT or Restart.TRANSIENT or Restart.TEMP"),
        ({"restart": None}, "restart is None: "),
        ({"restart": Strategy.ONE_FOR_ONE}, "restart is Strategy.ONE_FOR_ONE: "),
        ({"shutdown": 5}, r"shutdown is 5: .* Write Shutdown.within\(seconds\)"),
        ({"shutdown": None}, "shutdown is None: it must be a Shutdown"),
        ({"mailbox": 10}, r"mailbox is 10: .* Write MailboxSpec\(capacity"),
        ({"backoff": 1.0}, r"backoff is 1.0: it must be a Backoff or None. Write Backoff\(init"),
        ({"significant": "yes"}, "significant is 'yes': it must be True or False"),
        ({"name": 5}, "child 'A': name is 5: "),
        ({"name": " "}, "child 'A': name is ' ': "),
        ({"overrun_s": INF}, "overrun_s is inf: it must be a finite number"),
        ({"start_timeout_s": 0}, "start_timeout_s is 0: .*use None"),
    ],
)
def test_child_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        child(**options)


@pytest.mark.parametrize("value", [*NO_SECONDS, 0, -INF])
@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("overrun_s", lambda s: child(overrun_s=s)),
        ("start_timeout_s", lambda s: child(start_timeout_s=s)),
        ("Intensity.period_s", lambda s: Intensity(period_s=s)),
        ("Backoff.initial_s", lambda s: Backoff(initial_s=s, max_s=1)),
        ("Backoff.max_s", lambda s: Backoff(initial_s=1, max_s=s)),
    ],
)
def test_seconds_above_0(field: str, make: Callable[[Any], object], value: Any) -> None:
    if field == "start_timeout_s" and value is None:
        make(value)
        return
    with pytest.raises(UsageError, match=f"{field} is .* seconds above 0"):
        make(value)


@pytest.mark.parametrize("value", [*NO_SECONDS, -INF])
@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("Shutdown.grace_s", Shutdown),
        ("Shutdown.grace_s", Shutdown.within),
        ("stop_grace_s", lambda s: DynamicSupervisor(stop_grace_s=s)),
        ("Backoff.reset_after_s", lambda s: Backoff(initial_s=1, max_s=1, reset_after_s=s)),
    ],
)
def test_graces(field: str, make: Callable[[Any], object], value: Any) -> None:
    if not field.startswith("Shutdown") and value is None:
        make(value)
        return
    with pytest.raises(UsageError, match=f"{field} is .* 0 or more seconds"):
        make(value)


def test_seconds_accepted() -> None:
    assert Shutdown.within(0) == Shutdown.KILL
    assert Shutdown.within(INF) == Shutdown.INFINITY
    assert child(start_timeout_s=INF, overrun_s=1).start_timeout_s == INF
    DynamicSupervisor(stop_grace_s=INF)
    Backoff(initial_s=1, max_s=1, jitter=1, reset_after_s=0)


@pytest.mark.parametrize("value", [1.5, 2.0, INF, NAN, True, "3", -1])
def test_whole_numbers(value: Any) -> None:
    with pytest.raises(UsageError, match=r"Intensity.max_restarts is .* of at least 0"):
        Intensity(max_restarts=value)
    with pytest.raises(UsageError, match=r"MailboxSpec.capacity is .* of at least 1"):
        MailboxSpec(capacity=value)


@pytest.mark.parametrize("value", [None, 0])
def test_a_mailbox_is_bounded_and_holds_something(value: Any) -> None:
    with pytest.raises(UsageError, match=r"MailboxSpec.capacity"):
        MailboxSpec(capacity=value)


@pytest.mark.parametrize("value", ["0.2", None, NAN, -0.1, 1.1, True])
def test_jitter(value: Any) -> None:
    with pytest.raises(UsageError, match=r"Backoff.jitter is .* fraction"):
        Backoff(initial_s=1, max_s=2, jitter=value)


def test_backoff_order() -> None:
    with pytest.raises(UsageError, match="at least initial_s"):
        Backoff(initial_s=2, max_s=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_restart": "clear"}, r"on_restart is 'clear': .* Write OnRestart.CLEAR\."),
        ({"on_stop": OnRestart.CLEAR}, "on_stop is OnRestart.CLEAR: .* OnStop.NOW or OnStop.DRAIN"),
        ({"on_stop": "drain"}, r"Write OnStop.DRAIN\."),
    ],
)
def test_mailbox_policies(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MailboxSpec(**options)
    MailboxSpec(on_restart=OnRestart.CLEAR, on_stop=OnStop.DRAIN)


_POOL = DynamicSupervisor()

WRONG_TREES: list[tuple[dict[str, Any], str]] = [
    ({"strategy": "one_for_all"}, r"strategy is 'one_for_all': .* Write Strategy.ONE_FOR_ALL\."),
    ({"auto_shutdown": "any"}, r"auto_shutdown is 'any': .* Write AutoShutdown.ANY\."),
    ({"intensity": 3}, r"intensity is 3: .* Write Intensity\(max_restarts"),
    ({"children": None}, r"children is None: .* list or tuple of ChildSpec"),
    ({"children": child()}, "children is an object of type ChildSpec: it must be a list"),
    ({"children": {child()}}, "children is an object of type set: .*in start order"),
    ({"children": {"a": child()}}, "children is an object of type dict: "),
    ({"children": "ab"}, "children is 'ab': "),
    ({"children": [echo]}, r"one of children is the function echo: .*Write ChildSpec\("),
    ({"children": [_POOL]}, "type DynamicSupervisor: .*pool.spec"),
    (
        {"children": [_POOL.spec(id="a"), tree(id="t", children=[_POOL.spec(id="b")])]},
        "DynamicSupervisor at 't/b' stands in another place",
    ),
]


@pytest.mark.parametrize(("options", "message"), WRONG_TREES)
async def test_trees_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tree(**options)
    with pytest.raises(UsageError, match=message):
        async with open_actor_system(**{"children": [child()], **options}):
            raise AssertionError("not reached")


def test_supervisor_arguments() -> None:
    with pytest.raises(UsageError, match="restart is 'permanent'"):
        tree(restart="permanent")
    with pytest.raises(UsageError, match="no child is significant"):
        tree(restart=Restart.TRANSIENT, auto_shutdown=AutoShutdown.ANY)
    with pytest.raises(UsageError, match=r"SupervisorSpec.children is .*list.*supervisor\(\)"):
        SupervisorSpec(children=[child()])  # type: ignore[arg-type]
    made = tree(children=(child(id=i) for i in "ab"), intensity=Intensity(max_restarts=2)).start
    assert isinstance(made, SupervisorSpec)
    assert [each.id for each in made.children] == ["a", "b"]
    assert made.intensity.max_restarts == 2


def test_pools_are_told_apart() -> None:
    tree(children=[DynamicSupervisor().spec(id="a"), DynamicSupervisor().spec(id="b"), child()])


@pytest.mark.parametrize("value", [3, "3"])
def test_pool_intensity(value: Any) -> None:
    with pytest.raises(UsageError, match="DynamicSupervisor intensity is"):
        DynamicSupervisor(intensity=value)


async def test_arguments_of_a_pool(autojump_clock: trio.testing.MockClock) -> None:
    pool = DynamicSupervisor()
    wrong: Any
    async with open_actor_system(children=[pool.spec(id="pool")]):
        ref = await pool.start_child(child())
        for wrong in (echo, None, "A", pool):
            with pytest.raises(UsageError, match=r"start_child spec is .* Write ChildSpec\("):
                await pool.start_child(wrong)
        significant = child(id="B", significant=True, restart=Restart.TEMPORARY)
        with pytest.raises(UsageError, match=r"no auto_shutdown.*Drop significant"):
            await pool.start_child(significant)
        for wrong in (5, None, child()):
            with pytest.raises(UsageError, match=r"stop_child child is .*ActorRef or the id"):
                await pool.stop_child(wrong)
        for wrong in ("1", NAN, -1, True, HUGE):
            with pytest.raises(UsageError, match=r"stop_child grace_s is .* 0 or more"):
                await pool.stop_child(ref, grace_s=wrong)
        assert len(pool) == 1
        await pool.stop_child(ref, grace_s=0)
        assert len(pool) == 0


async def test_arguments_of_a_system(autojump_clock: trio.testing.MockClock) -> None:
    wrong: Any
    async with open_actor_system(children=[child()], rng=random.Random(1)) as system:
        for wrong in (5, None, "", b"A"):
            with pytest.raises(UsageError, match="path is "):
                system.ref(wrong)
            with pytest.raises(UsageError, match="path is "):
                system.dynamic(wrong)
            with pytest.raises(UsageError, match="register name is "):
                system.register(wrong, system.ref("A"))
        for wrong in ("A", None, child()):
            with pytest.raises(UsageError, match=r"register ref is .*system.ref\(path\)"):
                system.register("name", wrong)
        with pytest.raises(UsageError, match="listener is the function stream: it is async"):
            system.add_listener(stream)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rng": 5}, r"rng is 5: .* Write random.Random\(seed\)"),
        ({"rng": random}, "rng is an object of type module: "),
        ({"name": 5}, "open_actor_system name is 5"),
        ({"name": " "}, "open_actor_system name is ' '"),
        ({"listener": nothing}, "open_actor_system listener is the function nothing: it is async"),
        ({"listener": 5}, "open_actor_system listener is 5: "),
    ],
)
async def test_options_of_a_system(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        async with open_actor_system(**{"children": [child()], **options}):
            raise AssertionError("not reached")


async def listening(event: LifecycleEvent) -> None: ...


@pytest.mark.parametrize(
    ("listener", "message"),
    [
        (None, "listener is None: it must be a function of one event"),
        ([], "type list: it must be a function"),
        (listening, "never awaited"),
        (functools.partial(listening), "never awaited"),
        (Called(), "never awaited"),
        (stream, "never awaited"),
        (lambda: None, "one argument, the event"),
    ],
)
def test_listener_refused(listener: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Listeners().add(listener)


@pytest.mark.parametrize("listener", [[].append, print, lambda event: None, CalledPlainly()])
def test_listener_accepted(listener: Any) -> None:
    Listeners().add(listener)


def _class(**attributes: Any) -> type:
    return type("Made", (), {"__init__": lambda self, ctx: None, **attributes})


async def _receive_stream(self: Any, message: Any) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (5, "make is 5: it must be a class"),
        (None, "it must be a class"),
        (Receiving(None), "it must be a class"),  # type: ignore[arg-type]
        (echo, "it is async, but an object is made by a plain call"),
        (stream, "it is async, but"),
        (type("Bare", (), {"receive": Receiving.receive}), r"one argument, the Context.*__init__"),
        (_class(), "the class Made: it has no method `receive`.*async def receive"),
        (functools.partial(_class()), "it has no method `receive`"),
        (_class(receive=5), "its `receive` is not a method"),
        (_class(receive=None), "its `receive` is not a method"),
        (_class(receive=lambda self, message: None), "its `receive` is not async"),
        (_class(receive=_receive_stream), "its `receive` is not async"),
    ],
)
def test_of_class_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        of_class(make)


@pytest.mark.parametrize(
    "make",
    [
        Receiving,
        functools.partial(Receiving),
        lambda ctx: Receiving(ctx),
        _class(receive=awaitable),
        _class(receive=property(lambda self: echo)),
        _class(__annotations__={"receive": "Callable[[str], Awaitable[None]]"}),
        _class(__getattr__=lambda self, name: echo),
    ],
)
def test_of_class_accepted(make: Any) -> None:
    assert child(start=of_class(make)).id == "A"


def test_marked_functions_are_async() -> None:
    if sys.version_info >= (3, 12):
        child(start=inspect.markcoroutinefunction(lambda ctx: echo(ctx)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (HUGE, "a huge int"),
        ("x" * 100, "'" + "x" * 59 + "..."),
        (Restart.PERMANENT, "Restart.PERMANENT"),
        (Receiving, "the class Receiving"),
        (plain, "the function plain"),
        (b"secret", "an object of type bytes"),
    ],
)
def test_values_in_messages(value: Any, text: str) -> None:
    assert shown(value) == text
