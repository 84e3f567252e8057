"""The diagrams in docs/img, drawn from the tables and functions that decide.

    python -m tests.docs.diagrams

Nothing about the system is written down here twice: which verdict an outcome gets is asked of
`route`, names of streams come from `Topology`, the tree from a running broker, and the transitions
of the two state machines are found by trying every event in every state that can be reached.
`test_diagrams.py` holds the files to what is drawn today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import trio

from shove_actors import NatsStreamConfig, Outcome, SequenceFailure, Topology, TopologyBuilder
from shove_actors.backends.nats._declare import main_stream, side_streams
from shove_actors.messaging import DeathReason, DeliveryFacts, Limits, before_handling, route
from shove_actors.messaging._routing import Ack, Dead, Discard, Hop, Nak, Verdict, give_up
from shove_actors.runtime._tree import RuleNode

from . import machines, test_tree_picture
from .svg import Box, Branch, Row, Rung, boxes, ladder, tree

IMG = Path(__file__).resolve().parents[2] / "docs" / "img"
LIMITS = Limits()
FACTS = DeliveryFacts(message_id="m", origin="1", num_delivered=1)


def built(source: str) -> Topology:
    """What the line of code in the picture makes."""
    names = {
        "TopologyBuilder": TopologyBuilder,
        "SequenceFailure": SequenceFailure,
        "NatsStreamConfig": NatsStreamConfig,
    }
    topology: Topology = eval(f"{source}.build()", names)
    return topology


ORDERS = "TopologyBuilder('orders').hold_queue(5).hold_queue(30).dlq()"
LEDGER = (
    "TopologyBuilder('ledger').sequenced(SequenceFailure.FAIL_ALL).routing_shards(2)"
    ".hold_queue(5).dlq()"
)
ACCOUNTS = (
    "TopologyBuilder('accounts').sequenced(SequenceFailure.SKIP).routing_shards(2)"
    ".keyed(max_in_flight=64).hold_queue(5).dlq()"
)


# ------------------------------------------------------------------ lifecycle of a message


def lifecycle(source: str) -> str:
    """From the queue to its end, for each outcome; asked of `route`."""
    topology = built(source)
    handler, gone = "handler", "(gone)"
    columns = [*(topology.queue, handler), *(hold.name for hold in topology.holds)]
    columns += [] if topology.dlq is None else [topology.dlq]
    columns.append(gone)

    def target(verdict: Verdict) -> str:
        if isinstance(verdict, Hop):
            return verdict.hold.name
        if isinstance(verdict, Nak):
            return topology.queue
        if isinstance(verdict, Dead):
            assert topology.dlq is not None
            return topology.dlq
        assert isinstance(verdict, (Ack, Discard))
        return gone

    def decided(label: str, verdict: Verdict, start: str = handler) -> Rung:
        return Rung(label=label, start=start, end=target(verdict), note=described(verdict))

    rungs: list[Rung | str] = [
        Rung(label="delivered", start=topology.queue, end=handler, note="the lease runs"),
        "The handler answers",
        decided("ACK", route(Outcome.ACK, FACTS, topology, LIMITS)),
        *(
            replace(decided(label, verdict), note=note)
            for label, verdict, note in retries(topology)
        ),
        decided("DEFER", route(Outcome.DEFER, FACTS, topology, LIMITS)),
        decided("REJECT", route(Outcome.REJECT, FACTS, topology, LIMITS)),
        "It does not answer: as RETRY, and when the retries are used up",
    ]
    last = used_up(topology)
    for cause, label in (("raised", "raises"), ("timeout", "times out"), ("invalid", "no outcome")):
        facts = replace(last, cause=cause)  # type: ignore[arg-type]
        rungs.append(decided(label, route(Outcome.RETRY, facts, topology, LIMITS)))
    rungs.append("It does not get so far")
    ends: dict[DeathReason, Verdict] = {
        reason: give_up(topology, reason, "")
        for reason in DeathReason
        if reason not in (DeathReason.REJECTED, DeathReason.MAX_RETRIES_EXCEEDED)
        and (topology.fails_all or reason is not DeathReason.SEQUENCE_FAILED)
    }
    many = replace(FACTS, num_delivered=LIMITS.max_redeliveries + 2)
    crashed = before_handling(many, topology, LIMITS)
    assert crashed is not None
    ends[DeathReason.CRASHED] = crashed
    rungs += [decided(reason.value, ends[reason], topology.queue) for reason in ends]
    if any(isinstance(r, Rung) and r.end in {h.name for h in topology.holds} for r in rungs):
        rungs.append("Held messages come back")
        rungs += [
            Rung(label=f"after {hold.delay_s:g} s", start=hold.name, end=topology.queue)
            for hold in topology.holds
        ]
    return ladder(f"What becomes of a message of {topology.queue}", columns, rungs)


def described(verdict: Verdict) -> str:
    if isinstance(verdict, Hop):
        return f"stored there, then acknowledged; retry count {verdict.retry_count}"
    if isinstance(verdict, Nak):
        counted = "" if verdict.counted else ", not counted"
        return f"stays where it is, delivered again after {verdict.delay_s:g} s{counted}"
    if isinstance(verdict, Dead):
        return f"stored there, then acknowledged; reason {verdict.reason}"
    if isinstance(verdict, Discard):
        return f"acknowledged, with a warning; reason {verdict.reason}"
    return "acknowledged"


def used_up(topology: Topology) -> DeliveryFacts:
    """A message that has had all its retries, however the topology makes them."""
    number = LIMITS.max_retries
    if topology.sequenced or not topology.holds:
        return replace(FACTS, num_delivered=number + 1)
    return replace(FACTS, retry_count=number)


def retries(topology: Topology) -> Iterator[tuple[str, Verdict, str]]:
    """Each retry that is treated differently from the one before: its number, verdict and note."""
    found: list[tuple[int, Verdict]] = []
    for number in range(LIMITS.max_retries + 1):
        facts = replace(FACTS, retry_count=number)
        if topology.sequenced or not topology.holds:
            facts = replace(FACTS, num_delivered=number + 1)
        verdict = route(Outcome.RETRY, facts, topology, LIMITS)
        if not found or not same(found[-1][1], verdict):
            found.append((number, verdict))
    for index, (number, verdict) in enumerate(found):
        until = found[index + 1][0] if index + 1 < len(found) else number + 1
        which = f"{number + 1}" if until == number + 1 else f"{number + 1} to {until}"
        text = described(verdict)
        if isinstance(verdict, Hop):
            text = text.replace(f"count {verdict.retry_count}", f"count {which}")
        yield f"RETRY number {which}", verdict, text


def same(one: Verdict, other: Verdict) -> bool:
    if isinstance(one, Hop) and isinstance(other, Hop):
        return one.hold == other.hold
    return one == other


# ------------------------------------------------------------------------- names of streams


def streams() -> str:
    """What a topology makes on the server."""
    panels = [(source, list(stream_rows(built(source)))) for source in (ORDERS, LEDGER, ACCOUNTS)]
    return boxes("The streams and durables of three topologies", panels)


def stream_rows(topology: Topology) -> Iterator[Row]:
    main = main_stream(topology)
    durables = (
        tuple(topology.shard_durable(n) for n in range(topology.routing_shards))
        if topology.sequenced
        else (topology.durable,)
    )
    bound = "subjects " + ", ".join(main.subjects)
    yield Row(
        what="queue",
        box=Box(name=main.name, lines=(bound, f"retention {main.retention}")),
        readers=tuple(Box(name=name) for name in durables),
    )
    sides = {config.name: config for config in side_streams(topology)}
    for hold in topology.holds:
        config = sides.pop(hold.name)
        yield Row(
            what="hold queue",
            box=Box(name=config.name, lines=(f"retention {config.retention}",)),
            readers=(Box(name=topology.hold_durable(hold)),),
            back=True,
        )
    for config in sides.values():
        assert config.name == topology.dlq
        yield Row(
            what="dead letters",
            box=Box(name=config.name, lines=(f"retention {config.retention}",)),
            readers=(Box(name=topology.dlq_durable or ""),),
        )
    for name in topology.note_streams():
        yield Row(what="notes", box=Box(name=name, dashed=True))


# --------------------------------------------------------------------------------- the rest


def broker_tree() -> str:
    root = trio.run(test_tree_picture.tree)
    return tree("The supervision tree of a broker with one group", branch(root))


def branch(node: RuleNode) -> Branch:
    return Branch(name=node.name, note=node.rules, children=tuple(map(branch, node.children)))


def child_states() -> str:
    return ladder("The states of a supervised child", machines.PHASES, machines.child_rungs())


def keyed_states() -> str:
    return ladder(
        "The states of one process for one shard of a keyed topic",
        machines.OWNER_STATES,
        machines.owner_rungs(),
    )


PICTURES: dict[str, Callable[[], str]] = {
    "lifecycle": lambda: lifecycle(ORDERS),
    "lifecycle-sequenced": lambda: lifecycle(LEDGER),
    "streams": streams,
    "broker-tree": broker_tree,
    "child-states": child_states,
    "keyed-states": keyed_states,
}


if __name__ == "__main__":
    for picture, draw in PICTURES.items():
        (IMG / f"{picture}.svg").write_text(draw(), encoding="utf-8")
