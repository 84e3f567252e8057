"""One owner of a keyed shard, step by step. Whole histories: `properties/test_keyed_machine.py`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from shove_actors.backends._owner_record import (
    REMEMBERED,
    TRIES_MOST,
    OwnerRecord,
    claimed,
    decode_owner,
    encode_owner,
    lost_record,
)
from shove_actors.backends._ownership import Fate, Ownership, Step

LEASE_S = 12.0


def pinned(own: Ownership, pin: str = "pin", now: float = 0.0) -> None:
    assert own.arrived(pin, 1, 1, in_hand=False, now=now) is Fate.DISCARD
    assert own.pin == pin


def step(own: Ownership, now: float, hand: int = 0) -> Step | None:
    return own.next(now, hand)[0]


def owner(now: float = 0.0) -> Ownership:
    """Of a shard that nobody had; nothing is delivered yet."""
    own = Ownership("me", LEASE_S)
    pinned(own, now=now)
    assert step(own, now) is Step.READ
    own.read(None, 0, now)
    assert step(own, now) is Step.LOOK
    own.looked("pin", 0, 1, now)
    assert step(own, now) is Step.CLAIM
    own.wrote(Step.CLAIM, 1, now, now)
    assert step(own, now) is Step.REWIND
    own.rewound(now)
    return own


def take(own: Ownership, count: int, sequence: int, now: float = 0.0) -> Fate:
    return own.arrived("pin", count, sequence, in_hand=False, now=now)


def test_a_standby_asks_for_nothing_but_the_record() -> None:
    own = Ownership("me", LEASE_S)
    assert own.pulls
    assert own.few
    assert step(own, 100.0) is Step.READ
    own.read(OwnerRecord(owner="other"), 5, 100.0)
    assert own.next(100.0, 0) == (None, 104.0)


def test_a_shard_that_nobody_had_is_taken_at_once() -> None:
    own = owner()
    assert own.starts
    assert take(own, 1, 1) is Fate.NEW
    assert take(own, 2, 4) is Fate.NEW


def test_the_record_has_to_stay_as_it_is_for_a_lease() -> None:
    own = Ownership("me", LEASE_S)
    pinned(own)
    assert step(own, 0.0) is Step.READ
    own.read(OwnerRecord(owner="other"), 5, 1.0)
    assert step(own, 1.0) is None
    assert step(own, 2.0) is Step.READ
    own.read(OwnerRecord(owner="other"), 6, 2.0)  # renewed: the wait begins anew
    own.read(OwnerRecord(owner="other"), 6, 13.9)
    assert step(own, 13.9) is None
    assert step(own, 14.0) is Step.LOOK


def test_what_was_handed_on_is_taken_at_once() -> None:
    own = Ownership("me", LEASE_S)
    pinned(own)
    own.read(OwnerRecord(owner="other", handed_on=True), 5, 0.0)
    assert step(own, 0.0) is Step.LOOK


def test_a_wait_that_began_before_the_pin_counts() -> None:
    own = Ownership("me", LEASE_S)
    own.read(OwnerRecord(owner="other"), 5, 0.0)
    own.read(OwnerRecord(owner="other"), 5, 8.0)
    pinned(own, now=11.0)
    assert step(own, 11.0) is Step.READ
    own.read(OwnerRecord(owner="other"), 5, 11.0)
    assert step(own, 12.0) is Step.LOOK


def test_the_longer_lease_has_to_pass() -> None:
    own = Ownership("me", LEASE_S)
    pinned(own)
    own.read(OwnerRecord(owner="other", lease=20.0), 5, 0.0)
    own.read(OwnerRecord(owner="other", lease=20.0), 5, 19.9)
    assert step(own, 19.9) is None
    assert step(own, 20.0) is Step.LOOK


def test_a_shorter_lease_than_ours_is_waited_for_as_ours() -> None:
    own = Ownership("me", LEASE_S)
    pinned(own)
    own.read(OwnerRecord(owner="other", lease=1.0), 5, 0.0)
    own.read(OwnerRecord(owner="other", lease=1.0), 5, 11.9)
    assert step(own, 11.9) is None


def test_the_lease_is_written_with_each_record() -> None:
    own = owner()
    assert own.record is not None
    assert own.record.lease == LEASE_S
    assert step(own, 4.0) is Step.RENEW
    assert own.wanted_record is not None
    assert own.wanted_record.lease == LEASE_S


def test_a_record_that_is_lost_has_to_stay_lost_for_a_lease() -> None:
    own = Ownership("me", LEASE_S)
    pinned(own)
    own.read(lost_record(), 0, 1.0)
    own.read(lost_record(), 0, 12.9)
    assert step(own, 12.9) is None
    assert step(own, 13.0) is Step.LOOK


def test_a_record_that_was_seen_is_lost_whatever_the_backend_thinks() -> None:
    """It waits for the lease that the record named."""
    own = Ownership("me", LEASE_S)
    own.read(OwnerRecord(owner="other", lease=20.0), 5, 0.0)
    pinned(own)
    own.read(None, 0, 1.0)
    own.read(None, 0, 20.9)
    assert step(own, 20.9) is None
    assert step(own, 21.0) is Step.LOOK


def test_another_record_at_the_same_revision_is_another_one() -> None:
    """A bucket that was made anew counts from 1 again."""
    own = Ownership("me", LEASE_S)
    pinned(own)
    own.read(OwnerRecord(owner="other"), 1, 0.0)
    own.read(OwnerRecord(owner="third"), 1, 11.9)
    assert step(own, 12.0) is None


def test_a_claim_follows_a_reading() -> None:
    """After a pause, the same revision may be that of another bucket."""
    own = Ownership("me", LEASE_S)
    pinned(own)
    own.read(OwnerRecord(owner="other"), 3, 0.0)
    own.read(OwnerRecord(owner="other"), 3, 12.0)
    assert step(own, 12.0) is Step.LOOK
    own.looked("pin", 0, 1, 12.0)
    assert step(own, 40.0) is Step.READ
    own.read(OwnerRecord(owner="third"), 3, 40.0)
    assert step(own, 40.0) is None


def test_an_owner_whose_record_is_gone_is_none() -> None:
    own = owner()
    take(own, 1, 1)
    assert step(own, 4.0) is Step.RENEW
    own.wrote(Step.RENEW, None, 4.0, 4.0)
    assert step(own, 4.0) is Step.READ
    own.read(None, 0, 4.0)
    assert not own.owns
    assert own.lapsed(4.0)
    own.read(None, 0, 4.1)
    assert step(own, 15.0) is Step.READ, "waits as anybody else"


@pytest.mark.parametrize("lease_s", [1.0, 3.0, 12.0, 30.0])
def test_one_lost_answer_does_not_cost_the_shard(lease_s: float) -> None:
    """There is time to find out whether it was written, and to write again."""
    own = Ownership("me", lease_s)
    pinned(own)
    own.read(None, 0, 0.0)
    own.looked("pin", 0, 1, 0.0)
    assert step(own, 0.0) is Step.CLAIM
    own.wrote(Step.CLAIM, 1, 0.0, 0.0)
    now = lease_s / 3
    assert step(own, now) is Step.RENEW
    now += own.request_s
    own.failed(Step.RENEW, now)
    nothing, now = own.next(now, 0)
    assert nothing is None
    assert step(own, now) is Step.READ
    now += own.request_s
    own.read(own.record, 2, now)
    assert step(own, now) is Step.RENEW
    assert now < own.lapses_at


def test_somebody_else_was_faster() -> None:
    own = Ownership("me", LEASE_S)
    pinned(own)
    own.read(None, 0, 0.0)
    own.looked("pin", 0, 1, 0.0)
    assert step(own, 0.0) is Step.CLAIM
    own.wrote(Step.CLAIM, None, 0.0, 0.0)
    assert not own.owns
    assert step(own, 0.0) is Step.READ


def test_not_pinned_any_more_when_it_looks() -> None:
    own = Ownership("me", LEASE_S)
    pinned(own)
    own.read(None, 0, 0.0)
    own.looked("another", 0, 1, 0.0)
    assert own.pin is None
    assert step(own, 0.0) is None


def test_own_handlers_of_before_have_to_end_first() -> None:
    own = owner()
    take(own, 1, 1)
    assert own.lapsed(9.0)
    assert not own.lapsed(9.0), "told once"
    assert step(own, 9.0, hand=1) is None
    assert step(own, 9.0) is Step.READ
    own.read(OwnerRecord(owner="me"), 1, 9.0)
    assert step(own, 9.0) is Step.LOOK, "nobody has to be waited for"


def test_the_lease_counts_from_when_the_write_left() -> None:
    own = owner()
    assert step(own, 3.9) is None
    assert step(own, 4.0) is Step.RENEW
    own.wrote(Step.RENEW, 2, 4.0, 8.0)
    assert own.lapses_at == 4.0 + 0.75 * LEASE_S
    assert own.may_settle(4.0 + 0.94 * LEASE_S)
    assert not own.may_settle(4.0 + 0.96 * LEASE_S)


def test_a_renewal_without_an_answer_proves_nothing() -> None:
    own = owner()
    assert step(own, 4.0) is Step.RENEW
    own.failed(Step.RENEW, 6.0)
    assert own.lapses_at == 0.75 * LEASE_S
    assert step(own, 6.25) is Step.READ
    own.read(OwnerRecord(owner="me"), 2, 6.3)  # it was written
    assert own.lapses_at == 0.75 * LEASE_S, "read is not written"
    assert step(own, 6.3) is Step.RENEW


def test_the_record_is_somebody_elses() -> None:
    own = owner()
    own.failed(Step.RENEW, 4.0)
    own.read(OwnerRecord(owner="other"), 7, 5.0)
    assert not own.owns
    assert own.lapsed(5.0)


def test_a_hole_in_the_count_rewinds() -> None:
    own = owner()
    assert take(own, 1, 1) is Fate.NEW
    assert take(own, 3, 3) is Fate.DISCARD
    assert step(own, 1.0) is Step.REWIND
    own.rewound(1.0)
    assert take(own, 4, 4, now=1.1) is Fate.DISCARD, "on its way before the rewind"
    assert own.arrived("pin", 1, 1, in_hand=True, now=1.2) is Fate.AGAIN
    assert take(own, 2, 2, now=1.2) is Fate.NEW


def test_what_was_settled_and_not_heard_is_settled_again() -> None:
    own = owner()
    assert take(own, 1, 1) is Fate.NEW
    assert take(own, 2, 2) is Fate.NEW
    assert take(own, 3, 1) is Fate.SETTLED


def test_number_one_that_never_comes_is_asked_for_again() -> None:
    own = owner()
    assert take(own, 2, 2, now=0.5) is Fate.DISCARD
    assert step(own, 0.5) is None
    assert take(own, 3, 3, now=1.5) is Fate.DISCARD
    assert step(own, 1.5) is Step.REWIND


def test_two_heartbeats_that_know_of_more() -> None:
    own = owner()
    take(own, 1, 1)
    own.delivered_up_to(2)
    assert step(own, 0.5) is None, "it may be on its way"
    own.delivered_up_to(2)
    assert step(own, 0.5) is Step.REWIND


def test_pinned_anew_after_a_restart() -> None:
    own = owner()
    take(own, 1, 1)
    own.refused(1.0)
    assert own.pulls
    assert step(own, 1.0) is Step.LOOK
    own.looked(None, 0, 1, 1.0)
    assert own.starts, "nobody else is pinned: go on"
    assert own.arrived("pin2", 5, 2, in_hand=False, now=1.1) is Fate.DISCARD
    assert own.pin == "pin2"
    assert step(own, 1.1) is Step.REWIND


def test_somebody_else_is_pinned() -> None:
    own = owner()
    take(own, 1, 1)
    own.refused(1.0)
    assert step(own, 1.0, hand=1) is Step.LOOK
    own.looked("theirs", 0, 1, 1.0)
    assert own.leaving
    assert not own.starts
    assert not own.pulls
    assert step(own, 1.0, hand=1) is None, "a handler runs still"
    assert step(own, 4.0, hand=1) is Step.RENEW, "for as long as it takes"
    own.wrote(Step.RENEW, 2, 4.0, 4.0)
    assert step(own, 5.0) is Step.REWIND
    own.rewound(5.0)
    assert step(own, 5.0) is Step.RELEASE
    assert own.wanted_record is not None
    assert own.wanted_record.handed_on
    own.wrote(Step.RELEASE, 3, 5.0, 5.0)
    assert not own.owns
    assert not own.lapsed(5.0), "nothing is to be cancelled"


def test_leaving_unpins() -> None:
    own = owner()
    own.leave()
    assert step(own, 0.0) is Step.REWIND
    own.failed(Step.REWIND, 0.0)
    assert step(own, 0.3) is Step.RELEASE, "without it the next one only waits longer"
    own.wrote(Step.RELEASE, 2, 0.3, 0.3)
    assert not own.pulls
    assert step(own, 0.3) is Step.UNPIN
    own.unpinned()
    assert own.pin is None


def handed_on(own: Ownership, now: float) -> OwnerRecord:
    own.leave()
    assert step(own, now) is Step.REWIND
    own.rewound(now)
    assert step(own, now) is Step.RELEASE
    record = own.wanted_record
    assert record is not None
    own.wrote(Step.RELEASE, 2, now, now)
    return record


def follower(record: OwnerRecord, now: float, stream: str = "") -> Ownership:
    own = Ownership("next", LEASE_S)
    pinned(own, now=now)
    own.read(record, 2, now)
    own.looked("pin", 0, 9, now, stream)
    assert step(own, now) is Step.CLAIM
    own.wrote(Step.CLAIM, 3, now, now)
    return own


def test_what_waits_for_its_next_try_is_handed_on() -> None:
    first = owner()
    first.waits = {7: 8.0, 8: 5.0, 9: 2.0}
    record = handed_on(first, 3.0)
    assert sorted(record.tries) == [(7, 5.0), (8, 2.0)], "9 is due"
    second = follower(record, 100.0)
    assert second.tries == {7: 105.0, 8: 102.0}
    assert second.record is not None
    assert second.record.tries == (), "not for whoever comes after it has died"
    # What has not come yet is handed on with the rest.
    del second.tries[8]
    second.waits = {20: 101.0}
    assert sorted(handed_on(second, 100.5).tries) == [(7, 4.5), (20, 0.5)]


def test_waits_are_of_one_stream() -> None:
    first = owner()
    first.waits = {7: 8.0}
    record = replace(handed_on(first, 3.0), stream="monday")
    assert follower(record, 4.0, "monday").tries == {7: 9.0}
    assert follower(record, 4.0, "tuesday").tries == {}


def test_the_longest_waits_are_handed_on() -> None:
    own = owner()
    own.waits = {n: float(n) for n in range(1, TRIES_MOST + 11)}
    tries = dict(handed_on(own, 0.0).tries)
    assert (len(tries), min(tries)) == (TRIES_MOST, 11)


def test_whoever_is_pinned_looks_at_the_record_at_once() -> None:
    own = Ownership("me", LEASE_S)
    own.read(OwnerRecord(owner="other"), 5, 0.0)
    assert step(own, 1.0) is None
    pinned(own, now=1.0)
    assert step(own, 1.0) is Step.READ
    own.read(OwnerRecord(owner="other", handed_on=True), 6, 1.0)
    assert step(own, 1.0) is Step.LOOK


def test_whoever_is_pinned_and_does_not_want_it_says_so() -> None:
    own = Ownership("me", LEASE_S)
    own.leave()
    pinned(own, now=1.0)
    assert step(own, 1.0) is Step.UNPIN
    own.unpinned()
    assert step(own, 1.0) is Step.READ, "as ever: so that the wait is over when it is wanted"


def test_nothing_is_asked_without_a_connection() -> None:
    own = owner()
    own.disconnected()
    assert own.next(4.0, 0) == (None, float("inf"))
    own.reconnected(5.0)
    assert step(own, 5.0) is Step.RENEW


def test_a_durable_that_is_made_anew_ends_the_ownership() -> None:
    """Its sequences may be those of another stream."""
    own = owner()
    take(own, 1, 7)
    own.recreated()
    assert own.lapsed(0.1)
    assert not own.owns


def test_nor_is_anything_kept_of_an_ownership_of_before() -> None:
    """What it has left unproven would be acknowledged in the other stream."""
    own = Ownership("me", LEASE_S)
    own.recreated()
    assert own.lapsed(0.1)
    assert not own.lapsed(0.1)


# ------------------------------------------------------------------ the record


def test_deliveries_are_counted_by_owners_that_vanished() -> None:
    first = claimed(None, "a", floor=0, high=3)
    assert [first.deliveries(s) for s in (1, 3)] == [1, 1], "thrown away by standbys"
    second = claimed(first, "b", floor=0, high=5)
    assert [second.deliveries(s) for s in (1, 5, 6)] == [2, 2, 1]
    third = claimed(second, "c", floor=2, high=5)
    assert [third.deliveries(s) for s in (3, 5, 6)] == [3, 3, 1]


def test_what_was_handed_on_was_delivered_but_killed_nobody() -> None:
    left = OwnerRecord(owner="a", handed_on=True, high=5)
    after = claimed(left, "b", floor=2, high=9)
    assert [after.deliveries(s) for s in (3, 5, 6)] == [2, 2, 1]
    assert after.lost == ()


def test_counts_are_of_one_stream() -> None:
    """Its sequences begin again when it is deleted and declared anew."""
    record = claimed(None, "a", floor=0, high=0, stream="first")
    for number in range(4):
        record = claimed(record, f"o{number}", floor=0, high=20, stream="first")
    assert record.deliveries(1) == 5
    assert claimed(record, "b", floor=0, high=20, stream="first").deliveries(1) == 6
    assert claimed(record, "b", floor=0, high=1, stream="second").deliveries(1) == 1
    assert claimed(record, "b", floor=0, high=20).deliveries(1) == 6, "not known: the same"
    left = OwnerRecord(owner="a", handed_on=True, high=20, stream="first")
    assert claimed(left, "b", floor=0, high=1, stream="second").deliveries(1) == 1


def test_settled_ranges_are_forgotten_and_there_are_never_many() -> None:
    record = claimed(None, "a", floor=0, high=0)
    for number in range(1, 200):
        record = claimed(record, f"o{number}", floor=0, high=number)
    assert len(record.lost) == REMEMBERED
    assert claimed(record, "z", floor=500, high=500, ours=True).lost == ()


def test_a_record_survives_the_wire() -> None:
    spans = ((1, 4), (2, 9))
    record = OwnerRecord(
        owner="a",
        handed_on=True,
        high=9,
        lost=spans,
        lease=2.5,
        stream="2026-11-30T01:00:00Z",
        tries=((7, 0.5),),
    )
    assert decode_owner(encode_owner(record)) == record
    assert decode_owner(None) is None


def test_a_record_without_a_lease_is_read() -> None:
    found = decode_owner(b'{"owner":"a","handed_on":true,"high":7,"lost":[[1,2]]}')
    assert found == OwnerRecord(owner="a", handed_on=True, high=7, lost=((1, 2),))
    assert (found.lease, found.stream) == (0.0, "")


def test_what_nobody_can_read_belongs_to_somebody() -> None:
    found = decode_owner(b"\xff not json")
    assert found is not None
    assert not found.handed_on
