"""TopologyBuilder: each step, and every refusal of build()."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta

import pytest

from shove_actors._errors import TopologyError, UsageError
from shove_actors.messaging import (
    HoldQueue,
    NatsStreamConfig,
    Retention,
    SequenceFailure,
    Storage,
    TopologyBuilder,
)

SKIP = SequenceFailure.SKIP
FAIL_ALL = SequenceFailure.FAIL_ALL


def test_the_smallest_topology() -> None:
    topology = TopologyBuilder("orders").build()
    assert topology.queue == "orders"
    assert topology.holds == ()
    assert topology.dlq is None
    assert topology.routing_shards == 0
    assert not topology.sequenced
    assert not topology.external
    assert topology.config == NatsStreamConfig()


def test_holds_and_dead_letters() -> None:
    topology = TopologyBuilder("orders").hold_queue(0.25).hold_queue(5).dlq().build()
    assert topology.holds == (
        HoldQueue("orders-hold-250ms", 0.25),
        HoldQueue("orders-hold-5s", 5.0),
    )
    assert topology.dlq == "orders-dlq"
    assert topology.stream_names() == (
        "orders",
        "orders-hold-250ms",
        "orders-hold-5s",
        "orders-dlq",
    )


def test_sequenced_defaults_to_eight_lanes() -> None:
    builder = TopologyBuilder("ledger").sequenced(SKIP).hold_queue(1).dlq()
    assert builder.build().routing_shards == 8
    assert builder.routing_shards(3).build().routing_shards == 3


def test_each_call_returns_a_new_builder() -> None:
    base = TopologyBuilder("orders")
    left = base.hold_queue(1)
    right = base.dlq_named("graveyard")
    assert base.build().holds == ()
    assert base.build().dlq is None
    assert left.build().dlq is None
    assert right.build().holds == ()
    assert right.build().dlq == "graveyard"


def test_the_last_word_on_the_dead_letter_queue_counts() -> None:
    assert TopologyBuilder("q").dlq_named("x").dlq().build().dlq == "q-dlq"
    assert TopologyBuilder("q").dlq().dlq_named("x").build().dlq == "x"


def test_equal_builders_build_equal_topologies() -> None:
    def build() -> object:
        return TopologyBuilder("q").hold_queue(1).dlq().build()

    assert build() == build()
    assert hash(build()) == hash(build())


def test_an_unsequenced_topic_without_dead_letters_needs_no_opt_in() -> None:
    assert TopologyBuilder("q").build().dlq is None


def test_allow_message_loss_lets_a_sequenced_topic_be_bare() -> None:
    topology = TopologyBuilder("q").sequenced(SKIP).allow_message_loss().build()
    assert topology.sequenced
    assert topology.allow_message_loss


Step = Callable[[TopologyBuilder], TopologyBuilder]

REFUSALS: list[tuple[Step, str, str]] = [
    (lambda b: b.hold_queue(5).hold_queue(5), "two hold queues of 5 seconds", "once"),
    (lambda b: b.hold_queue(0.0101).hold_queue(0.0102), "two hold queues", "once"),
    (lambda b: b.hold_queue(30).hold_queue(5), "must ascend", "shortest delay first"),
    (lambda b: b.hold_queue(0), "more than 0", "hold_queue"),
    (lambda b: b.hold_queue(-1), "more than 0", "hold_queue"),
    (lambda b: b.hold_queue(math.nan), "finite", "hold_queue"),
    (lambda b: b.hold_queue(math.inf), "finite", "hold_queue"),
    (lambda b: b.hold_queue(0.0009), "one millisecond", "hold_queue"),
    (lambda b: b.hold_queue(1e12), "100 years", "hold_queue"),
    (lambda b: b.hold_queue(True), "not bool", "number of seconds"),
    (lambda b: b.hold_queue(timedelta(seconds=5)), "not timedelta", "number of seconds"),  # type: ignore[arg-type]
    (lambda b: b.routing_shards(4), "before sequenced", "call sequenced"),
    (lambda b: b.routing_shards(4).sequenced(SKIP), "before sequenced", "call sequenced"),
    (lambda b: b.sequenced(SKIP).routing_shards(0), "routing_shards", "from 1"),
    (lambda b: b.sequenced(SKIP).routing_shards(-1), "routing_shards", "from 1"),
    (lambda b: b.sequenced(SKIP).routing_shards(4097), "routing_shards", "to 4096"),
    (lambda b: b.sequenced(SKIP).routing_shards(True), "routing_shards", "whole number"),
    (lambda b: b.sequenced(SKIP).routing_shards(2.0), "routing_shards", "whole number"),  # type: ignore[arg-type]
    (lambda b: b.sequenced(SKIP), "dead-letter queue", "allow_message_loss"),
    (lambda b: b.sequenced(SKIP).hold_queue(1), "no dead-letter queue", "Add .dlq()"),
    (lambda b: b.sequenced(SKIP).dlq(), "no hold queue", "Add .hold_queue(seconds)"),
    (lambda b: b.sequenced(FAIL_ALL), "dead-letter queue", "allow_message_loss"),
    (lambda b: b.sequenced(FAIL_ALL).dlq(), "no hold queue", "Add .hold_queue(seconds)"),
    (lambda b: b.sequenced("skip"), "takes a SequenceFailure", "SKIP"),  # type: ignore[arg-type]
    (
        lambda b: b.nats_external_stream().nats_stream_config(NatsStreamConfig()),
        "nats_stream_config exclude each other",
        "Remove one",
    ),
    (
        lambda b: b.nats_external_stream().nats_subjects(["a.b"]),
        "nats_subjects exclude each other",
        "Remove one",
    ),
    (
        lambda b: b.nats_external_stream().sequenced(SKIP).allow_message_loss(),
        "sequenced exclude each other",
        "Remove one",
    ),
    (
        lambda b: b.nats_subjects(["a.b"]).sequenced(SKIP).allow_message_loss(),
        "nats_subjects and sequenced exclude each other",
        "Remove one",
    ),
    (lambda b: b.nats_subjects([]), "is empty", "leave it out"),
    (lambda b: b.nats_subjects("a.b"), "takes a list", 'nats_subjects(["a.>"])'),
    (lambda b: b.nats_subjects(None), "not NoneType", 'nats_subjects(["a.>"])'),  # type: ignore[arg-type]
    (lambda b: b.nats_subjects(5), "not int", 'nats_subjects(["a.>"])'),  # type: ignore[arg-type]
    (lambda b: b.nats_subjects(["a.b", "a.*"]), "overlaps", "Remove or narrow"),
    (lambda b: b.nats_subjects(["a", "a"]), "overlaps", "Remove or narrow"),
    (lambda b: b.nats_subjects(["*"]).dlq(), "overlaps 'q-dlq'", "narrow"),
    (lambda b: b.nats_subjects(["*"]).hold_queue(1), "overlaps 'q-hold-1s'", "narrow"),
    (lambda b: b.nats_stream_config({"max_age": 1}), "NatsStreamConfig", "takes"),  # type: ignore[arg-type]
    (lambda b: b.dlq_named("q"), "name of another of its streams", "another name"),
    (
        lambda b: b.hold_queue(1).dlq_named("q-hold-1s"),
        "name of another of its streams",
        "another name",
    ),
    (lambda b: b.dlq_named(""), "dead-letter queue name is empty", "at least one"),
]


@pytest.mark.parametrize(("step", "rule", "fix"), REFUSALS)
def test_refusals_name_the_rule_and_the_fix(step: Step, rule: str, fix: str) -> None:
    with pytest.raises(TopologyError) as caught:
        step(TopologyBuilder("q")).build()
    assert rule in str(caught.value)
    assert fix in str(caught.value)
    assert isinstance(caught.value, UsageError)


def test_fail_all_has_a_bucket_and_other_policies_have_none() -> None:
    builder = TopologyBuilder("q").hold_queue(1).dlq()
    failing = builder.sequenced(FAIL_ALL).build()
    assert failing.fails_all
    assert failing.poison_bucket == "q-poison"
    assert "KV_q-poison" in failing.note_streams()
    for other in (builder.build(), builder.sequenced(SKIP).build()):
        assert not other.fails_all
        assert other.poison_bucket is None
    assert TopologyBuilder("q").sequenced(FAIL_ALL).allow_message_loss().build().fails_all


@pytest.mark.parametrize("queue", ["a@b", "a:b", "a#b", "(a)"])
def test_fail_all_needs_a_queue_whose_bucket_other_tools_can_open(queue: str) -> None:
    builder = TopologyBuilder(queue).hold_queue(1).dlq()
    assert builder.sequenced(SKIP).build()
    with pytest.raises(TopologyError) as caught:
        builder.sequenced(FAIL_ALL).build()
    for word in (queue, "FAIL_ALL", f"{queue}-poison", "Rename the queue"):
        assert word in str(caught.value)


def test_fail_all_counts_the_name_of_its_bucket() -> None:
    name = "q" * (255 - len("KV_-poison"))
    builder = TopologyBuilder(name).sequenced(FAIL_ALL).allow_message_loss()
    assert builder.build()
    with pytest.raises(TopologyError, match="255"):
        TopologyBuilder(name + "q").sequenced(FAIL_ALL).allow_message_loss().build()


def test_external_streams_may_have_our_own_holds_and_dead_letters() -> None:
    topology = TopologyBuilder("PRICES").nats_external_stream().hold_queue(1).dlq().build()
    assert topology.external
    assert topology.stream_names() == ("PRICES", "PRICES-hold-1s", "PRICES-dlq")


def test_a_stream_config_is_kept() -> None:
    config = NatsStreamConfig(retention=Retention.LIMITS, storage=Storage.MEMORY, max_age=600)
    topology = TopologyBuilder("q").nats_stream_config(config).build()
    assert topology.config is config


def test_delays_are_rounded_to_milliseconds() -> None:
    (hold,) = TopologyBuilder("q").hold_queue(0.1 + 0.2).build().holds
    assert hold == HoldQueue("q-hold-300ms", 0.3)


def test_keyed() -> None:
    base = TopologyBuilder("q").sequenced(SequenceFailure.SKIP).hold_queue(1).dlq()
    assert base.build().keyed is None
    assert base.build().owners_bucket is None
    keyed = base.keyed().build()
    assert keyed.keyed == 256
    assert keyed.owners_bucket == "q-owners"
    assert "KV_q-owners" in keyed.note_streams()
    assert base.keyed(max_in_flight=7).build().keyed == 7


@pytest.mark.parametrize("most", [0, -1, True, 1.5, 65_537])
def test_keyed_refuses_what_is_no_number_of_handlers(most: int) -> None:
    builder = TopologyBuilder("q").sequenced(SequenceFailure.SKIP).hold_queue(1).dlq()
    with pytest.raises(TopologyError, match=r"keyed\(max_in_flight="):
        builder.keyed(max_in_flight=most).build()


def test_keyed_belongs_to_sequenced_topics() -> None:
    with pytest.raises(TopologyError, match="keyed was called before sequenced"):
        TopologyBuilder("q").keyed().sequenced(SequenceFailure.SKIP).allow_message_loss().build()
    with pytest.raises(TopologyError, match="keyed was called before sequenced"):
        TopologyBuilder("q").keyed().build()


def test_the_bucket_of_owners_is_one_that_nats_tools_open() -> None:
    builder = TopologyBuilder("q$x").sequenced(SequenceFailure.SKIP).allow_message_loss()
    with pytest.raises(TopologyError, match=r"'q\$x' cannot be used with keyed"):
        builder.keyed().build()


@pytest.mark.parametrize("retention", [Retention.LIMITS, Retention.INTEREST])
def test_keyed_forgets_what_is_acknowledged(retention: Retention) -> None:
    base = TopologyBuilder("q").sequenced(SequenceFailure.SKIP).hold_queue(1).dlq()
    kept = base.nats_stream_config(NatsStreamConfig(retention=retention))
    assert kept.build().keyed is None
    with pytest.raises(TopologyError, match=r"keyed\(\.\.\.\) on 'q' with Retention"):
        kept.keyed().build()
