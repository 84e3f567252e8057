"""Outcome: the closed set, and the data it carries."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from shove_actors._errors import UsageError
from shove_actors.messaging import Defer, Outcome, Reject, Retry, Unaudited


def test_the_constants_equal_the_forms_without_data() -> None:
    assert Retry() == Outcome.RETRY
    assert Reject() == Outcome.REJECT
    assert Defer() == Outcome.DEFER
    assert Retry(after=5) != Outcome.RETRY
    assert len({Outcome.ACK, Outcome.RETRY, Outcome.REJECT, Outcome.DEFER}) == 4


@pytest.mark.parametrize(
    ("outcome", "name"),
    [
        (Outcome.ACK, "ack"),
        (Outcome.RETRY, "retry"),
        (Retry(after=1.5, reason="busy"), "retry"),
        (Outcome.REJECT, "reject"),
        (Reject(reason="bad"), "reject"),
        (Outcome.DEFER, "defer"),
        (Defer(after=3), "defer"),
        (Outcome.INTERRUPTED, "interrupted"),
        (Unaudited(), "retry"),
    ],
)
def test_every_form_is_an_outcome_with_a_stable_name(outcome: Outcome, name: str) -> None:
    assert isinstance(outcome, Outcome)
    assert outcome.name == name
    assert pickle.loads(pickle.dumps(outcome)) == outcome


@pytest.mark.parametrize("after", [0, -1, math.nan, math.inf, "5", True, 1e12])
def test_delays_are_checked(after: Any) -> None:
    with pytest.raises(UsageError, match="Retry"):
        Retry(after=after)
    with pytest.raises(UsageError, match="Defer"):
        Defer(after=after)


def test_reasons_are_text() -> None:
    with pytest.raises(UsageError, match=r"Reject\(reason"):
        Reject(reason=ValueError("x"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"Retry\(reason"):
        Retry(reason=3)  # type: ignore[arg-type]


def test_the_set_is_closed() -> None:
    with pytest.raises(UsageError, match="Outcome itself"):
        Outcome()
    with pytest.raises(UsageError, match="closed"):

        class Maybe(Outcome):
            pass


def test_outcomes_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Outcome.RETRY.after = 5  # type: ignore[attr-defined]
