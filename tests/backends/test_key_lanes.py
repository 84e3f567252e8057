"""Per-key dispatch against a reference that is as simple as the promise."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shove_actors._errors import UsageError
from shove_actors.backends._key_lanes import KeyLanes

KEYS = "abcd"


def filled(most: int, text: str) -> KeyLanes[str, str]:
    lanes: KeyLanes[str, str] = KeyLanes(most)
    for number, key in enumerate(text):
        lanes.push(key, f"{key}{number}")
    return lanes


def take_all(lanes: KeyLanes[str, str]) -> list[str]:
    taken = []
    while (item := lanes.take()) is not None:
        taken.append(item)
    return taken


def test_one_of_each_key_at_once() -> None:
    lanes = filled(10, "aabca")
    assert take_all(lanes) == ["a0", "b2", "c3"]
    assert lanes.startable == 0
    lanes.done("a")
    assert take_all(lanes) == ["a1"]


def test_never_more_than_the_limit() -> None:
    lanes = filled(2, "abc")
    assert lanes.startable == 2
    assert take_all(lanes) == ["a0", "b1"]
    lanes.done("b")
    assert take_all(lanes) == ["c2"]


def test_a_busy_key_takes_turns() -> None:
    lanes = filled(1, "aaaabc")
    order = []
    while (item := lanes.take()) is not None:
        order.append(item)
        lanes.done(item[0])
    assert order == ["a0", "b4", "c5", "a1", "a2", "a3"]


def test_retry_delays_its_key_only() -> None:
    lanes = filled(10, "aab")
    assert take_all(lanes) == ["a0", "b2"]
    lanes.again("a", 5.0)
    lanes.push("b", "b3")
    lanes.done("b")
    assert lanes.next_due == 5.0
    assert take_all(lanes) == ["b3"]
    assert lanes.ripen(4.9) == 0
    assert take_all(lanes) == []
    assert lanes.ripen(5.0) == 1
    assert take_all(lanes) == ["a0"], "the one that is tried again is still the first"
    lanes.done("a")
    assert take_all(lanes) == ["a1"]


def test_keys_that_wait_take_nobodys_place() -> None:
    lanes = filled(1, "ab")
    assert lanes.take() == "a0"
    lanes.again("a", 1.0)
    assert lanes.take() == "b1"


def test_a_key_that_settles_waits_and_takes_nobodys_place() -> None:
    lanes = filled(1, "aab")
    assert lanes.take() == "a0"
    lanes.settling("a")
    assert take_all(lanes) == ["b2"]
    lanes.done("b")
    assert take_all(lanes) == []
    lanes.done("a")
    assert take_all(lanes) == ["a1"]


def test_a_key_seen_is_not_a_key_kept() -> None:
    lanes: KeyLanes[int, int] = KeyLanes(4)
    for number in range(100_000):
        lanes.push(number, number)
        assert lanes.take() == number
        lanes.done(number)
    assert len(lanes.keys()) == 0
    assert len(lanes) == 0


def test_dropping_leaves_what_is_in_flight() -> None:
    lanes = filled(1, "aabbc")
    assert lanes.take() == "a0"
    assert lanes.drop_waiting() == ["a1", "b2", "b3", "c4"]
    assert len(lanes) == 1
    lanes.done("a")
    assert lanes.take() is None
    assert len(lanes.keys()) == 0


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match="max_in_flight=0"):
        KeyLanes(0)


class AgainstAList(RuleBasedStateMachine):
    """The reference keeps everything in one list and looks through all of it each time."""

    @initialize(most=st.integers(1, 4))
    def begin(self, most: int) -> None:
        self.most = most
        self.lanes: KeyLanes[str, int] = KeyLanes(most)
        self.number = 0
        self.now = 0.0
        #: (key, item), in the order of the stream, until done.
        self.hand: list[tuple[str, int]] = []
        self.flying: dict[str, int] = {}
        self.settling: dict[str, int] = {}
        self.due: dict[str, float] = {}
        #: When each key last had its turn.
        self.turn: dict[str, int] = {}
        self.turns = 0

    def _first(self, key: str) -> int:
        return next(item for other, item in self.hand if other == key)

    def _ready(self) -> set[str]:
        keys = {key for key, _ in self.hand}
        busy = {*self.flying, *self.settling}
        return {k for k in keys if k not in busy and self.due.get(k, 0.0) <= self.now}

    @rule(key=st.sampled_from(KEYS))
    def push(self, key: str) -> None:
        self.number += 1
        self.lanes.push(key, self.number)
        self.hand.append((key, self.number))

    @rule()
    def take(self) -> None:
        ready = self._ready()
        item = self.lanes.take()
        if not ready or len(self.flying) >= self.most:
            assert item is None
            return
        assert item is not None, f"{sorted(ready)} are ready"
        key = next(k for k, i in self.hand if i == item)
        assert key in ready
        assert item == self._first(key), "not the first of its key"
        self.flying[key] = item
        self.due.pop(key, None)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.flying)))
        self.lanes.settling(key)
        self.settling[key] = self.flying.pop(key)

    @precondition(lambda self: self.flying or self.settling)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted({*self.flying, *self.settling})))
        self.lanes.done(key)
        of = self.flying if key in self.flying else self.settling
        self.hand.remove((key, of.pop(key)))

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), delay=st.integers(0, 3))
    def again(self, data: st.DataObject, delay: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.flying)))
        # Even without a delay it is ready only when told what time it is.
        self.due[key] = self.now + delay + 0.5
        self.lanes.again(key, self.due[key])
        del self.flying[key]

    @rule(step=st.integers(1, 3))
    def time_passes(self, step: int) -> None:
        self.now += step
        waiting = [key for key, due in self.due.items() if due <= self.now]
        assert self.lanes.ripen(self.now) == len(waiting)
        for key in waiting:
            del self.due[key]

    @rule()
    def drop_waiting(self) -> None:
        busy = {*self.flying.items(), *self.settling.items()}
        kept = [pair for pair in self.hand if pair in busy]
        dropped = [i for k, i in self.hand if (k, i) not in busy]
        assert sorted(self.lanes.drop_waiting()) == dropped
        self.hand = kept
        self.due.clear()

    @invariant()
    def counts(self) -> None:
        if not hasattr(self, "lanes"):
            return
        assert len(self.lanes) == len(self.hand)
        assert self.lanes.in_flight == len(self.flying)
        assert self.lanes.waiting == len(self.hand) - len(self.flying) - len(self.settling)
        assert set(self.lanes.keys()) == {key for key, _ in self.hand}
        ready = len(self._ready())
        assert self.lanes.startable == min(ready, self.most - len(self.flying))
        assert self.lanes.next_due == min(self.due.values(), default=float("inf"))


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
