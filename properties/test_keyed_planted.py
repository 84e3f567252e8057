"""Defects in the ownership of keyed shards, one at a time: the histories have to show each."""

from __future__ import annotations

import os
from collections.abc import ValuesView

import keyed_process
import pytest
from keyed_histories import history

from shove_actors.backends._key_lanes import KeyLanes
from shove_actors.backends._owner_record import OwnerRecord
from shove_actors.backends._ownership import Fate, Ownership, Step

_DEV = os.environ.get("HYPOTHESIS_PROFILE", "dev") == "dev"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_DEV, reason="a minute of searching: HYPOTHESIS_PROFILE=ci"),
]

#: Within so many histories each is found; most take less than fifty.
HISTORIES = 1500


class NoWait(Ownership):
    """Takes the shard over as soon as it is pinned."""

    def _free_at(self) -> float:
        return float("-inf")


class HalfWait(Ownership):
    """Waits for half of the lease."""

    def _free_at(self) -> float:
        return super()._free_at() - self.lease_s / 2


class WaitsItsOwn(Ownership):
    """Waits for its own lease, whatever the owner's is."""

    def _free_at(self) -> float:
        free_at = super()._free_at()
        return min(free_at, self._since + self.lease_s)


class LostIsFree(Ownership):
    """Takes a record that was lost for one that never was."""

    def _free_at(self) -> float:
        lost = self.record is not None and not self.record.owner
        return float("-inf") if lost else super()._free_at()


class CountsOfAnotherStream(Ownership):
    """Does not see that the stream is another one."""

    def looked(
        self, pinned: str | None, floor: int, high: int, now: float, stream: str = ""
    ) -> None:
        super().looked(pinned, floor, high, now)


class WaitsOnce(Ownership):
    """Goes on waiting from its first look, although the record was renewed since."""

    def read(self, record: OwnerRecord | None, revision: int, now: float) -> None:
        since, known = self._since, self._known
        super().read(record, revision, now)
        if known:
            self._since = since


class ProofAtAnswer(Ownership):
    """Counts its lease from when it heard of the renewal."""

    def wrote(self, step: Step, revision: int | None, sent_at: float, now: float) -> None:
        super().wrote(step, revision, now, now)


class NoRewind(Ownership):
    """Takes what the server sends, from wherever."""

    def _next_of_owner(self, now: float, hand: int) -> tuple[Step | None, float]:
        self._rewind = False
        return super()._next_of_owner(now, hand)


class AnyCount(Ownership):
    """Does not look for holes in the count."""

    def arrived(
        self, pin: str | None, count: int, sequence: int, *, in_hand: bool, now: float
    ) -> Fate:
        if self.owns and not self._awaits_first:
            self._expected = count
        return super().arrived(pin, count, sequence, in_hand=in_hand, now=now)


class TakesStragglers(Ownership):
    """Takes what was on its way before the rewind."""

    def arrived(
        self, pin: str | None, count: int, sequence: int, *, in_hand: bool, now: float
    ) -> Fate:
        if self._awaits_first and not self._rewind:
            self._awaits_first, self._expected = False, count
        return super().arrived(pin, count, sequence, in_hand=in_hand, now=now)


class RemembersSettled(Ownership):
    """Believes that what it took under an earlier ownership is settled."""

    def wrote(self, step: Step, revision: int | None, sent_at: float, now: float) -> None:
        last = self.last
        super().wrote(step, revision, sent_at, now)
        self.last = max(last, self.last)


class ReleasesBusy(Ownership):
    """Hands the shard on while handlers run."""

    def next(self, now: float, hand: int) -> tuple[Step | None, float]:
        return super().next(now, 0)


class NeverLapses(Ownership):
    """Does not cancel its handlers when the lease runs out."""

    def lapsed(self, now: float) -> bool:
        told, self._lapsed = self._lapsed, False
        return told


class LapsesLate(Ownership):
    """Cancels them when the lease is over, instead of before."""

    def lapsed(self, now: float) -> bool:
        return super().lapsed(now - self.lease_s / 4)


class NoConflict(Ownership):
    """Takes a refused write for one that was written."""

    def wrote(self, step: Step, revision: int | None, sent_at: float, now: float) -> None:
        super().wrote(step, self.revision if revision is None else revision, sent_at, now)


class LooksAway(Ownership):
    """Does not care whom the server has pinned."""

    def looked(
        self, pinned: str | None, floor: int, high: int, now: float, stream: str = ""
    ) -> None:
        super().looked(self.pin, floor, high, now, stream)


