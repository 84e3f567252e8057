"""Topology: derived names, subjects, and collisions between topologies."""

from __future__ import annotations

import pytest

from shove_actors._errors import TopologyError, UsageError
from shove_actors.messaging import (
    HoldQueue,
    SequenceFailure,
    Topology,
    TopologyBuilder,
    check_collisions,
)

LEDGER = (
    TopologyBuilder("ledger")
    .sequenced(SequenceFailure.SKIP)
    .routing_shards(3)
    .hold_queue(1)
    .dlq()
    .build()
)


def test_durables_and_shard_subjects() -> None:
    topology = TopologyBuilder("orders").hold_queue(5).dlq().build()
    assert topology.durable == "orders-consumer"
    assert topology.dlq_durable == "orders-dlq-consumer"
    assert topology.hold_durable(topology.holds[0]) == "orders-hold-5s-mover"
    assert LEDGER.shard_durable(2) == "ledger-shard-2"
    assert LEDGER.shard_subject(2) == "ledger.shard.2"
    assert TopologyBuilder("orders").build().dlq_durable is None


@pytest.mark.parametrize("shard", [-1, 3])
def test_a_lane_that_does_not_exist_is_refused(shard: int) -> None:
    with pytest.raises(UsageError, match="has 3 shards"):
        LEDGER.shard_subject(shard)
    with pytest.raises(UsageError, match="has 3 shards"):
        LEDGER.shard_durable(shard)


def test_publish_subjects_and_the_default() -> None:
    plain = TopologyBuilder("orders").build()
    assert plain.publish_subjects == ("orders",)
    assert plain.default_subject == "orders"
    assert LEDGER.publish_subjects == ("ledger.shard.0", "ledger.shard.1", "ledger.shard.2")
    assert LEDGER.default_subject is None
    wild = TopologyBuilder("q").nats_subjects(["a.*", "b.c", "b.d"]).build()
    assert wild.publish_subjects == ("a.*", "b.c", "b.d")
    assert wild.default_subject == "b.c"
    assert TopologyBuilder("q").nats_subjects(["a.>"]).build().default_subject is None


def test_check_subject_takes_literals_that_a_subject_matches() -> None:
    topology = TopologyBuilder("q").nats_subjects(["a.*", "b.c"]).build()
    assert topology.check_subject("a.x") == "a.x"
    assert topology.check_subject("b.c") == "b.c"
    for other in ("q", "a", "a.x.y", "b.d"):
        with pytest.raises(TopologyError, match="is not one of topic 'q'"):
            topology.check_subject(other)
    for wildcard in ("a.*", "a.>", ">"):
        with pytest.raises(TopologyError, match="must be literal"):
            topology.check_subject(wildcard)
    with pytest.raises(TopologyError, match="must be a str"):
        topology.check_subject(7)  # type: ignore[arg-type]


def test_check_subject_of_other_kinds_of_topic() -> None:
    assert TopologyBuilder("q").build().check_subject("q") == "q"
    with pytest.raises(TopologyError, match="the key decides"):
        LEDGER.check_subject("ledger.shard.0")
    external = TopologyBuilder("q").nats_external_stream().build()
    assert external.check_subject("whatever.its.owner.bound") == "whatever.its.owner.bound"
    with pytest.raises(TopologyError, match="empty token"):
        external.check_subject("a..b")


def test_a_topology_made_by_hand_is_checked_as_well() -> None:
    with pytest.raises(TopologyError, match="routing_shards needs a sequenced topology"):
        Topology(queue="q", routing_shards=4)
    with pytest.raises(TopologyError, match="is not named after its queue and delay"):
        Topology(queue="q", holds=(HoldQueue("other", 1.0),))


def test_a_topology_is_frozen() -> None:
    with pytest.raises(AttributeError):
        LEDGER.queue = "other"  # type: ignore[misc]


