"""Per-key dispatch against a reference that is as simple as the promise."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shove_actors._errors import UsageError
from shove_actors.backends._key_lanes import LIST_MOST, UNPROVEN_MOST, KeyLanes

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
    lanes.drop("a")
    assert take_all(lanes) == ["a1"]


def test_never_more_than_the_limit() -> None:
    lanes = filled(2, "abc")
    assert lanes.startable == 2
    assert take_all(lanes) == ["a0", "b1"]
    lanes.drop("b")
    assert take_all(lanes) == ["c2"]


def test_a_busy_key_takes_turns() -> None:
    lanes = filled(1, "aaaabc")
    order = []
    while (item := lanes.take()) is not None:
        order.append(item)
        lanes.drop(item[0])
    assert order == ["a0", "b4", "c5", "a1", "a2", "a3"]


def test_retry_delays_its_key_only() -> None:
    lanes = filled(10, "aab")
    assert take_all(lanes) == ["a0", "b2"]
    lanes.again("a", 5.0)
    lanes.push("b", "b3")
    lanes.drop("b")
    assert lanes.next_due == 5.0
    assert take_all(lanes) == ["b3"]
    assert lanes.ripen(4.9) == 0
    assert take_all(lanes) == []
    assert lanes.ripen(5.0) == 1
    assert take_all(lanes) == ["a0"], "the one that is tried again is still the first"
    lanes.drop("a")
    assert take_all(lanes) == ["a1"]


def test_keys_that_wait_take_nobodys_place() -> None:
    lanes = filled(1, "ab")
    assert lanes.take() == "a0"
    lanes.again("a", 1.0)
    assert lanes.take() == "b1"


def test_a_key_that_is_unproven_waits_and_takes_nobodys_place() -> None:
    lanes = filled(1, "aab")
    assert lanes.take() == "a0"
    lanes.ended("a")
    assert take_all(lanes) == ["b2"]
    lanes.drop("b")
    assert take_all(lanes) == []
    assert lanes.wants_proof
    assert list(lanes.ask()) == ["a0"]
    assert take_all(lanes) == []
    lanes.answered()
    assert take_all(lanes) == ["a1"]


def test_a_key_of_which_nothing_waits_is_not_asked_for_until_it_does() -> None:
    lanes = filled(2, "ab")
    assert take_all(lanes) == ["a0", "b1"]
    lanes.ended("a")
    lanes.ended("b")
    assert (lanes.wants_proof, lanes.unproven, len(lanes)) == (False, 2, 0)
    lanes.push("b", "b2")
    assert lanes.wants_proof
    assert take_all(lanes) == []
    lanes.ask()
    lanes.answered()
    assert (take_all(lanes), lanes.unproven) == (["b2"], 0)


def test_an_answer_proves_what_was_sent_before_its_question() -> None:
    lanes = filled(2, "aabb")
    assert take_all(lanes) == ["a0", "b2"]
    lanes.ended("a")
    lanes.ask()
    lanes.ended("b")
    assert not lanes.wants_proof, "one question at a time"
    lanes.answered()
    assert take_all(lanes) == ["a1"]
    assert list(lanes.ask()) == ["b2"]


def test_no_answer_proves_what_is_doubted() -> None:
    lanes = filled(3, "aabbc")
    assert take_all(lanes) == ["a0", "b2", "c4"]
    lanes.ended("a")
    lanes.ask()
    lanes.ended("b")
    lanes.doubt()
    lanes.answered()
    lanes.ended("c")
    lanes.ask()
    lanes.answered()
    assert take_all(lanes) == []
    assert dict(lanes.doubted) == {"a": "a0", "b": "b2"}
    lanes.proven("b")
    assert take_all(lanes) == ["b3"]
    lanes.resent(lambda item: item == "a0")
    assert lanes.wants_proof, "it was settled once more: the next answer proves it"


def test_what_was_settled_again_needs_another_question() -> None:
    lanes = filled(2, "aab")
    assert take_all(lanes) == ["a0", "b2"]
    lanes.ended("a")
    lanes.ended("b")
    lanes.ask()
    lanes.resent(lambda item: item == "b2")
    assert not lanes.asking
    lanes.answered()
    assert take_all(lanes) == []
    assert sorted(lanes.ask()) == ["a0", "b2"]


def test_many_keys_that_nobody_waits_for_are_asked_for_together() -> None:
    lanes: KeyLanes[int, int] = KeyLanes(1)
    for number in range(UNPROVEN_MOST):
        assert not lanes.wants_proof
        lanes.push(number, number)
        assert lanes.take() == number
        lanes.ended(number)
    assert lanes.wants_proof
    lanes.ask()
    lanes.answered()
    assert lanes.unproven == 0


def test_a_key_seen_is_not_a_key_kept() -> None:
    lanes: KeyLanes[int, int] = KeyLanes(4)
    for number in range(100_000):
        lanes.push(number, number)
        assert lanes.take() == number
        lanes.drop(number)
    assert len(lanes.keys()) == 0
    assert len(lanes) == 0


def test_dropping_leaves_what_is_in_flight() -> None:
    lanes = filled(1, "aabbc")
    assert lanes.take() == "a0"
    assert lanes.drop_waiting() == ["a1", "b2", "b3", "c4"]
    assert len(lanes) == 1
    lanes.drop("a")
    assert lanes.take() is None
    assert len(lanes.keys()) == 0


def test_many_behind_one_key_stay_in_order() -> None:
    lanes: KeyLanes[str, int] = KeyLanes(4)
    many = 3 * LIST_MOST
    for number in range(many):
        lanes.push("a", number)
    found = []
    while (item := lanes.take()) is not None:
        found.append(item)
        if item == LIST_MOST:
            lanes.push("a", many)
        lanes.drop("a")
    assert found == list(range(many + 1))
    assert len(lanes.keys()) == 0


def test_winding_down_starts_the_others_only() -> None:
    lanes = filled(3, "aabbcc")
    assert take_all(lanes) == ["a0", "b2", "c4"]
    lanes.drop("c")
    assert len(lanes) == 5
    lanes.wind_down()
    lanes.push("d", "d6")
    assert take_all(lanes) == ["c5"]
    lanes.drop("a")
    lanes.ended("b")
    assert take_all(lanes) == ["d6"], "a is ready, and stopped"
    lanes.ask()
    lanes.answered()
    lanes.drop("c")
    lanes.push("c", "c7")
    assert take_all(lanes) == ["c7"], "b is proven, and stopped; c began after that"
    assert lanes.startable == 0
    lanes.drop("d")
    lanes.go_on()
    assert take_all(lanes) == ["a1", "b3"]


def test_what_is_stopped_is_dropped_with_the_rest() -> None:
    lanes = filled(1, "aab")
    assert lanes.take() == "a0"
    lanes.wind_down()
    lanes.drop("a")
    assert lanes.drop_waiting() == ["a1", "b2"]
    lanes.go_on()
    assert take_all(lanes) == []


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
        self.fresh: dict[str, int] = {}
        self.asked: dict[str, int] = {}
        self.doubted: dict[str, int] = {}
        self.due: dict[str, float] = {}
        #: When each key last had its turn.
        self.turn: dict[str, int] = {}
        self.turns = 0
        self.barred: set[str] = set()

    def _first(self, key: str) -> int:
        return next(item for other, item in self.hand if other == key)

    def _ready(self) -> set[str]:
        keys = {key for key, _ in self.hand}
        busy = {*self.flying, *self.fresh, *self.asked, *self.doubted, *self.barred}
        return {k for k in keys if k not in busy and self.due.get(k, 0.0) <= self.now}

    @rule(key=st.sampled_from(KEYS))
    def push(self, key: str) -> None:
        self.number += 1
        self.lanes.push(key, self.number)
        self.hand.append((key, self.number))

    @rule(key=st.sampled_from(KEYS), delay=st.integers(0, 3))
    def push_later(self, key: str, delay: int) -> None:
        """What waits already, or for a proof, comes first anyway."""
        self.number += 1
        due = self.now + delay + 0.5
        self.lanes.push_later(key, self.number, due)
        known = {*self.fresh, *self.asked, *self.doubted, *(k for k, _ in self.hand)}
        self.hand.append((key, self.number))
        if key not in known:
            self.due[key] = due

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
    def end(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.flying)))
        self.lanes.ended(key)
        self.fresh[key] = self.flying.pop(key)
        self.hand.remove((key, self.fresh[key]))

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.flying)))
        self.lanes.drop(key)
        self.hand.remove((key, self.flying.pop(key)))

    @precondition(lambda self: self.fresh and not self.asked)
    @rule()
    def ask(self) -> None:
        assert sorted(self.lanes.ask()) == sorted(self.fresh.values())
        self.asked, self.fresh = self.fresh, {}

    @rule()
    def answered(self) -> None:
        self.lanes.answered()
        self.asked.clear()

    @rule()
    def doubt(self) -> None:
        self.lanes.doubt()
        self.doubted.update(self.fresh)
        self.doubted.update(self.asked)
        self.fresh.clear()
        self.asked.clear()

    @precondition(lambda self: self.doubted)
    @rule(data=st.data(), again=st.booleans())
    def look_for_a_doubted_one(self, data: st.DataObject, again: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.doubted)))
        item = self.doubted.pop(key)
        if again:
            self.lanes.resent(lambda other: other == item)
            self.fresh[key] = item
        else:
            self.lanes.proven(key)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def asked_in_vain(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(sorted(self.asked.values())))
        self.lanes.resent(lambda other: other == item)
        self.fresh.update(self.asked)
        self.asked.clear()

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
        busy = {*self.flying.items()}
        kept = [pair for pair in self.hand if pair in busy]
        dropped = [i for k, i in self.hand if (k, i) not in busy]
        assert sorted(self.lanes.drop_waiting()) == dropped
        self.hand = kept
        self.due.clear()

    @rule()
    def wind_down(self) -> None:
        self.lanes.go_on()
        self.lanes.wind_down()
        self.barred = set(self.flying)

    @rule()
    def go_on(self) -> None:
        self.lanes.go_on()
        self.barred.clear()

    @invariant()
    def counts(self) -> None:
        if not hasattr(self, "lanes"):
            return
        assert len(self.lanes) == len(self.hand)
        assert self.lanes.in_flight == len(self.flying)
        assert self.lanes.waiting == len(self.hand) - len(self.flying)
        assert set(self.lanes.keys()) == {key for key, _ in self.hand}
        assert dict(self.lanes.doubted) == self.doubted
        assert self.lanes.unproven == len(self.fresh) + len(self.asked) + len(self.doubted)
        wants = any(key in self.fresh for key, _ in self.hand) and not self.asked
        assert self.lanes.wants_proof == wants
        ready = len(self._ready())
        assert self.lanes.startable == min(ready, self.most - len(self.flying))
        assert self.lanes.next_due == min(self.due.values(), default=float("inf"))
        later = {(self._first(key), due) for key, due in self.due.items()}
        assert set(self.lanes.later()) == later


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
