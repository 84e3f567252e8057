"""Keyed shards: owners that are killed, stopped, resumed, drained, and joined by others.

`SHOVE_KEYED_CHAOS=100` runs a hundred seeded histories instead of two; each takes about 20 s.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio

from tests.support import wait_until

from .launcher import SOON_S, Child
from .notes import HARD_EXIT, Event, Note
from .overlaps import out_of_order
from .support import World
from .support import until as eventually

# Waits for real leases; `pytest -m slow` (CI does).
pytestmark = [pytest.mark.server, pytest.mark.slow]

LEASE_S = 1.5
OPTIONS: dict[str, Any] = {"work_s": 0.02, "ack_wait": LEASE_S}
SEEDS = int(os.environ.get("SHOVE_KEYED_CHAOS", "2"))

#: What ends so soon after a process was resumed may have been in the pass in which it was stopped,
#: unless something else shows that this pass is over. A machine under load takes its time.
SAME_PASS_S = 2.0

Call = tuple[Event, float]


def calls_of(at: World, stops: dict[str, list[tuple[int, float]]]) -> list[Call]:
    """Each handler call with its end. `stops`: when a process was stopped, and resumed or killed.

    What was cancelled when a stopped process went on had ended when it was stopped: nothing of it
    ran since. What was ready to run in the very pass in which the process was stopped finishes its
    step when it is resumed; nobody can prevent that (docs/operations.md), and it settles nothing.
    That pass is over once another handler was interrupted, or begun.

    One step was under way when the process was stopped, and that may have been the beginning of a
    handler: behind the last look at the lease, before the handler's first line. So the first thing
    that is heard after the resumption may be that it began. If it never got further, it began and
    ended when the process was stopped.
    """

    def cut_short(start: Event) -> Call | None:
        for stopped, resumed in stops.get(start.who, ()):
            at_once = stopped < start.at and resumed <= start.at < resumed + SAME_PASS_S * 1e9
            if at_once and not any(
                e.who == start.who and resumed <= e.at < start.at for e in everything
            ):
                return msgspec.structs.replace(start, at=stopped), stopped
        return None

    running: dict[tuple[str, int], Event] = {}
    found: list[Call] = []
    everything = [*at.events("start"), *at.events("end"), *at.events("interrupted")]
    for event in sorted(everything, key=lambda e: e.at):
        name = (event.who, event.sequence)
        if event.what == "start":
            running[name] = event
            continue
        start = running.pop(name)
        end: float = event.at
        for stopped, resumed in stops.get(event.who, ()):
            last_pass = event.at - resumed < SAME_PASS_S * 1e9 and not any(
                other.who == event.who and other.what != "end" and resumed <= other.at < event.at
                for other in everything
            )
            if start.at <= stopped <= event.at and (event.what == "interrupted" or last_pass):
                end = stopped
                break
        early = cut_short(start) if event.what == "interrupted" else None
        found.append(early or (start, end))
    for start in running.values():
        early = cut_short(start)
        if early is not None:
            found.append(early)
            continue
        ended = [stopped for stopped, _ in stops.get(start.who, ()) if stopped >= start.at]
        found.append((start, min(ended, default=float("inf"))))
    return sorted(found, key=lambda call: call[0].at)


def stood_still(at: World) -> dict[str, list[tuple[int, float]]]:
    """When a process stood still without our doing, on a machine that is short of processors.

    Its handlers take 20 ms. One that has some running and says nothing for half of its lease has
    not run meanwhile; it is as if it had been stopped.
    """
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    running: dict[str, set[int]] = defaultdict(set)
    latest: dict[str, int] = {}
    everything = [*at.events("start"), *at.events("end"), *at.events("interrupted")]
    for event in sorted(everything, key=lambda e: e.at):
        if running[event.who] and event.at - latest[event.who] > LEASE_S / 2 * 1e9:
            found[event.who].append((latest[event.who], event.at))
        latest[event.who] = event.at
        if event.what == "start":
            running[event.who].add(event.sequence)
        else:
            running[event.who].discard(event.sequence)
    return found


def two_of_a_key(calls: list[Call]) -> list[str]:
    running: dict[str, Call] = {}
    found = []
    for start, end in calls:
        before = running.get(start.key)
        if before is not None and start.at < before[1]:
            late = (before[1] - start.at) / 1e6
            found.append(
                f"{start.id} of {start.key} began in {start.who} at {start.at}, {late:.1f} ms "
                f"before {before[0].id} ended in {before[0].who}"
            )
        if before is None or end > before[1]:
            running[start.key] = (start, end)
    return found


def check(at: World, stops: dict[str, list[tuple[int, float]]], messages: int) -> list[Call]:
    calls = calls_of(at, stops)
    done: dict[int, int] = {}
    for event in at.events("end"):
        done.setdefault(event.sequence, event.at)
    assert len(done) == messages, "lost"
    assert two_of_a_key(calls) == [], dict(stops)
    assert out_of_order(calls, done) == []
    return calls


def ended(at: World) -> int:
    return len({event.sequence for event in at.events("end")})


async def until(at: World, count: int) -> None:
    await wait_until(lambda: ended(at) >= count, 90.0, interval=0.02)


@pytest.mark.limit(150)
async def test_processes_join_drain_and_die(world: Callable[..., World]) -> None:
    at = world("keyed", shards=3)
    messages = 1500
    await at.publish(*(Note(f"m{n}", "work", key=f"key-{n % 40}") for n in range(messages)))
    first = await at.start(**OPTIONS)
    second = await at.start(**OPTIONS)
    await until(at, 100)
    first.signal(signal.SIGTERM)
    assert await first.ended() == 0, first.log
    left = ended(at)
    assert left < messages, "it left too late to prove anything"
    await until(at, left + 100)
    third = await at.start(**OPTIONS)
    await second.kill()
    died = time.monotonic_ns()
    await at.quiet(60.0)
    calls = check(at, {second.plan.name: [(died, died)]}, messages)
    # Only what the killed one held may have run again.
    assert 0 <= len(calls) - messages <= 3 * 32
    third.signal(signal.SIGTERM)
    assert await third.ended(SOON_S) == 0, third.log


@pytest.mark.limit(120)
async def test_an_owner_is_stopped_and_goes_on(world: Callable[..., World]) -> None:
    """Its handlers are cancelled where they slept, and it settles nothing."""
    at = world("keyed", shards=1)
    await at.publish(*(Note(f"m{n}", "gate", key=f"key-{n % 5}") for n in range(10)))
    one = await at.start(**OPTIONS)
    await wait_until(lambda: len(at.events()) == 5, SOON_S)
    two = await at.start(**OPTIONS)
    await trio.sleep(LEASE_S)
    one.signal(signal.SIGSTOP)
    stopped = time.monotonic_ns()
    await wait_until(lambda: len(at.events(who=two.plan.name)) == 5, 30.0)
    one.signal(signal.SIGCONT)
    resumed = time.monotonic_ns()
    await wait_until(lambda: len(at.events("interrupted", who=one.plan.name)) == 5, SOON_S)
    at.open_gate()
    await at.quiet(30.0)
    check(at, {one.plan.name: [(stopped, resumed)]}, 10)
    assert {event.who for event in at.events("end")} == {two.plan.name}


@pytest.mark.limit(240)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_chaos(world: Callable[..., World], seed: int) -> None:
    """Two to three processes; owners are killed, stopped for a while, drained, replaced."""
    rng = random.Random(seed)
    at = world("keyed", shards=rng.choice((1, 2, 4)))
    keys = rng.choice((5, 30))
    messages = 600
    await at.publish(
        *(Note(f"m{n}", "work", key=f"key-{rng.randrange(keys)}") for n in range(messages))
    )
    stops: dict[str, list[tuple[int, float]]] = defaultdict(list)
    stopped: dict[Child, int] = {}
    alive = [await at.start(**OPTIONS) for _ in range(rng.choice((2, 3)))]
    for _ in range(8):
        await trio.sleep(rng.uniform(0.1, 1.2) * LEASE_S)
        if ended(at) == messages:
            break
        child = rng.choice(alive)
        what = rng.choice(("kill", "stop", "stop", "drain"))
        for other in [c for c in stopped if rng.random() < 0.7]:
            stops[other.plan.name].append((stopped.pop(other), time.monotonic_ns()))
            other.signal(signal.SIGCONT)
        if child in stopped:
            continue
        if what == "stop":
            child.signal(signal.SIGSTOP)
            stopped[child] = time.monotonic_ns()  # nothing of it runs after this
            continue
        if what == "kill":
            await child.kill()
            stops[child.plan.name].append((time.monotonic_ns(), float("inf")))
        else:
            child.signal(signal.SIGTERM)
            # Right after its start it has no handler for the signal yet.
            assert await child.ended(30.0) in (0, -signal.SIGTERM), child.log
        alive.remove(child)
        alive.append(await at.start(**OPTIONS))
    for child, began in stopped.items():
        stops[child.plan.name].append((began, time.monotonic_ns()))
        child.signal(signal.SIGCONT)
    await at.quiet(90.0)
    for who, pauses in stood_still(at).items():
        stops[who].extend(pauses)
    check(at, stops, messages)


@pytest.mark.limit(120)
async def test_a_message_that_ends_its_process_is_dead_lettered(
    world: Callable[..., World],
) -> None:
    """Although each takeover rewinds the durable, and with it the server's counts (PC-029)."""
    at = world("keyed", shards=1)
    goods = [Note(f"good{n}", key=f"key{n}") for n in range(3)]
    await at.publish(Note("bad", "exit", key="bad"), Note("next", key="bad"), *goods)
    starts, retries = 0, 1
    while starts < 6:
        child = await at.start(max_retries=retries, **{**OPTIONS, "ack_wait": 1.0})
        starts += 1

        async def decided(child: Child = child) -> bool:
            return child.exit_code is not None or await at.counts() == (0, 0, 1)

        await eventually(decided, 30.0)
        if child.exit_code is None:
            break
        assert child.exit_code == HARD_EXIT, child.log
    # One attempt, as many again as retries are allowed, one under suspicion, then the verdict.
    assert starts == retries + 3
    assert len(at.runs("bad")) == retries + 2
    (dead,) = await at.stored(at.dlq)
    assert dead.headers["Shove-Death-Reason"] == "crashed"
    assert at.runs("next") == [0], "its key has waited for it"
    assert {event.id for event in at.events("end")} == {"next", *(note.id for note in goods)}
    child.signal(signal.SIGTERM)
    assert await child.ended() == 0, child.log