def test_pc070_a_topic_named_like_anothers_dead_letters_is_refused() -> None:
    """Both would be one stream and one durable: each consumes the other's messages."""
    orders = TopologyBuilder("orders").dlq().build()
    trap = TopologyBuilder("orders-dlq").build()
    for pair in ((orders, trap), (trap, orders)):
        with pytest.raises(TopologyError) as caught:
            check_collisions(pair)
        assert "'orders-dlq'" in str(caught.value)
        assert "Rename one" in str(caught.value)


def test_pc070_hold_queues_of_02_and_07_seconds_have_names_of_their_own() -> None:
    topology = TopologyBuilder("q").hold_queue(0.2).hold_queue(0.7).build()
    assert [hold.name for hold in topology.holds] == ["q-hold-200ms", "q-hold-700ms"]


def test_pc070_a_hold_queue_and_a_topic_may_not_share_a_stream() -> None:
    with pytest.raises(TopologyError, match="a hold queue of queue 'orders'"):
        check_collisions(
            [
                TopologyBuilder("orders").hold_queue(5).build(),
                TopologyBuilder("orders-hold-5s").build(),
            ]
        )


def test_pc070_two_topics_may_not_share_a_dead_letter_queue() -> None:
    with pytest.raises(TopologyError, match="dlq_named"):
        check_collisions(
            [
                TopologyBuilder("a").dlq_named("dead").build(),
                TopologyBuilder("b").dlq_named("dead").build(),
            ]
        )


def test_pc070_one_queue_with_two_topologies_is_refused_and_twice_the_same_is_not() -> None:
    one = TopologyBuilder("q").hold_queue(1).build()
    with pytest.raises(TopologyError, match="declared twice with different topologies"):
        check_collisions([one, TopologyBuilder("q").hold_queue(2).build()])
    check_collisions([one, TopologyBuilder("q").hold_queue(1).build(), LEDGER])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["x.*"], ["x.y"]),
        (["x.>"], ["x.*.y"]),
        (["x.a.*"], ["x.*.b"]),
        (["orders"], ["a.b", "orders"]),
    ],
)
def test_pc070_overlapping_subjects_of_two_topics_are_refused(
    one: list[str], other: list[str]
) -> None:
    for pair in ((one, other), (other, one)):
        left = TopologyBuilder("left").nats_subjects(pair[0]).build()
        right = TopologyBuilder("right").nats_subjects(pair[1]).build()
        with pytest.raises(TopologyError, match="overlaps") as caught:
            check_collisions([left, right])
        assert "'left'" in str(caught.value)
        assert "'right'" in str(caught.value)


def test_pc070_a_wildcard_that_takes_anothers_shards_or_dead_letters_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"ledger\.shard"):
        check_collisions([LEDGER, TopologyBuilder("w").nats_subjects(["ledger.>"]).build()])
    with pytest.raises(TopologyError, match="overlaps"):
        check_collisions([LEDGER, TopologyBuilder("w").nats_subjects(["*"]).build()])


def test_topics_that_share_nothing_pass() -> None:
    check_collisions([])
    check_collisions(
        [
            LEDGER,
            TopologyBuilder("orders").hold_queue(5).dlq().build(),
            TopologyBuilder("prices").nats_subjects(["prices.>"]).dlq().build(),
            TopologyBuilder("audit").nats_subjects(["audit.*", "log.*"]).build(),
        ]
    )


def test_a_bucket_of_poisoned_keys_belongs_to_one_topic() -> None:
    failing = TopologyBuilder("a").sequenced(SequenceFailure.FAIL_ALL).allow_message_loss().build()
    other = TopologyBuilder("KV_a-poison").build()
    with pytest.raises(TopologyError, match="the bucket of poisoned keys") as caught:
        check_collisions([failing, other])
    assert "'KV_a-poison'" in str(caught.value)
    reader = TopologyBuilder("reader").nats_subjects(["$KV.>"]).build()
    with pytest.raises(TopologyError, match="overlaps"):
        check_collisions([failing, reader])
    check_collisions([failing, TopologyBuilder("a-poison").build()])
