"""A lane's requests, without a server: how much it asks for, and what a status means to it.

The bookkeeping is the JetStream client's (`tests/jetstream/test_pull_engine.py`).
"""

from __future__ import annotations

import pytest

from shove_actors import jetstream
from shove_actors.backends.nats._demand import Demand
from shove_actors.backends.nats._pull import SHARD_BATCH, SHARD_LOW, Pull, Verdict, verdict_of


def pull(credit: int, *, shard: bool = False) -> Pull:
    return Pull(credit=credit, shard=shard, expires_s=30.0, heartbeat_s=5.0)


def test_one_engine_serves_both() -> None:
    assert issubclass(Pull, jetstream.PullLedger)
    assert issubclass(Demand, jetstream.PullLine)


def test_asks_for_what_there_is_room_for() -> None:
    requests = pull(10)
    assert requests.demand(0) == 10
    requests.asked(10, 1.0)
    assert requests.demand(0) == 0
    requests.requested -= 4  # four have come, and are held
    assert requests.demand(4) == 0
    assert requests.demand(0) == 0  # not worth a request yet
    requests.requested -= 1
    assert requests.demand(0) == 5
    requests.gone()
    assert requests.demand(10) == 0
    assert requests.demand(9) == 1  # nothing is under way: better one than none


def test_a_shard_has_a_standing_request() -> None:
    requests = pull(1, shard=True)
    assert requests.demand(0) == SHARD_BATCH
    requests.asked(SHARD_BATCH, 1.0)
    requests.requested = SHARD_LOW + 1
    assert requests.demand(1) == 0
    requests.requested = SHARD_LOW
    assert requests.demand(1) == SHARD_BATCH - SHARD_LOW
    requests.credit = 0
    assert requests.demand(0) == 0


def test_a_lowered_credit() -> None:
    requests = pull(10)
    requests.asked(10, 1.0)
    requests.credit = 9
    assert requests.too_much(0)
    requests.requested = 5
    assert not requests.too_much(4)
    assert requests.too_much(5)
    requests.gone()
    assert not requests.too_much(50)


def test_what_comes_back() -> None:
    requests = pull(10)
    requests.asked(10, 1.0)
    assert (requests.since, requests.deadline) == (1.0, 11.0)
    requests.returned(b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 7\r\n\r\n")
    assert requests.requested == 3
    requests.returned(b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 7\r\n\r\n")
    assert requests.requested == 0
    requests.asked(5, 2.0)
    requests.returned(b"NATS/1.0 408 Request Timeout\r\n\r\n")
    assert requests.requested == 0
    requests.asked(5, 3.0)
    requests.stalled(3.0)
    assert (requests.requested, requests.deadline) == (0, 4.0)


@pytest.mark.parametrize(
    ("code", "text", "verdict"),
    [
        (100, "Idle Heartbeat", Verdict.ALIVE),
        (408, "Request Timeout", Verdict.RETURNED),
        (409, "Message Size Exceeds MaxBytes", Verdict.RETURNED),
        (409, "Batch Completed", Verdict.RETURNED),
        (404, "No Messages", Verdict.OVER),
        (409, "Leadership Change", Verdict.OVER),
        (409, "Server Shutdown", Verdict.LEAVING),
        (409, "Consumer Deleted", Verdict.VANISHED),
        (503, "", Verdict.VANISHED),
        (409, "Consumer is push based", Verdict.NOT_PULL),
        (409, "Exceeded MaxWaiting", Verdict.STALLED),
        (409, "Exceeded MaxRequestMaxBytes of 5", Verdict.STALLED),
        (400, "Bad Request", Verdict.STALLED),
        (423, "Nats-Pin-Id mismatch", Verdict.STALLED),
        (299, "?", Verdict.STALLED),
    ],
)
def test_verdicts(code: int, text: str, verdict: Verdict) -> None:
    assert verdict_of(code, text) is verdict
