"""From what happened to what becomes of a message: collects the facts, asks `route`.

No I/O and no waiting: the worker brings what has to be fetched (`Attempts`) and carries out the
verdict. One line is logged per event that an operator may want to know of, never a payload.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Literal, Protocol

from shove_actors._errors import DecodeError, HeaderError
from shove_actors._log import about
from shove_actors.backends import Delivery
from shove_actors.messaging import (
    CONTROL,
    DEFER_COUNT,
    RETRY_COUNT,
    DeathReason,
    DeliveryFacts,
    Limits,
    Outcome,
    Topology,
    Verdict,
    before_handling,
    effective_retry_count,
    give_up,
    has_shove_headers,
    has_status_header,
    logical_id,
    origin_of,
    read_counter,
    redeliveries,
    retries_by_nak,
    route,
)

from ._attempts import Attempts

logger = logging.getLogger("shove_actors.consumer")

Cause = Literal["outcome", "raised", "timeout", "invalid"]


class Rules(Protocol):
    """What decides about a topic's messages."""

    lane_topology: Topology
    limits: Limits
    max_message_size: int
    #: Whether the counters in a message's headers are part of its budget here.
    counts_hops: bool


class Judge:
    """Decides for one handler of one registration."""

    __slots__ = ("_in_place", "_name", "_rules")

    def __init__(self, rules: Rules, handler_name: str) -> None:
        self._rules = rules
        self._name = handler_name
        self._in_place = retries_by_nak(rules.lane_topology)

    # ------------------------------------------------------------------ on arrival

    def suspects(self, delivery: Delivery) -> bool:
        """Delivered more often than its budget allows. That alone proves nothing."""
        return redeliveries(delivery.num_delivered, 0) > self._rules.limits.max_redeliveries

    def needs_attempts(self, delivery: Delivery) -> bool:
        """Whether what was noted of its attempts matters now."""
        return delivery.num_delivered > 1 and (self._in_place or self.suspects(delivery))

    def arrival(self, delivery: Delivery, attempts: Attempts) -> tuple[int, Verdict | None]:
        """Retry count, and the verdict on a message that must not reach the handler."""
        topology = self._rules.lane_topology
        try:
            facts = self._facts(delivery, attempts, "outcome", None)
        except HeaderError as exc:
            return 0, give_up(topology, DeathReason.FOREIGN_HEADER, "header", str(exc))
        count = effective_retry_count(facts, topology)
        if has_status_header(delivery.headers):
            detail = "a `Status` header is the server's own"
            return count, give_up(topology, DeathReason.FOREIGN_HEADER, "header", detail)
        if CONTROL in delivery.headers:
            # Nobody's message: it was meant for consumers of another kind, or of another version.
            detail = f"a `{CONTROL}` header that this consumer does not obey"
            return count, give_up(topology, DeathReason.FOREIGN_HEADER, "header", detail)
        return count, None

    def crashed(self, delivery: Delivery, attempts: Attempts) -> Verdict | None:
        """The verdict on a suspect, if it is convicted. Deliveries that ended as a retry in place
        are accounted for.
        """
        seen = replace(
            self._facts(delivery, attempts, "outcome", None),
            num_delivered=delivery.num_delivered,
            returned=attempts.failed,
        )
        return before_handling(seen, self._rules.lane_topology, self._rules.limits)

    def too_large(self, size: int) -> Verdict:
        detail = f"{size} bytes; max_message_size is {self._rules.max_message_size}"
        return give_up(self._rules.lane_topology, DeathReason.OVERSIZE, "oversize", detail)

    def undecodable(self, error: DecodeError) -> Verdict:
        topology = self._rules.lane_topology
        return give_up(topology, DeathReason.UNDECODABLE, "undecodable", str(error))

    # ------------------------------------------------------------------ after the handler

    def returned(self, delivery: Delivery, outcome: object, attempts: Attempts) -> Verdict:
        """The handler returned something."""
        if isinstance(outcome, Outcome):
            return self._route(delivery, outcome, attempts, "outcome", None)
        kind = type(outcome).__name__
        logger.error(
            "handler %s returned %s on message %s:%d, which is no Outcome; treated as RETRY. "
            "Return Outcome.ACK when the message is done",
            self._name,
            kind,
            delivery.stream,
            delivery.sequence,
            extra=about(
                "handler_invalid",
                queue=delivery.stream,
                sequence=delivery.sequence,
                handler=self._name,
            ),
        )
        return self._route(delivery, Outcome.RETRY, attempts, "invalid", f"returned {kind}")

    def raised(self, delivery: Delivery, error: Exception, attempts: Attempts) -> Verdict:
        """The handler raised."""
        logger.error(
            "handler %s raised on message %s (%s:%d)",
            self._name,
            logical_id(delivery.headers, delivery.stream, delivery.sequence),
            delivery.stream,
            delivery.sequence,
            exc_info=error,
            extra=about(
                "handler_raised",
                queue=delivery.stream,
                sequence=delivery.sequence,
                handler=self._name,
            ),
        )
        name = type(error).__name__
        return self._route(delivery, Outcome.RETRY, attempts, "raised", name)

    def timed_out(
        self, delivery: Delivery, timeout_s: float | None, attempts: Attempts
    ) -> tuple[Verdict, int]:
        """The handler has had its time. The verdict, and the retries so far."""
        logger.warning(
            "handler %s timed out after %s s on message %s:%d",
            self._name,
            timeout_s,
            delivery.stream,
            delivery.sequence,
            extra=about(
                "handler_timed_out",
                queue=delivery.stream,
                sequence=delivery.sequence,
                handler=self._name,
            ),
        )
        facts = self._facts(delivery, attempts, "timeout", None)
        topology = self._rules.lane_topology
        verdict = route(Outcome.RETRY, facts, topology, self._rules.limits)
        return verdict, effective_retry_count(facts, topology)

    def raised_while_cancelled(self, delivery: Delivery, error: Exception) -> None:
        """Only told: the cancellation decides."""
        logger.error(
            "handler %s raised on message %s:%d while it was being cancelled",
            self._name,
            delivery.stream,
            delivery.sequence,
            exc_info=error,
            extra=about(
                "handler_raised_late",
                queue=delivery.stream,
                sequence=delivery.sequence,
                handler=self._name,
            ),
        )

    def _route(
        self,
        delivery: Delivery,
        outcome: Outcome,
        attempts: Attempts,
        cause: Cause,
        detail: str | None,
    ) -> Verdict:
        facts = self._facts(delivery, attempts, cause, detail)
        return route(outcome, facts, self._rules.lane_topology, self._rules.limits)

    def _facts(
        self, delivery: Delivery, attempts: Attempts, cause: Cause, detail: str | None
    ) -> DeliveryFacts:
        headers, raw = delivery.headers, delivery.raw_headers
        hopped = self._rules.counts_hops and raw is not None and has_shove_headers(raw)
        return DeliveryFacts(
            message_id=logical_id(headers, delivery.stream, delivery.sequence),
            origin=origin_of(delivery.sequence, delivery.timestamp_ns),
            retry_count=read_counter(headers, RETRY_COUNT) if hopped else 0,
            defer_count=read_counter(headers, DEFER_COUNT) if hopped else 0,
            # Not the server's count of deliveries but ours of attempts; see `_attempts.py`.
            num_delivered=1 + attempts.failed,
            cause=cause,
            detail=detail,
        )
