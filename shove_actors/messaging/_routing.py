"""route: what becomes of a message, as a function of what is known about it.

    outcome   | retries are hops (hold queues)        | retries wait in place (sequenced, no holds)
    ----------+---------------------------------------+--------------------------------------------
    ACK       | Ack                                   | Ack
    REJECT    | Dead(rejected)                        | Dead(rejected)
    RETRY     | Hop to hold min(retries, last),       | Nak after hold min(retries, last) or the
              | retry count + 1                       | default delay; the server counts
    RETRY,    | Dead(max_retries_exceeded)            | Dead(max_retries_exceeded)
     budget   |                                       |
     used up  |                                       |
    DEFER     | Hop to the first hold, retry count    | sequenced: as RETRY, with a warning
              | unchanged, defer count + 1            | else: Nak, not counted as an attempt
    unaudited | Hop to the first hold, as DEFER,      | Nak after the first hold's delay or the
              | marked as not counted                 | default delay, not counted

`Dead` becomes `Discard` where the topology has no dead-letter queue. `before_handling` is the other
half: a message that ends its process never produces an outcome, so its budget is checked when it
arrives (SW-10).

Invariants: `route` is total (each outcome has a verdict, nothing raises); a message is only given
up (Dead, Discard) for REJECT or a used-up budget; *unaudited* (the attempt is over and its audit
record is missing) has no budget, so finished work never dies of it; a hop's id is a function of the
stored copy and its count alone; ACK never costs anything. Proof: the table in
`tests/messaging/test_routing.py` and `properties/test_routing_table.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ._death import DeathReason
from ._ids import defer_id, retry_id
from ._outcome import Ack as AckOutcome
from ._outcome import Defer, Outcome, Reject, Retry, Unaudited
from ._retry import (
    Limits,
    hold_for_retry,
    nak_delay,
    redeliveries,
    retries_by_nak,
)
from ._topology import HoldQueue, Topology

Cause: TypeAlias = Literal["outcome", "raised", "timeout", "invalid"]


@dataclass(frozen=True, kw_only=True)
class DeliveryFacts:
    """What is known about one delivery when its fate is decided.

    `message_id` and `origin` are those of `logical_id` and `origin_of`. `retry_count` and
    `defer_count` are the headers', `num_delivered` is the server's (1 on the first delivery),
    `returned` counts deliveries known to have been handed back unused. `cause` says where the
    outcome came from: the handler said so, it raised, it ran out of time, or it returned no outcome
    at all.
    `detail` is free text about it, for the dead letter.
    """

    message_id: str
    origin: str
    retry_count: int = 0
    defer_count: int = 0
    num_delivered: int = 1
    returned: int = 0
    cause: Cause = "outcome"
    detail: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ack:
    """Acknowledge it."""


@dataclass(frozen=True, kw_only=True)
class Nak:
    """Leave it where it is; the server redelivers it after `delay_s` seconds.

    `warn_defer`: a sequenced topic was asked to defer and retries instead; warn once.
    `counted` is False when this delivery is no attempt (DEFER, unaudited): it counts into
    `returned`.
    """

    delay_s: float
    warn_defer: bool = False
    counted: bool = True


@dataclass(frozen=True, kw_only=True)
class Hop:
    """Store a copy in `hold` under `msg_id`, wait for its acknowledgement, then acknowledge.

    `due_after_s` is the copy's own delay; None means that of the hold queue. `counted` is False
    when nothing may be held against the message: if no copy can be made, it stays where it is.
    """

    hold: HoldQueue
    msg_id: str
    retry_count: int
    defer_count: int
    due_after_s: float | None = None
    counted: bool = True


@dataclass(frozen=True, kw_only=True)
class Dead:
    """Store it in the dead-letter queue, wait for the acknowledgement, then acknowledge.

    `cause` says what used up the budget or ended it: `retry`, `raised`, `timeout`, `invalid`,
    `defer`, `reject` or `crash`.
    """

    reason: DeathReason
    cause: str
    detail: str | None = None


@dataclass(frozen=True, kw_only=True)
class Discard:
    """Acknowledge it although it failed: there is no dead-letter queue. Warn once, and count it."""

    reason: DeathReason
    cause: str
    detail: str | None = None


Verdict: TypeAlias = Ack | Nak | Hop | Dead | Discard

_ACK = Ack()


def effective_retry_count(facts: DeliveryFacts, topology: Topology) -> int:
    """Retries so far, however the topology makes them; what a handler sees as `retry_count`."""
    if retries_by_nak(topology):
        return facts.retry_count + redeliveries(facts.num_delivered, facts.returned)
    return facts.retry_count


def before_handling(facts: DeliveryFacts, topology: Topology, limits: Limits) -> Verdict | None:
    """The check made before the handler is called; None means call it.

    A message redelivered more often than its budget allows has ended its process, or outlived its
    lease, each time: it is given up with reason `crashed`.
    """
    used = redeliveries(facts.num_delivered, facts.returned)
    if not used:
        # A first delivery has not crashed anything, whatever its header says.
        return None
    if retries_by_nak(topology):
        used += facts.retry_count
    if used > limits.max_redeliveries:
        detail = f"delivered {facts.num_delivered} times without an outcome"
        return give_up(topology, DeathReason.CRASHED, "crash", detail)
    return None


def route(outcome: Outcome, facts: DeliveryFacts, topology: Topology, limits: Limits) -> Verdict:
    """The verdict for `outcome`; see the table above. Pure, total, never raises."""
    if isinstance(outcome, AckOutcome):
        return _ACK
    if isinstance(outcome, Reject):
        detail = outcome.reason if outcome.reason is not None else facts.detail
        return give_up(topology, DeathReason.REJECTED, "reject", detail)
    if isinstance(outcome, Unaudited):
        return _unaudited(facts, topology, limits)
    deferred = isinstance(outcome, Defer)
    after = outcome.after if isinstance(outcome, (Retry, Defer)) else None
    retries = effective_retry_count(facts, topology)
    if deferred and not topology.sequenced:
        return _defer(after, facts, topology, limits)
    if retries >= limits.max_retries:
        reason = outcome.reason if isinstance(outcome, Retry) else None
        cause = facts.cause
        return give_up(
            topology,
            DeathReason.MAX_RETRIES_EXCEEDED,
            ("defer" if deferred else "retry") if cause == "outcome" else cause,
            reason if reason is not None else facts.detail,
        )
    if retries_by_nak(topology):
        delay = nak_delay(topology, retries, limits.default_delay_s) if after is None else after
        return Nak(delay_s=delay, warn_defer=deferred)
    number = retries + 1
    return Hop(
        hold=hold_for_retry(topology, retries, after),
        msg_id=retry_id(facts.message_id, facts.origin, number),
        retry_count=number,
        defer_count=facts.defer_count,
        due_after_s=after,
    )


def _defer(
    after: float | None, facts: DeliveryFacts, topology: Topology, limits: Limits
) -> Verdict:
    if not topology.holds:
        return Nak(delay_s=limits.default_delay_s if after is None else after, counted=False)
    number = facts.defer_count + 1
    return Hop(
        hold=hold_for_retry(topology, 0, after),
        msg_id=defer_id(facts.message_id, facts.origin, number),
        retry_count=facts.retry_count,
        defer_count=number,
        due_after_s=after,
    )


def _unaudited(facts: DeliveryFacts, topology: Topology, limits: Limits) -> Verdict:
    if retries_by_nak(topology):
        delay = nak_delay(topology, 0, limits.default_delay_s)
        return Nak(delay_s=delay, counted=False)
    # Counted among the deferrals: a handler has seen it, so the copy must say `redelivered`.
    number = facts.defer_count + 1
    return Hop(
        hold=topology.holds[0],
        msg_id=defer_id(facts.message_id, facts.origin, number),
        retry_count=facts.retry_count,
        defer_count=number,
        counted=False,
    )


def give_up(
    topology: Topology, reason: DeathReason, cause: str, detail: str | None = None
) -> Dead | Discard:
    """The end of a message: the dead-letter queue if there is one.

    Also for deaths that no outcome leads to: undecodable, oversize, foreign_header,
    sequence_failed.
    """
    if topology.dlq is None:
        return Discard(reason=reason, cause=cause, detail=detail)
    return Dead(reason=reason, cause=cause, detail=detail)