class NeverLetsGo(Ownership):
    """Keeps a shard whose messages go to somebody else."""

    def looked(
        self, pinned: str | None, floor: int, high: int, now: float, stream: str = ""
    ) -> None:
        super().looked(pinned, floor, high, now, stream)
        self.leaving = False


class BelievesUnseen(Ownership):
    """What is settled before it came again after a rewind counts as read with the next answer."""

    def next(self, now: float, hand: int) -> tuple[Step | None, float]:
        found = super().next(now, hand)
        self.seen = 1 << 60
        return found


DEFECTS = (
    NoWait,
    HalfWait,
    WaitsItsOwn,
    LostIsFree,
    CountsOfAnotherStream,
    WaitsOnce,
    ProofAtAnswer,
    NoRewind,
    AnyCount,
    TakesStragglers,
    RemembersSettled,
    ReleasesBusy,
    NeverLapses,
    LapsesLate,
    NoConflict,
    LooksAway,
    NeverLetsGo,
)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: str(defect.__name__))
def test_the_histories_show_it(defect: type[Ownership]) -> None:
    for seed in range(HISTORIES):
        try:
            history(seed, defect)
        except AssertionError:
            return
    pytest.fail(f"{HISTORIES} histories with {defect.__name__}, and nothing was seen")


class StartsUnread(KeyLanes[str, object]):
    """The next of a key begins before the server has read that the one before has ended."""

    def ended(self, key: str) -> None:
        super().drop(key)


class ForgetsUnproven(KeyLanes[str, object]):
    """A key of which nothing is in hand is forgotten at once, and its next one begins."""

    def ended(self, key: str) -> None:
        waits = key in self._behind
        super().ended(key)
        if not waits:
            del self._fresh[key]


class ProvesTooMuch(KeyLanes[str, object]):
    """An answer is taken for one to what was sent after its question, too."""

    def answered(self) -> None:
        super().answered()
        if self._fresh:
            super().ask()
            super().answered()


class NeverDoubts(KeyLanes[str, object]):
    """After a cut or a rewind the next answer is believed as any other."""

    def doubt(self) -> None:
        self._fresh.update(self._asked)
        self._asked = {}
        self._urgent = any(key in self._blocked for key in self._fresh)


class DoubtsTheQuestionOnly(KeyLanes[str, object]):
    """What was sent behind the question that was cut off counts as sent after the cut."""

    def doubt(self) -> None:
        self._doubted.update(self._asked)
        self._asked = {}


class AsksForTheFirst(KeyLanes[str, object]):
    """The question is about any of them, not about the last one of the stream."""

    def ask(self) -> ValuesView[object]:
        asked = super().ask()
        first = min(asked, key=lambda item: item.sequence)  # type: ignore[attr-defined]
        return {"": first}.values()


class RetriesLast(KeyLanes[str, object]):
    """What is tried again goes behind the others of its key."""

    def again(self, key: str, due: float) -> None:
        behind = self._behind.get(key)
        if behind:
            behind.append(self._first[key])
            self._first[key] = behind[0]
            del behind[0]
        super().again(key, due)


class TwoAtOnce(KeyLanes[str, object]):
    """A key that gets another message is ready, whatever is in flight."""

    def push(self, key: str, item: object) -> None:
        super().push(key, item)
        if key not in self._ready:
            self._ready.append(key)


OF_KEYS = (
    StartsUnread,
    ForgetsUnproven,
    ProvesTooMuch,
    NeverDoubts,
    DoubtsTheQuestionOnly,
    RetriesLast,
    TwoAtOnce,
)


@pytest.mark.parametrize("defect", OF_KEYS, ids=lambda defect: str(defect.__name__))
def test_the_histories_show_what_is_wrong_with_the_keys(
    defect: type[KeyLanes[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_process, "LANES", defect)
    for seed in range(HISTORIES):
        try:
            history(seed)
        except Exception:
            return
    pytest.fail(f"{HISTORIES} histories with {defect.__name__}, and nothing was seen")


def test_the_histories_show_two_that_hide_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what guards against acknowledgements that a rewind made void, either does nearly all."""
    monkeypatch.setattr(keyed_process, "LANES", AsksForTheFirst)
    for seed in range(HISTORIES):
        try:
            history(seed, BelievesUnseen)
        except AssertionError:
            return
    pytest.fail(f"{HISTORIES} histories, and nothing was seen")


def test_without_a_defect_nothing_is_seen() -> None:
    for seed in range(300):
        history(seed)
