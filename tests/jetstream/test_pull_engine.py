"""The pull engine without a server: one test for each row of what may arrive (section B)."""

from __future__ import annotations

from typing import Any

import pytest

from shove_actors._errors import (
    BadRequest,
    ConsumerDeleted,
    ConsumerNotFound,
    JetStreamError,
    LeadershipChanged,
    MaxBytesExceeded,
    NoHeartbeat,
    NoResponders,
    NotPullConsumer,
    PinIdMismatch,
    RequestLimitExceeded,
    RequestTimeout,
    ServerShutdown,
)
from shove_actors.jetstream import Verdict, verdict_of
from shove_actors.jetstream._pull_actions import Abandon, Action, Ask, End, ForgetPin, LookUp, Tell
from shove_actors.jetstream._pull_engine import PullEngine
from shove_actors.jetstream._pull_options import GroupOptions, pull_options

NEVER = float("inf")


def left(messages: int, size: int = 0) -> bytes:
    return (
        f"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: {messages}\r\n"
        f"Nats-Pending-Bytes: {size}\r\n\r\n"
    ).encode()


class Reading:
    """An engine that is connected at time 0 and asks whenever it may, as the driver does."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.engine = PullEngine(pull_options(**options), "consumer c of stream s")
        self.engine.connected(0.0)
        self.engine.wait_begins(0.0)
        self.asked: list[Ask] = []
        self.ask()

    def ask(self) -> None:
        ask = self.engine.demand()
        if ask is not None:
            self.asked.append(ask)
            self.engine.asked(ask, self.now)

    def arrive(self, count: int, size: int = 0) -> None:
        for _ in range(count):
            self.engine.arrived(size, self.now)

    def take(self, count: int, size: int = 0) -> None:
        for _ in range(count):
            self.engine.done(size)
            self.ask()

    def status(self, code: int, text: str = "", block: bytes | None = None) -> tuple[Action, ...]:
        actions = self.engine.status(code, text, block, self.now)
        self.ask()
        return actions

    def wait(self, seconds: float) -> tuple[Action, ...]:
        self.now += seconds
        actions = self.engine.tick(self.now)
        self.ask()
        return actions


def batches(reading: Reading) -> list[int]:
    return [ask.batch for ask in reading.asked]


def kinds(actions: tuple[Action, ...]) -> list[object]:
    return [type(a.error) if isinstance(a, (Tell, End)) else type(a) for a in actions]


# ------------------------------------------------------------------ asking


def test_asks_below_the_threshold() -> None:
    reading = Reading(max_messages=10)
    assert batches(reading) == [10]
    reading.arrive(10)
    reading.take(5)
    assert batches(reading) == [10]
    reading.take(1)
    assert batches(reading) == [10, 6]
    assert reading.engine.pending == 10
    reading.arrive(6)
    reading.take(10)
    assert batches(reading) == [10, 6, 6]


def test_a_threshold_of_ones_own() -> None:
    reading = Reading(max_messages=10, threshold_messages=10)
    reading.arrive(3)
    reading.take(3)
    assert batches(reading) == [10, 1, 1, 1]
    reading = Reading(max_messages=1)
    reading.arrive(1)
    reading.take(1)
    assert batches(reading) == [1, 1]


def test_stop_after_never_asks_for_more() -> None:
    reading = Reading(max_messages=10, stop_after=13)
    reading.arrive(10)
    reading.take(10)
    assert batches(reading) == [10, 3]
    reading.status(408, "Request Timeout", left(3))
    assert batches(reading) == [10, 3, 3]
    reading.arrive(3)
    reading.take(3)
    assert reading.engine.finished
    assert batches(reading) == [10, 3, 3]


def test_bytes() -> None:
    reading = Reading(max_bytes=1000)
    assert reading.asked == [Ask(1_000_000, 1000)]
    reading.arrive(2, 400)
    reading.take(1, 400)
    assert len(reading.asked) == 1  # 400 here and 200 under way: above the threshold
    reading.take(1, 400)
    assert reading.asked[1:] == [Ask(1_000_000, 800)]
    # The first request ends: 200 of it are given back.
    reading.status(409, "Message Size Exceeds MaxBytes", left(999_998, 200))
    assert len(reading.asked) == 2
    assert reading.engine.ledger.requested_bytes == 800


def test_bytes_wait_for_room() -> None:
    """What does not fit beside what is here fits when that is gone; no hot loop meanwhile."""
    reading = Reading(max_bytes=1000, threshold_bytes=900)
    reading.arrive(1, 400)
    assert reading.status(409, "Message Size Exceeds MaxBytes", left(999_999, 600)) == ()
    assert len(reading.asked) == 1
    reading.take(1, 400)
    assert reading.asked[1:] == [Ask(1_000_000, 1000)]


def test_a_message_that_never_fits() -> None:
    reading = Reading(max_messages=10, request_max_bytes=100)
    assert reading.asked == [Ask(10, 100)]
    assert reading.status(409, "Message Size Exceeds MaxBytes", left(10)) == ()
    assert len(reading.asked) == 2
    told = reading.status(409, "Message Size Exceeds MaxBytes", left(10))
    assert kinds(told) == [MaxBytesExceeded]
    assert len(reading.asked) == 2  # after a pause
    reading.wait(1.0)
    assert len(reading.asked) == 3


# ------------------------------------------------------------------ statuses


def test_a_request_that_ended_is_asked_again() -> None:
    for code, text in ((408, "Request Timeout"), (409, "Batch Completed")):
        reading = Reading(max_messages=10)
        reading.arrive(3)
        assert reading.status(code, text, left(7)) == ()
        assert reading.engine.pending == 3 + 7
        assert batches(reading) == [10, 7]
        assert reading.status(100, "Idle Heartbeat") == ()
        assert batches(reading) == [10, 7]


def test_no_messages_should_not_come_and_does_not_spin() -> None:
    reading = Reading(max_messages=10)
    assert kinds(reading.status(404, "No Messages")) == [Abandon]
    assert batches(reading) == [10, 10]
    reading.status(404, "No Messages")
    assert batches(reading) == [10, 10]
    reading.wait(0.25)
    assert batches(reading) == [10, 10, 10]


def test_another_leader() -> None:
    reading = Reading(max_messages=10)
    reading.arrive(2)
    assert kinds(reading.status(409, "Leadership Change")) == [LeadershipChanged, Abandon]
    assert batches(reading) == [10, 8]


def test_another_client_is_pinned() -> None:
    reading = Reading(max_messages=10, groups=GroupOptions(group="g"))
    told = reading.status(423, "Nats-Pin-Id mismatch")
    assert kinds(told) == [ForgetPin, PinIdMismatch, Abandon]
    assert batches(reading) == [10, 10]


def test_the_server_is_leaving() -> None:
    reading = Reading(max_messages=10)
    assert kinds(reading.status(409, "Server Shutdown", left(10))) == [ServerShutdown]
    assert batches(reading) == [10]
    reading.engine.disconnected()
    reading.engine.connected(1.0)
    reading.ask()
    assert batches(reading) == [10, 10]


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (409, "Consumer Deleted", ConsumerDeleted),
        (409, "Consumer is push based", NotPullConsumer),
        (409, "Exceeded MaxRequestBatch of 5", RequestLimitExceeded),
        (409, "Exceeded MaxRequestMaxBytes of 5", RequestLimitExceeded),
        (400, "Bad Request - something", BadRequest),
    ],
)
def test_what_ends_it(code: int, text: str, kind: type[Exception]) -> None:
    reading = Reading(max_messages=10)
    reading.arrive(2)
    assert kinds(reading.status(code, text)) == [kind]
    assert reading.engine.held == 2
    reading.take(2)
    reading.engine.disconnected()
    reading.engine.connected(5.0)
    reading.ask()
    assert batches(reading) == [10]
    assert reading.engine.deadline == NEVER


@pytest.mark.parametrize("text", ["Exceeded MaxWaiting", "Something New"])
def test_turned_away_for_now(text: str) -> None:
    reading = Reading(max_messages=10)
    assert kinds(reading.status(409, text)) == [JetStreamError, Abandon]
    assert batches(reading) == [10]
    assert reading.engine.deadline == 1.0
    reading.wait(1.0)
    assert batches(reading) == [10, 10]


# ------------------------------------------------------------------ silence


def test_two_heartbeats_missed() -> None:
    reading = Reading(max_messages=10, expiry=10.0, heartbeat=2.0)
    assert reading.engine.deadline == 4.0
    reading.now = 3.0
    reading.status(100, "Idle Heartbeat")
    assert reading.engine.deadline == 7.0
    assert reading.wait(3.9) == ()
    assert kinds(reading.wait(0.1)) == [NoHeartbeat, Abandon]
    assert batches(reading) == [10, 10]
    # Twice in a row: does it exist at all?
    assert kinds(reading.wait(4.0)) == [NoHeartbeat, Abandon, LookUp]
    assert batches(reading) == [10, 10]
    assert reading.engine.looked_up(1, None, reading.now) == ()
    reading.wait(0.25)
    assert batches(reading) == [10, 10, 10]


def test_silence_counts_while_a_reader_waits() -> None:
    reading = Reading(max_messages=10, expiry=10.0, heartbeat=2.0)
    reading.arrive(1)
    reading.engine.wait_ends()
    assert reading.engine.deadline == NEVER
    assert reading.wait(100.0) == ()
    reading.take(1)
    reading.engine.wait_begins(reading.now)
    assert reading.engine.deadline == reading.now + 4.0


def test_nothing_is_heard_of_a_lost_connection() -> None:
    reading = Reading(max_messages=10, expiry=10.0, heartbeat=2.0)
    reading.engine.disconnected()
    assert reading.engine.deadline == NEVER
    assert reading.wait(100.0) == ()
    assert reading.engine.demand() is None
    reading.engine.connected(reading.now)
    reading.ask()
    assert batches(reading) == [10, 10]
    assert reading.engine.deadline == reading.now + 4.0


# ------------------------------------------------------------------ looking it up


def test_nobody_answers() -> None:
    reading = Reading(max_messages=10)
    actions = reading.status(503)
    assert kinds(actions) == [NoResponders, Abandon, LookUp]
    assert batches(reading) == [10]
    pauses = []
    for number in range(1, 8):
        reading.engine.looked_up(number, RequestTimeout("slow"), reading.now)
        pauses.append(reading.engine.deadline - reading.now)
        reading.wait(pauses[-1])
        assert kinds(reading.status(503)) == [NoResponders, Abandon, LookUp]
    assert pauses == pytest.approx([0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0])
    # A delivery ends the trouble.
    reading.engine.looked_up(8, None, reading.now)
    reading.wait(5.0)
    reading.arrive(1)
    reading.status(503)
    reading.engine.looked_up(9, None, reading.now)
    assert reading.engine.deadline - reading.now == pytest.approx(0.25)


def test_it_is_gone() -> None:
    reading = Reading(max_messages=10)
    reading.status(503)
    error = ConsumerNotFound(404, 10014, "consumer not found")
    assert reading.engine.looked_up(1, error, 0.0) == (End(error),)
    reading.ask()
    assert batches(reading) == [10]


def test_a_late_answer_counts_nothing() -> None:
    reading = Reading(max_messages=10)
    reading.status(503)
    reading.engine.disconnected()
    reading.engine.connected(1.0)
    reading.ask()
    assert reading.engine.looked_up(1, ConsumerNotFound(404, 10014, ""), 1.0) == ()
    assert batches(reading) == [10, 10]


# ------------------------------------------------------------------ verdicts


@pytest.mark.parametrize(
    ("code", "text", "verdict"),
    [
        (100, "Idle Heartbeat", Verdict.ALIVE),
        (100, "FlowControl Request", Verdict.ALIVE),
        (408, "Request Timeout", Verdict.RETURNED),
        (404, "No Messages", Verdict.OVER),
        (503, "garbage: of the next line", Verdict.ABSENT),
        (409, "Message Size Exceeds MaxBytes", Verdict.TOO_LARGE),
        (409, "message size exceeds maxbytes", Verdict.TOO_LARGE),
        (409, "Batch Completed", Verdict.RETURNED),
        (409, "Consumer Deleted", Verdict.DELETED),
        (409, "Leadership Change", Verdict.MOVED),
        (409, "Server Shutdown", Verdict.LEAVING),
        (409, "Consumer is push based", Verdict.NOT_PULL),
        (409, "Exceeded MaxRequestBatch of 10", Verdict.LIMIT),
        (409, "Exceeded MaxRequestExpires of 1s", Verdict.LIMIT),
        (409, "Exceeded MaxRequestMaxBytes of 10", Verdict.LIMIT),
        (409, "Exceeded MaxWaiting", Verdict.STALLED),
        (409, "", Verdict.STALLED),
        (423, "Nats-Pin-Id mismatch", Verdict.UNPINNED),
        (400, "Bad Request", Verdict.REFUSED),
        (299, "?", Verdict.STALLED),
    ],
)
def test_verdicts(code: int, text: str, verdict: Verdict) -> None:
    assert verdict_of(code, text) is verdict
