"""Who is there, and how many shards each should have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shove_actors.runtime._shares import Presence, Share, share_of


def test_an_entry_that_is_not_written_any_more_is_gone_after_a_lease() -> None:
    presence = Presence("me", 10.0)
    presence.saw({"me": 1, "a": 2, "b": 3}, 0.0)
    assert presence.alive(0.0) == 3
    presence.saw({"me": 1, "a": 4, "b": 3}, 6.0)
    assert presence.alive(9.0) == 3
    assert presence.alive(11.0) == 2
    assert presence.gone(11.0) == {"b": 3}
    presence.saw({"me": 1, "a": 4}, 12.0)
    assert presence.alive(12.0) == 2
    assert presence.gone(12.0) == {}


def test_we_are_there_whatever_is_seen() -> None:
    presence = Presence("me", 1.0)
    assert presence.alive(0.0) == 1
    presence.saw({"me": 1}, 0.0)
    assert presence.alive(100.0) == 1
    assert presence.gone(100.0) == {}


@pytest.mark.parametrize(
    ("shards", "processes", "owned", "leaving", "expected"),
    [
        (8, 1, 8, 0, Share(let_go=False, stand_by=False)),
        (8, 1, 7, 0, Share(let_go=False, stand_by=True)),
        (8, 2, 8, 0, Share(let_go=True, stand_by=False)),
        (8, 2, 7, 1, Share(let_go=False, stand_by=False)),
        (8, 3, 3, 0, Share(let_go=False, stand_by=False)),
        (8, 3, 2, 0, Share(let_go=False, stand_by=True)),
        (2, 5, 0, 0, Share(let_go=False, stand_by=True)),
    ],
)
def test_shares(shards: int, processes: int, owned: int, leaving: int, expected: Share) -> None:
    assert share_of(shards=shards, processes=processes, owned=owned, leaving=leaving) == expected


@given(shards=st.integers(1, 64), owned=st.lists(st.integers(0, 64), min_size=1, max_size=9))
def test_it_comes_to_rest_evenly(shards: int, owned: list[int]) -> None:
    """Whoever lets go finds somebody who stands by; in the end all are within the same share."""
    counts = [0] * len(owned)
    for who, number in enumerate(owned):
        counts[who] = min(number, shards - sum(counts))
    nobodys = shards - sum(counts)
    for _ in range(10 * shards + 10):
        shares = [
            share_of(shards=shards, processes=len(counts), owned=n, leaving=0) for n in counts
        ]
        for who, share in enumerate(shares):
            if share.let_go:
                counts[who] -= 1
                nobodys += 1
        for who, share in enumerate(shares):
            if share.stand_by and nobodys:
                counts[who] += 1
                nobodys -= 1
    assert nobodys == 0
    assert max(counts) <= -(-shards // len(counts))
