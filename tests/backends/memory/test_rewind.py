"""Rewinding a pinned durable: what comes again, and what that costs."""

from __future__ import annotations

from shove_actors.backends.memory import (
    DurableSettings,
    MemoryServer,
    StoredMessage,
    StreamSettings,
)
from shove_actors.backends.memory._pins import PinnedDurable, PinnedRequest
from shove_actors.messaging import Retention


class Puller:
    process = None

    def __init__(self) -> None:
        self.came: list[int] = []

    def arrive(self, message: StoredMessage, num_delivered: int) -> None:
        self.came.append(message.sequence)

    def refused(self) -> None:
        raise AssertionError("nobody else is here")


class NeverWalked(dict[int, StoredMessage]):
    """What is stored, and too much to look through all of it."""

    def values(self) -> None:  # type: ignore[override]
        raise AssertionError("everything that is stored was looked through")

    items = __iter__ = values  # type: ignore[assignment]


def opened(messages: int) -> tuple[MemoryServer, PinnedDurable]:
    server = MemoryServer()
    server.create_stream(
        StreamSettings(name="q", subjects=("q.*",), retention=Retention.WORK_QUEUE)
    )
    for number in range(messages):
        server.publish(f"q.{number % 2}", b"")
    durable = server.open_durable(
        "q", DurableSettings(name="d", filter_subject="q.0", pin_timeout_s=1.0)
    )
    assert isinstance(durable, PinnedDurable)
    return server, durable


def pull(server: MemoryServer, durable: PinnedDurable, count: int) -> list[int]:
    puller = Puller()
    durable.ask(PinnedRequest(puller, count, durable.pin, server.now() + 10.0), server.now())
    server.serve()
    return puller.came


async def test_what_was_read_and_not_settled_comes_again_in_order() -> None:
    server, durable = opened(20)
    assert pull(server, durable, 5) == [1, 3, 5, 7, 9]
    for sequence in (1, 5):
        durable.ack(sequence, server.now())
    durable.rewind()
    assert (durable.unread, durable.floor) == (8, 2)
    assert pull(server, durable, 20) == [3, 7, 9, 11, 13, 15, 17, 19]
    assert durable.unread == 0


async def test_it_looks_at_what_was_read_only() -> None:
    """A stream that holds a hundred thousand messages holds nobody up."""
    server, durable = opened(100)
    assert pull(server, durable, 2) == [1, 3]
    durable.stream.messages = NeverWalked(durable.stream.messages)
    durable.rewind()
    assert durable.unread == 50
    assert pull(server, durable, 3) == [1, 3, 5]


async def test_its_filter_is_compared_and_no_more_is_asked() -> None:
    _, durable = opened(4)
    assert [durable.wants(subject) for subject in ("q.0", "q.1", "q", "q.0.x")] == [
        True,
        False,
        False,
        False,
    ]
