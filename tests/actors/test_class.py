"""Actors written as classes."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shove_actors.actors import (
    ActorGone,
    ChildSpec,
    Context,
    StartFailed,
    of_class,
    open_actor_system,
)


class Counter:
    opened: list[str]

    def __init__(self, ctx: Context[str]) -> None:
        self.ctx = ctx
        self.seen = 0

    async def receive(self, message: str, /) -> None:
        if message == "boom":
            raise ValueError
        self.seen += 1
        self.ctx.reply(self.seen)


async def test_one_object_per_incarnation(autojump_clock: trio.testing.MockClock) -> None:
    async with open_actor_system(children=[ChildSpec(id="A", start=of_class(Counter))]) as system:
        ref = system.ref("A")
        assert [await ref.ask("m") for _ in range(3)] == [1, 2, 3]
        with pytest.raises(ActorGone):
            await ref.ask("boom")
        assert await ref.ask("m") == 1


async def test_context_manager_is_entered_and_left(autojump_clock: trio.testing.MockClock) -> None:
    story: list[str] = []

    class Resource(Counter):
        async def __aenter__(self) -> Resource:
            story.append(f"open {self.ctx.incarnation}")
            return self

        async def __aexit__(self, *exc: object) -> None:
            story.append(f"close {self.ctx.incarnation}")

    async with open_actor_system(children=[ChildSpec(id="A", start=of_class(Resource))]) as system:
        await system.ref("A").tell("boom")
        await trio.sleep(1)
        assert story == ["open 1", "close 1", "open 2"]
    assert story[-1] == "close 2"


async def test_pc112_error_in_start_up_is_not_masked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The original error reaches the supervisor; clean-up without state is not attempted."""
    left: list[str] = []

    class Broken(Counter):
        async def __aenter__(self) -> Broken:
            raise OSError("the real reason")

        async def __aexit__(self, *exc: object) -> None:
            left.append("exit")

    class BrokenInit(Broken):
        def __init__(self, ctx: Context[str]) -> None:
            raise OSError("the real reason")

    for cls in (Broken, BrokenInit):
        with pytest.raises(StartFailed) as caught:
            async with open_actor_system(children=[ChildSpec(id="A", start=of_class(cls))]):
                raise AssertionError("not reached")
        assert isinstance(caught.value.__cause__, OSError)
        assert str(caught.value.__cause__) == "the real reason"
    assert left == []
