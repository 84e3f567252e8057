"""Events, and listeners that cannot hurt."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from shove_actors.actors import (
    BackingOff,
    Backoff,
    Ended,
    Exited,
    LifecycleEvent,
    Started,
    StopRequested,
    SystemStopped,
    open_actor_system,
)

from .kit import MANY, Trace, crasher, worker


async def test_check44_a_listener_that_raises_is_removed(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    trace = Trace()
    calls: list[LifecycleEvent] = []

    def bad(event: LifecycleEvent) -> None:
        calls.append(event)
        raise RuntimeError("listener")

    with caplog.at_level(logging.ERROR, "shove_actors.actors"):
        async with open_actor_system(
            children=[worker(trace, n) for n in "AB"], listener=bad
        ) as system:
            system.add_listener(trace.listen)
    assert len(calls) == 1
    assert len(caplog.records) == 1
    assert trace.names("end") == ["B", "A"]
    assert isinstance(trace.events[-1], SystemStopped)
    assert system.report.clean


async def test_the_story_of_a_child(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    spec = crasher(trace, "A", times=1, after_s=1, backoff=Backoff(initial_s=2, max_s=2))
    async with open_actor_system(children=[spec], intensity=MANY, listener=trace.listen):
        await trio.sleep(5)
    assert [(type(e), e.at, e.path) for e in trace.events] == [
        (Started, 0, "A"),
        (Exited, 1, "A"),
        (BackingOff, 1, "A"),
        (Started, 3, "A"),
        (StopRequested, 5, "A"),
        (Exited, 5, "A"),
        (Ended, 5, "A"),
        (SystemStopped, 5, ""),
    ]


async def test_removed_listeners_hear_nothing(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    async with open_actor_system(children=[worker(trace, "A")], listener=trace.listen) as system:
        heard = len(trace.events)
        system.remove_listener(trace.listen)
        system.remove_listener(trace.listen)
    assert len(trace.events) == heard
