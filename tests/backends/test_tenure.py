"""Unbroken runs of deliveries (`backends/_tenure.py`)."""

from __future__ import annotations

from shove_actors.backends import Tenure


def test_it_lasts_while_no_number_is_missing() -> None:
    tenure = Tenure()
    first = tenure.of(1)
    assert first > 0
    assert tenure.of(2) == tenure.of(3) == first
    second = tenure.of(5)
    assert second != first
    assert tenure.of(6) == second


def test_a_number_that_comes_again_is_another_count() -> None:
    """A server that was killed may have forgotten its last deliveries."""
    tenure = Tenure()
    first = tenure.of(7)
    assert tenure.of(7) != first
    again = tenure.of(3)
    assert tenure.of(4) == again != first


def test_it_can_be_ended() -> None:
    tenure = Tenure()
    first = tenure.of(1)
    tenure.end()
    tenure.end()
    assert tenure.of(2) != first


def test_no_two_lanes_share_one() -> None:
    one, other = Tenure(), Tenure()
    assert one.of(1) != other.of(1)
