"""Budgets and delays."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shove_actors._errors import UsageError
from shove_actors.messaging import Limits, SequenceFailure, TopologyBuilder, retries_by_nak
from shove_actors.messaging._retry import hold_for_retry, nak_delay, redeliveries

HOLDS = TopologyBuilder("q").hold_queue(1).hold_queue(5).hold_queue(30).dlq().build()
BARE = TopologyBuilder("q").dlq().build()
LANES = TopologyBuilder("q").sequenced(SequenceFailure.SKIP).hold_queue(1).dlq().build()


def test_defaults() -> None:
    limits = Limits()
    assert limits.max_retries == 10
    assert limits.max_redeliveries == 10
    assert limits.default_delay_s == 1.0
    assert Limits(max_retries=3, max_deliveries=1).max_redeliveries == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_retries", -1),
        ("max_retries", 1.0),
        ("max_retries", True),
        ("max_deliveries", 0),
        ("max_deliveries", "3"),
        ("default_delay_s", 0),
        ("default_delay_s", math.nan),
        ("default_delay_s", None),
    ],
)
def test_refusals_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=field):
        Limits(**{field: value})


@pytest.mark.parametrize(
    ("delivered", "returned", "expected"), [(1, 0, 0), (2, 0, 1), (5, 2, 2), (3, 2, 0), (1, 9, 0)]
)
def test_redeliveries(delivered: int, returned: int, expected: int) -> None:
    assert redeliveries(delivered, returned) == expected


def test_which_topologies_retry_in_place() -> None:
    assert not retries_by_nak(HOLDS)
    assert retries_by_nak(BARE)
    assert retries_by_nak(LANES)


@pytest.mark.parametrize(("retry", "delay"), [(0, 1), (1, 5), (2, 30), (3, 30), (99, 30)])
def test_later_retries_wait_longer_up_to_the_last_hold(retry: int, delay: float) -> None:
    assert hold_for_retry(HOLDS, retry).delay_s == delay
    assert nak_delay(HOLDS, retry, 7.0) == delay


@pytest.mark.parametrize(
    ("after", "delay"), [(0.01, 1), (1, 1), (1.001, 5), (5, 5), (6, 30), (30, 30), (999, 30)]
)
def test_a_delay_of_its_own_picks_the_closest_hold_above(after: float, delay: float) -> None:
    for retry in (0, 7):
        assert hold_for_retry(HOLDS, retry, after).delay_s == delay


def test_without_holds_the_default_delay_counts() -> None:
    assert nak_delay(BARE, 3, 7.0) == 7.0
