"""What may be handed over as a handler, and what is said about everything else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from shove_actors import HandlerError, MessageMetadata, Outcome, Topic, TopologyBuilder, UsageError
from shove_actors.runtime._handler import resolve
from shove_actors.runtime._options import ConsumerOptions
from shove_actors.runtime._registration import Registration

from .world import Journal, Order, World, consuming


async def one(message: object) -> object:
    return ("one", message)


async def two(message: object, metadata: object) -> object:
    return ("two", message, metadata)


async def three(message: object, metadata: object, context: object) -> object:
    return ("three", message, metadata, context)


async def optional(message: object, metadata: object = "default") -> object:
    return ("optional", message, metadata)


async def everything(*args: object) -> object:
    return ("everything", *args)


async def with_keywords(message: object, *, verbose: bool = False) -> object:
    return ("with_keywords", message)


def sync_one(message: object) -> object:
    return ("sync_one", message)


def sync_three(message: object, metadata: object, context: object) -> object:
    return ("sync_three", message, metadata, context)


class Methods:
    async def handle(self, message: object, metadata: object, context: object) -> object:
        return ("handle", message, metadata, context)

    async def handle_dead(self, message: object, metadata: object) -> object:
        return ("handle_dead", message, metadata)


class OneMethod:
    async def handle(self, message: object) -> object:
        return ("OneMethod", message)


class SyncMethod:
    def handle(self, message: object, metadata: object) -> object:
        return ("SyncMethod", message, metadata)


class Callable_:
    async def __call__(self, message: object, metadata: object) -> object:
        return ("Callable_", message, metadata)


class StaticMethod:
    @staticmethod
    async def handle(message: object) -> object:
        return ("StaticMethod", message)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: object) -> object:
        return function(*args)

    return wrapper


FORMS: list[tuple[object, tuple[object, ...], bool]] = [
    (one, ("one", "M"), False),
    (two, ("two", "M", "D"), False),
    (three, ("three", "M", "D", "C"), False),
    (optional, ("optional", "M", "default"), False),
    (everything, ("everything", "M", "D", "C"), False),
    (with_keywords, ("with_keywords", "M"), False),
    (lambda message: ("lambda", message), ("lambda", "M"), True),
    (sync_one, ("sync_one", "M"), True),
    (sync_three, ("sync_three", "M", "D", "C"), True),
    (Methods(), ("handle", "M", "D", "C"), False),
    (Methods().handle_dead, ("handle_dead", "M", "D"), False),
    (OneMethod(), ("OneMethod", "M"), False),
    (SyncMethod(), ("SyncMethod", "M", "D"), True),
    (Callable_(), ("Callable_", "M", "D"), False),
    (StaticMethod(), ("StaticMethod", "M"), False),
    (functools.partial(three, context="mine"), ("three", "M", "D", "mine"), False),
    (functools.partial(sync_three, "first"), ("sync_three", "first", "M", "D"), True),
    (decorated(two), ("two", "M", "D"), True),
]


@pytest.mark.parametrize(("handler", "expected", "in_thread"), FORMS)
async def test_forms_of_handlers(
    handler: object, expected: tuple[object, ...], in_thread: bool
) -> None:
    resolved = resolve(handler)
    assert resolved.in_thread is in_thread
    assert await resolved.call("M", "D", "C") == expected
    assert resolved.wants_metadata or "D" not in expected


async def test_dead_letters_have_their_own_method() -> None:
    assert await resolve(Methods(), method="handle_dead").call("M", "D", "C") == (
        "handle_dead", "M", "D",
    )  # fmt: skip
    function = resolve(three, method="handle_dead")
    assert await function.call("M", "D", "C") == ("three", "M", "D", "C")


def none_at_all() -> None: ...


def too_many(a: object, b: object, c: object, d: object) -> None: ...


def keyword_required(message: object, *, must: object) -> None: ...


class NoMethod: ...


class Unfinished:
    handle = "not a method"


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (none_at_all, "takes 0 positional"),
        (too_many, "takes 4 positional"),
        (keyword_required, "must"),
        (NoMethod(), "neither a function nor an object with a `handle` method"),
        (Unfinished(), "neither a function"),
        (7, "neither a function"),
        (None, "neither a function"),
        (Methods, "is a class"),
        (OneMethod, "is a class"),
    ],
)
def test_what_cannot_be_called_is_refused_by_name(handler: object, says: str) -> None:
    with pytest.raises(HandlerError, match=says):
        resolve(handler)


def test_either_a_handler_or_a_factory() -> None:
    topic = Topic(Order, TopologyBuilder("q").build())
    options = ConsumerOptions()
    with pytest.raises(UsageError, match="either a handler or factory="):
        Registration(topic, options)
    with pytest.raises(UsageError, match="either a handler or factory="):
        Registration(topic, options, handler=one, factory=Methods)
    with pytest.raises(HandlerError, match="takes 4"):
        Registration(topic, options, factory=lambda: too_many)


async def test_each_consumer_has_its_own_object_of_the_factory(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    made: list[Counting] = []

    class Counting:
        def __init__(self) -> None:
            made.append(self)
            self.mine = 0
            self.busy = False

        async def handle(self, message: Order) -> Outcome:
            assert not self.busy  # one consumer, one message at a time
            self.busy = True
            await trio.sleep(1)
            self.busy = False
            self.mine += 1
            done.add(message.name)
            return Outcome.ACK

    done: Journal[str] = Journal()
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, None, factory=Counting, consumers=3):
            await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(12)])
            await done.until(12)
    assert len(made) == 3
    assert [each.mine for each in made] == [4, 4, 4]


async def test_plain_function_runs_in_a_thread_and_its_exceptions_are_retries(
    memory_world: World,
) -> None:
    topic = memory_world.topic(lambda b: b.hold_queue(0.01).dlq())
    main_thread = trio.lowlevel.current_trio_token()
    runs: Journal[int] = Journal()

    def handle(message: Order, metadata: MessageMetadata) -> Outcome:
        trio.from_thread.run_sync(runs.add, metadata.retry_count, trio_token=main_thread)
        if metadata.retry_count < 2:
            raise ValueError("in a thread")
        return Outcome.ACK

    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, handle):
            await broker.publisher().publish(topic, Order("x"))
            await runs.until(3)
            await memory_world.until_kept(broker, topic.queue, 0)
    assert runs.entries == [0, 1, 2]


async def test_one_context_for_the_whole_group(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, other = memory_world.topic(), memory_world.topic()
    shared = object()
    seen: Journal[object] = Journal()

    async def handle(message: Order, metadata: MessageMetadata, context: object) -> Outcome:
        seen.add(context)
        return Outcome.ACK

    async with memory_world.broker(topic, other) as broker:
        for way in ("argument", "method"):
            group = broker.consumer_group(context=shared if way == "argument" else None)
            group.register(topic, handle)
            if way == "method":
                assert group.with_context(shared) is group
            group.register(other, handle)
            async with trio.open_nursery() as nursery:
                await nursery.start(group.serve)
                for each in (topic, other):
                    await broker.publisher().publish(each, Order("x"))
                await seen.until(2 if way == "argument" else 4)
                group.stop()
            with pytest.raises(UsageError, match="has been started"):
                group.with_context(None)
    assert seen.entries == [shared] * 4
