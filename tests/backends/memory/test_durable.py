"""The rules of one durable, each as nats-server 2.15.1 was seen to follow it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shove_actors.backends.memory import (
    DurableSettings,
    MemoryServer,
    StoredMessage,
    StreamSettings,
)
from shove_actors.backends.memory._durable import Durable, PullRequest
from shove_actors.messaging import Retention
from tests.backends.world import receive

from .support import memory_world

Clock = trio.testing.MockClock


class Puller:
    """Asks a durable and writes down what arrives: (sequence, delivered)."""

    def __init__(self, server: MemoryServer, durable: Durable) -> None:
        self.server = server
        self.durable = durable
        self.came: list[tuple[int, int]] = []
        self.request = PullRequest(self)

    process = None

    def arrive(self, message: StoredMessage, num_delivered: int) -> None:
        self.came.append((message.sequence, num_delivered))

    def pull(self, count: int) -> list[tuple[int, int]]:
        """What this pull brings right now."""
        before = len(self.came)
        self.durable.pull(self.request, count)
        self.server.serve()
        return self.came[before:]

    def later(self) -> list[tuple[int, int]]:
        """What a waiting pull has brought since."""
        before = len(self.came)
        self.server.serve()
        return self.came[before:]


def setup(
    messages: int = 0, retention: Retention = Retention.WORK_QUEUE, **settings: object
) -> Puller:
    server = MemoryServer()
    server.create_stream(StreamSettings(name="q", subjects=("q",), retention=retention))
    for _ in range(messages):
        server.publish("q", b"")
    defaults: dict[str, object] = {"name": "d", "ack_wait_s": 10.0}
    durable = server.open_durable(
        "q",
        DurableSettings(**{**defaults, **settings}),  # type: ignore[arg-type]
    )
    return Puller(server, durable)


async def test_requests_are_served_in_turn(autojump_clock: Clock) -> None:
    one = setup()
    other = Puller(one.server, one.durable)
    one.pull(3)
    other.pull(3)
    for _ in range(4):
        one.server.publish("q", b"")
    one.server.serve()
    assert one.came == [(1, 1), (3, 1)]
    assert other.came == [(2, 1), (4, 1)]


async def test_ack_wait_runs_out_exactly(autojump_clock: Clock) -> None:
    puller = setup(1)
    assert puller.pull(5) == [(1, 1)]
    await trio.sleep(9.999)
    assert puller.later() == []
    await trio.sleep(0.001)
    assert puller.later() == [(1, 2)]
    await trio.sleep(10)
    assert puller.later() == [(1, 3)]


async def test_expired_messages_come_back_in_order_of_sequence(autojump_clock: Clock) -> None:
    puller = setup(3)
    puller.pull(3)
    await trio.sleep(10)
    assert puller.pull(3) == [(1, 2), (2, 2), (3, 2)]


async def test_redeliveries_go_before_new_messages(autojump_clock: Clock) -> None:
    """nak 3, nak 1, then 2 expires: 3, 1, 2, and only then 4 and 5."""
    puller = setup(5)
    puller.pull(3)
    puller.durable.nak(3, None, 0.0)
    puller.durable.nak(1, None, 0.0)
    await trio.sleep(10)
    assert puller.pull(5) == [(3, 2), (1, 2), (2, 2), (4, 1), (5, 1)]


async def test_redelivery_needs_no_room_under_max_ack_pending(autojump_clock: Clock) -> None:
    puller = setup(3, max_ack_pending=2)
    assert puller.pull(5) == [(1, 1), (2, 1)]
    puller.durable.nak(2, None, 0.0)
    assert puller.later() == [(2, 2)]
    puller.durable.ack(1, 0.0)
    assert puller.later() == [(3, 1)]


async def test_delayed_nak_keeps_the_lane_closed(autojump_clock: Clock) -> None:
    """Also when the delay is longer than the ack wait."""
    puller = setup(2, max_ack_pending=1)
    puller.pull(5)
    puller.durable.nak(1, 25.0, 0.0)
    await trio.sleep(24.9)
    assert puller.later() == []
    assert (puller.durable.unread, len(puller.durable.pending)) == (1, 1)
    await trio.sleep(0.1)
    assert puller.later() == [(1, 2)]


async def test_plain_nak_overrides_a_delay(autojump_clock: Clock) -> None:
    puller = setup(1)
    puller.pull(5)
    puller.durable.nak(1, 25.0, 0.0)
    puller.durable.nak(1, None, 0.0)
    assert puller.later() == [(1, 2)]


async def test_delayed_nak_takes_a_message_out_of_the_queue_again(autojump_clock: Clock) -> None:
    puller = setup(1)
    puller.pull(1)
    puller.durable.nak(1, None, 0.0)
    puller.durable.nak(1, 5.0, 0.0)
    assert puller.pull(1) == []
    await trio.sleep(5)
    assert puller.later() == [(1, 2)]


async def test_naked_twice_is_delivered_once(autojump_clock: Clock) -> None:
    puller = setup(1)
    puller.pull(1)
    puller.durable.nak(1, None, 0.0)
    puller.durable.nak(1, None, 0.0)
    assert puller.pull(5) == [(1, 2)]


async def test_progress_restarts_the_ack_wait(autojump_clock: Clock) -> None:
    puller = setup(1)
    puller.pull(5)
    await trio.sleep(8)
    assert puller.durable.renew(1, 8.0)
    await trio.sleep(9.9)
    assert puller.later() == []
    await trio.sleep(0.1)
    assert puller.later() == [(1, 2)]


async def test_progress_replaces_a_delay(autojump_clock: Clock) -> None:
    puller = setup(1)
    puller.pull(5)
    puller.durable.nak(1, 1.0, 0.0)
    assert puller.durable.renew(1, 0.0)
    await trio.sleep(9.9)
    assert puller.later() == []


async def test_progress_under_a_long_delay_wakes_in_time(autojump_clock: Clock) -> None:
    server = MemoryServer()
    async with memory_world(server).process() as process:
        await process.stored(1)
        lane = await process.lane(credit=2, ack_wait_s=5.0)
        held = await receive(lane)
        durable = server.streams["q"].durables["q-consumer"]
        lane.nak(held, 3600.0)
        await trio.testing.wait_all_tasks_blocked()
        assert durable.renew(1, 0.0)
        assert (await receive(lane)).num_delivered == 2
        assert trio.current_time() == 5.0


async def test_progress_after_the_ack_wait_is_too_late(autojump_clock: Clock) -> None:
    puller = setup(1)
    puller.pull(1)
    await trio.sleep(10)
    puller.server.serve()
    assert not puller.durable.renew(1, 10.0)
    assert puller.pull(1) == [(1, 2)]


async def test_progress_for_an_unknown_message(autojump_clock: Clock) -> None:
    puller = setup(1)
    assert not puller.durable.renew(1, 0.0)
    assert not puller.durable.renew(99, 0.0)


async def test_stale_ack_settles_the_message(autojump_clock: Clock) -> None:
    """By sequence: the acknowledgement of the first delivery counts under the second."""
    puller = setup(1)
    puller.pull(5)
    await trio.sleep(10)
    assert puller.later() == [(1, 2)]
    puller.durable.ack(1, 0.0)
    assert puller.durable.pending == {}
    assert puller.server.messages("q") == []
    await trio.sleep(60)
    assert puller.later() == []


async def test_ack_while_queued_for_redelivery(autojump_clock: Clock) -> None:
    puller = setup(1)
    puller.pull(1)
    puller.durable.nak(1, None, 0.0)
    puller.durable.ack(1, 0.0)
    assert puller.pull(1) == []


async def test_ack_of_what_was_never_delivered_is_ignored(autojump_clock: Clock) -> None:
    puller = setup(2)
    puller.durable.ack(2, 0.0)
    assert len(puller.server.messages("q")) == 2
    assert puller.pull(5) == [(1, 1), (2, 1)]


async def test_counts(autojump_clock: Clock) -> None:
    puller = setup(4)
    durable = puller.durable
    assert (durable.unread, len(durable.pending), durable.redelivered) == (4, 0, 0)
    puller.pull(2)
    assert (durable.unread, len(durable.pending), durable.redelivered) == (2, 2, 0)
    durable.nak(1, None, 0.0)
    puller.pull(1)
    assert (durable.unread, len(durable.pending), durable.redelivered) == (2, 2, 1)
    durable.ack(1, 0.0)
    assert (durable.unread, len(durable.pending), durable.redelivered) == (2, 1, 0)
    puller.server.streams["q"].remove(3)
    assert durable.unread == 1
    puller.server.streams["q"].purge()
    assert (durable.unread, len(durable.pending)) == (0, 0)
    assert puller.pull(5) == []


async def test_filter_counts_only_its_own(autojump_clock: Clock) -> None:
    server = MemoryServer()
    server.create_stream(StreamSettings(name="q", subjects=("q.*",)))
    server.publish("q.a", b"")
    puller = Puller(
        server, server.open_durable("q", DurableSettings(name="b", filter_subject="q.b"))
    )
    server.publish("q.b", b"")
    server.publish("q.a", b"")
    assert puller.durable.unread == 1
    assert puller.pull(5) == [(2, 1)]
    server.streams["q"].remove(1)
    assert puller.durable.unread == 0


async def test_a_durable_starts_with_everything_that_is_stored(autojump_clock: Clock) -> None:
    puller = setup(3)
    assert puller.durable.unread == 3
    assert puller.pull(5) == [(1, 1), (2, 1), (3, 1)]


async def test_expiry_of_a_pending_message_opens_the_lane(autojump_clock: Clock) -> None:
    """Watched on 2.15.1: a message that ages away no longer counts under `max_ack_pending`."""
    puller = setup(0, max_ack_pending=1, ack_wait_s=60.0)
    puller.server.edit_stream("q", max_age_s=15.0)
    puller.server.publish("q", b"")
    puller.pull(5)
    await trio.sleep(10)
    puller.server.publish("q", b"")
    assert puller.later() == []
    await trio.sleep(5)
    assert puller.later() == [(2, 1)]


async def test_interest_is_over_when_all_have_acknowledged(autojump_clock: Clock) -> None:
    one = setup(0, Retention.INTEREST, name="one")
    other = Puller(one.server, one.server.open_durable("q", DurableSettings(name="other")))
    one.server.publish("q", b"")
    one.pull(1)
    one.durable.ack(1, 0.0)
    assert len(one.server.messages("q")) == 1
    other.pull(1)
    assert len(one.server.messages("q")) == 1
    other.durable.ack(1, 0.0)
    assert one.server.messages("q") == []


async def test_a_longer_ack_wait_holds_from_the_next_delivery_on(autojump_clock: Clock) -> None:
    puller = setup(2)
    puller.pull(1)
    changed = DurableSettings(name="d", ack_wait_s=20.0)
    assert puller.server.open_durable("q", changed) is puller.durable
    assert puller.pull(5) == [(2, 1)]
    await trio.sleep(10)
    assert puller.later() == [(1, 2)]
    await trio.sleep(10)
    assert puller.later() == [(2, 2)]


async def test_a_shorter_ack_wait_waits_until_nobody_is_at_work(autojump_clock: Clock) -> None:
    puller = setup(2)
    puller.pull(2)
    changed = DurableSettings(name="d", ack_wait_s=2.0)
    durable = puller.server.open_durable("q", changed)
    assert durable.settings.ack_wait_s == 10.0
    for sequence in (1, 2):
        durable.ack(sequence, 0.0)
    assert puller.server.open_durable("q", changed).settings.ack_wait_s == 2.0


async def test_more_room_is_used_at_once(autojump_clock: Clock) -> None:
    puller = setup(3, max_ack_pending=1)
    assert puller.pull(5) == [(1, 1)]
    puller.server.open_durable("q", DurableSettings(name="d", max_ack_pending=3, ack_wait_s=10.0))
    assert puller.later() == [(2, 1), (3, 1)]


async def test_cancelled_request_gets_nothing_more(autojump_clock: Clock) -> None:
    one = setup()
    other = Puller(one.server, one.durable)
    one.pull(5)
    other.pull(5)
    one.durable.cancel(one.request)
    one.server.publish("q", b"")
    one.server.serve()
    assert (one.came, other.came) == ([], [(1, 1)])
    # And it can ask again.
    other.durable.cancel(other.request)
    assert one.pull(1) == []
    one.server.publish("q", b"")
    assert one.later() == [(2, 1)]


async def test_reduced_request_gets_less(autojump_clock: Clock) -> None:
    puller = setup()
    puller.pull(5)
    puller.durable.reduce(puller.request, 3)
    for _ in range(5):
        puller.server.publish("q", b"")
    assert puller.later() == [(1, 1), (2, 1)]


async def test_nothing_works_on_a_deleted_durable(autojump_clock: Clock) -> None:
    puller = setup(2)
    puller.pull(1)
    puller.server.delete_durable("q", "d")
    durable = puller.durable
    assert durable.gone
    durable.ack(1, 0.0)
    durable.nak(1, None, 0.0)
    assert not durable.renew(1, 0.0)
    assert puller.pull(5) == []
    assert len(puller.server.messages("q")) == 2


@pytest.mark.parametrize("killed", [False, True])
async def test_restart_keeps_what_is_on_disk(killed: bool, autojump_clock: Clock) -> None:
    """Ack waits and delayed naks go on, in whole seconds: up to a second early."""
    puller = setup(2)
    await trio.sleep(0.75)
    puller.pull(5)
    puller.durable.nak(2, 20.0, 0.75)
    await trio.sleep(0.25)
    puller.server.faults.restart(killed=killed)
    puller.pull(5)
    await trio.sleep(8.9)
    assert puller.later() == []
    await trio.sleep(0.1)
    assert puller.later() == [(1, 2)]
    await trio.sleep(9.9)
    assert (2, 2) not in puller.came
    await trio.sleep(0.2)
    puller.later()
    assert (2, 2) in puller.came


@pytest.mark.parametrize("killed", [False, True])
async def test_a_killed_server_forgets_its_last_tenth_of_a_second(
    killed: bool, autojump_clock: Clock
) -> None:
    """The first change after a pause is on disk at once, what follows it up to 0.1 s later."""
    puller = setup(3)
    assert puller.pull(1) == [(1, 1)]
    puller.durable.nak(1, 5.0, 0.0)
    assert puller.pull(2) == [(2, 1), (3, 1)]
    puller.durable.ack(3, 0.0)
    await trio.sleep(0.05)
    puller.server.faults.restart(killed=killed)
    # 3 is gone whatever was written: an acknowledged message of a work queue is removed.
    assert puller.pull(5) == ([(2, 1)] if killed else [])
    await trio.sleep(5)
    assert puller.later() == ([] if killed else [(1, 2)])
    await trio.sleep(5)
    assert ((1, 2) in puller.later()) is killed


async def test_a_killed_server_forgets_acknowledgements_where_messages_stay(
    autojump_clock: Clock,
) -> None:
    puller = setup(2, retention=Retention.LIMITS)
    puller.pull(2)
    for sequence in (1, 2):
        puller.durable.ack(sequence, 0.0)
    puller.server.faults.restart()
    assert puller.pull(2) == [(2, 1)], "delivered for the first time, as far as is known"
    puller.durable.ack(2, 0.0)
    await trio.sleep(10)
    assert puller.later() == [(1, 2)]
    puller.durable.ack(1, 10.0)
    await trio.sleep(0.2)
    puller.server.faults.restart()
    assert puller.pull(2) == []
    await trio.sleep(20)
    assert puller.later() == []
