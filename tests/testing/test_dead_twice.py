"""A message is given up once: what the server and an inventory tell of a second dead letter."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing

from shove_actors import MemoryConfig, MemoryServer, Topic, TopologyBuilder, open_broker
from shove_actors.messaging import (
    DEATH_REASON,
    DUPLICATE_WINDOW_S,
    MESSAGE_ID,
    MSG_ID,
    ORIGIN,
    RETRY_COUNT,
    dead_id,
    encode_headers,
    origin_of,
)
from shove_actors.testing import Event, History, ServerWatch, check_history, take_inventory


class Order(msgspec.Struct):
    number: int


ORDERS = Topic(Order, TopologyBuilder("q").hold_queue(1).dlq().build())
BEFORE = [
    Event("published", 0.0, "pub", "q", "m1", sequence=1),
    Event("started", 0.0, "w", "q", "m1", sequence=1),
    Event("ended", 0.0, "w", "q", "m1", sequence=1, outcome="reject"),
]


def bury(server: MemoryServer, *, id_of: str = "right", retries: int = 0, copy: int = 1) -> None:
    """A letter of message 1, as a process stores it; `id_of`: what its id is made of."""
    origin = origin_of(copy, 5)
    headers = {
        MSG_ID: dead_id("m1", origin) if id_of == "right" else id_of,
        MESSAGE_ID: "m1",
        ORIGIN: origin,
        RETRY_COUNT: str(retries),
        DEATH_REASON: "rejected",
    }
    server.publish("q-dlq", b"", encode_headers(headers))


@pytest.mark.parametrize(
    ("second", "later_s", "restart", "wrong"),
    [
        ({"id_of": "another"}, 0.0, False, True),
        ({"id_of": "another"}, DUPLICATE_WINDOW_S - 1.0, False, True),
        # Whatever its retries: the id of a letter is not made of them.
        ({"id_of": "another", "retries": 1}, 5.0, False, True),
        # A restarted server still knows the ids of what it still has.
        ({"id_of": "another"}, 5.0, True, True),
        # After the window nobody knows that there is one.
        ({}, DUPLICATE_WINDOW_S, False, False),
        ({}, DUPLICATE_WINDOW_S, True, False),
        # The letter of another copy.
        ({"copy": 2}, 5.0, False, False),
    ],
)
async def test_a_second_dead_letter(
    second: dict[str, str | int],
    later_s: float,
    restart: bool,
    wrong: bool,
    autojump_clock: trio.testing.MockClock,
) -> None:
    server, told, looked = MemoryServer(), History(BEFORE), History(BEFORE)
    async with open_broker(MemoryConfig(server=server)) as broker:
        await broker.declare(ORDERS)
        ServerWatch(told, server, [ORDERS])
        bury(server)
        if restart:
            server.stop()
            server.start()
        await trio.sleep(later_s)
        bury(server, **second)  # type: ignore[arg-type]
        assert len(server.messages("q-dlq")) == 2
        await take_inventory(looked, broker, ORDERS)
        # Both at once, as a simulation has them.
        for event in looked[len(BEFORE) :]:
            told.add(event)
    for history in (told, looked):
        assert [event.letter for event in history if event.kind == "dead"][:2] == [1, 2]
        violation = check_history(history, complete=True)
        assert (violation is not None) is wrong
        if violation is not None:
            assert (violation.rule, violation.event.letter) == ("B", 2)
            assert violation.sentence == "m1 has a second dead letter of the same copy"


async def test_the_same_letter_once_more(autojump_clock: trio.testing.MockClock) -> None:
    """Its id is known, so the server stores no second one, and nobody tells of one."""
    server, history = MemoryServer(), History(BEFORE)
    async with open_broker(MemoryConfig(server=server)) as broker:
        await broker.declare(ORDERS)
        ServerWatch(history, server, [ORDERS])
        bury(server)
        bury(server)
        for _ in range(2):
            await take_inventory(history, broker, ORDERS)
    assert [event.letter for event in history if event.kind == "dead"] == [1, 1, 1]
    assert check_history(history, complete=True) is None
