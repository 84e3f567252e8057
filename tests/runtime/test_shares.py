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


def test_who_has_come_later_is_later() -> None:
    presence = Presence("b", 10.0)
    assert presence.place(0.0) == (0, 1)
    presence.saw({"a": 1, "b": 2, "c": 3}, 0.0)
    assert presence.place(0.0) == (1, 3)
    presence.saw({"b": 4, "c": 5}, 6.0)
    assert presence.place(6.0) == (0, 2)
    assert presence.place(17.0) == (0, 1), "c is gone, and we are not"


@pytest.mark.parametrize(
    ("shards", "place", "processes", "owned", "leaving", "expected"),
    [
        (8, 0, 1, 8, 0, Share()),
        (8, 0, 1, 7, 0, Share(stand_by=True)),
        (8, 0, 2, 8, 0, Share(let_go=True)),
        (8, 0, 2, 7, 1, Share()),
        (8, 1, 3, 3, 0, Share()),
        (8, 2, 3, 3, 0, Share(let_go=True)),
        (8, 2, 3, 2, 0, Share()),
        (2, 1, 5, 0, 0, Share(stand_by=True)),
        (2, 2, 5, 0, 0, Share()),
    ],
)
def test_shares(
    shards: int, place: int, processes: int, owned: int, leaving: int, expected: Share
) -> None:
    found = share_of(shards=shards, place=place, processes=processes, owned=owned, leaving=leaving)
    assert found == expected


def test_one_that_winds_down_is_kept_when_the_others_have_gone() -> None:
    now = {"shards": 8, "owned": 7, "leaving": 1, "winding_down": 1}
    assert share_of(place=0, processes=1, **now) == Share(keep=True)
    gone = {**now, "winding_down": 0}
    assert share_of(place=0, processes=1, **gone) == Share(stand_by=True)


def test_handlers_that_are_slow_do_not_hold_up_the_next_shard() -> None:
    """Several wind down at a time; of those that have left that, one."""
    shares = {"shards": 8, "place": 0, "processes": 2}
    assert share_of(**shares, owned=7, leaving=1, winding_down=1) == Share(let_go=True)
    assert share_of(**shares, owned=7, leaving=1, winding_down=0) == Share()
    assert share_of(**shares, owned=6, leaving=2, winding_down=1) == Share()
    assert share_of(**shares, owned=4, leaving=4, winding_down=4) == Share()


class World:
    """Processes by place, and the shards that each has. Whoever may take a free one does."""

    def __init__(self, shards: int) -> None:
        self.shards = self.free = shards
        self.owned: list[int] = []
        self.moves = 0

    def settle(self) -> None:
        for _ in range(self.shards + 1):
            for place, count in enumerate(self.owned):
                if self.share(place).let_go:
                    self.owned[place] = count - 1
                    self.free += 1
            for place in reversed(range(len(self.owned))):
                if self.free and self.share(place).stand_by:
                    self.owned[place] += 1
                    self.free -= 1
                    self.moves += 1

    def share(self, place: int) -> Share:
        processes = len(self.owned)
        return share_of(
            shards=self.shards, place=place, processes=processes, owned=self.owned[place]
        )


@given(
    shards=st.integers(1, 40),
    steps=st.lists(st.one_of(st.none(), st.integers(0, 8)), min_size=1, max_size=12),
)
def test_each_gets_its_part_and_no_shard_moves_for_nothing(
    shards: int, steps: list[int | None]
) -> None:
    """Processes come (None) and go. Who stays gives to who comes, and takes of who goes, only."""
    world = World(shards)
    for step in [None, *steps]:
        before = world.moves
        if step is None:
            world.owned.append(0)
            world.settle()
            moved = world.owned[-1]
        elif len(world.owned) > 1:
            gone = world.owned.pop(step % len(world.owned))
            world.free += gone
            world.settle()
            moved = gone
        else:
            continue
        assert world.moves - before == moved
        assert world.free == 0
        least, over = divmod(shards, len(world.owned))
        assert world.owned == [least + (place < over) for place in range(len(world.owned))]


@given(shards=st.integers(1, 64), owned=st.lists(st.integers(0, 64), min_size=1, max_size=9))
def test_it_comes_to_rest_from_wherever(shards: int, owned: list[int]) -> None:
    world = World(shards)
    for number in owned:
        world.owned.append(min(number, world.free))
        world.free -= world.owned[-1]
    world.settle()
    assert world.free == 0
    assert max(world.owned) - min(world.owned) <= 1
    assert world.moves <= shards
