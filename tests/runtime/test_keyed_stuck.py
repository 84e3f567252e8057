"""Keys that are stuck, with much behind them: others go on until no more may be in hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from shove_actors import MemoryServer, Outcome
from shove_actors.embedded import ServerProcess
from shove_actors.runtime import _keyed
from shove_actors.runtime._keyed import keyed_spec

from .keyed import Log, Note, Server, broker, serving, topic

OTHERS = 300


async def check_a_backlog_of_a_stuck_key(server: Server, queue: str, stuck: int) -> None:
    subject, log = topic(queue, shards=1, keyed=16), Log()

    async def handle(note: Note) -> Outcome:
        if note.key == "stuck":
            await trio.sleep_forever()
        log.begin(note)
        await trio.sleep(0.002)
        log.end(note)
        return Outcome.ACK

    async with broker(server) as opened:
        await opened.declare(subject)
        # One batch after another: within one, only those of a key are in order.
        for notes in (
            [Note("stuck", n) for n in range(stuck)],
            [Note(f"k{n % 100}", n) for n in range(OTHERS)],
        ):
            await opened.publisher().publish_batch(subject, notes)
        options = {"ack_wait": 30.0, "handler_timeout": 300.0}
        async with serving(opened, subject, handle, **options) as group:
            # Pulls that keep the pin come every five seconds, and would bring one each.
            await log.until(OTHERS, within=15.0)
            group.hard_stop()


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> int:
    """Leaves room for fifteen."""
    monkeypatch.setattr(_keyed, "BACKLOG_LEAST", 0)
    return 8 * 16 - 15


async def test_nearly_all_is_held_on_a_server(
    server: ServerProcess, fresh_queue: Callable[[], str], little: int
) -> None:
    await check_a_backlog_of_a_stuck_key(server, fresh_queue(), little)


async def test_nearly_all_is_held_in_memory(
    autojump_clock: trio.testing.MockClock, little: int
) -> None:
    await check_a_backlog_of_a_stuck_key(MemoryServer(), "q", little)


async def test_thousands_behind_a_stuck_key_in_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    await check_a_backlog_of_a_stuck_key(MemoryServer(), "q", 3000)


def test_the_server_lets_out_as_much_as_may_be_in_hand() -> None:
    subject = topic("q", keyed=16)
    spec = keyed_spec(subject.topology, subject, 0, max_in_flight=16, ack_wait_s=30.0)
    assert spec.credit == spec.max_ack_pending == 10_000
