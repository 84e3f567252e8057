"""Observers: what telemetry sees of publishing, of one topic's handlers, and of hops.

They exist only where somebody looks (`_telemetry.py`). Spans make one trace of one message:

    publish ── handle ── hop ── handle ── dead letter ── handle (of the dead letter)

The context travels in the W3C headers: `publish` and each hop write their own into the copy they
store; the hold mover copies headers as they are. A hook cannot hurt: an SDK's calls do not raise by
its specification, and nothing here decides about a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import trio
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Tracer

from shove_actors.backends import Delivery
from shove_actors.messaging import (
    Dead,
    DeathReason,
    Discard,
    MessageMetadata,
    stored_of,
)

from ._attempt_end import AttemptEnd, end_of_raise, end_of_return
from ._handler import Resolved
from ._receipt import PublishReceipt
from ._spans import (
    context_of,
    current,
    fail,
    has_current_span,
    may_carry_context,
    read_context,
    write_context,
)

if TYPE_CHECKING:
    from ._instruments import Cell, Instruments, MetricSet

#: Deaths that no handler was asked about, as the metric calls them.
_UNHANDLED: Final = {DeathReason.OVERSIZE: "oversize", DeathReason.UNDECODABLE: "deserialize"}


class TopicObserver:
    """Of one registration. `topic`: the queue; `group`: the durable that its consumers share;
    `busy`: how many handlers run."""

    def __init__(
        self, instruments: Instruments, topic: str, group: str, busy: Callable[[], int]
    ) -> None:
        self._metrics = instruments.metrics
        self._tracer = instruments.tracer
        self._topic = topic
        self._group = group
        self.busy = busy
        self.labels: dict[str, str] = {"topic": topic, "consumer_group": group}
        self._by_outcome: dict[str, tuple[Cell, dict[str, str]]] = {}

    def open(self) -> None:
        self._metrics.opened(self)

    def close(self) -> None:
        self._metrics.closed(self)

    # ------------------------------------------------------------------ handlers

    def around(self, inner: Resolved) -> Resolved:
        """The same handler, watched."""
        attempt, traced = inner.call, self._tracer is not None

        async def call(message: Any, metadata: Any, context: Any) -> Any:
            delivery = stored_of(metadata)
            assert isinstance(delivery, Delivery)
            began = trio.current_time()
            span = self._begin(delivery, metadata, inner.name) if traced else None
            try:
                if span is None:
                    value = await attempt(message, metadata, context)
                else:
                    with current(span):
                        value = await attempt(message, metadata, context)
            except BaseException as exc:
                self._ended(delivery, end_of_raise(delivery, exc), began, span)
                raise
            self._ended(delivery, end_of_return(delivery, value), began, span)
            return value

        return Resolved(call, wants_metadata=True, in_thread=inner.in_thread, name=inner.name)

    def _begin(self, delivery: Delivery, metadata: MessageMetadata, name: str) -> Span:
        span = self._start(
            f"handle {self._topic}",
            SpanKind.CONSUMER,
            delivery,
            {
                "messaging.operation.type": "process",
                "messaging.message.id": metadata.delivery_id,
                "messaging.consumer.group.name": self._group,
                "shove.handler": name,
                "shove.delivered": delivery.num_delivered,
            },
        )
        # What follows the handler (a hop, its audit record) belongs to this attempt.
        delivery.trace = span
        return span

    def _ended(self, delivery: Delivery, end: AttemptEnd, began: float, span: Span | None) -> None:
        outcome = end.outcome.name
        metrics = self._metrics
        known = self._by_outcome.get(outcome)
        if known is None:
            labels = {**self.labels, "outcome": outcome}
            known = self._by_outcome[outcome] = metrics.consumed.cell(labels), labels
        cell, labels = known
        cell.count += 1
        metrics.processing.record(trio.current_time() - began, labels)
        metrics.size.record(len(delivery.payload), self.labels)
        if end.cause == "timeout":
            metrics.failed.add({**self.labels, "reason": "timeout"})
        if span is not None:
            span.set_attribute("shove.outcome", outcome)
            if end.cause != "outcome":
                fail(span, end.cause if end.detail is None else f"{end.cause}: {end.detail}")
            span.end()

    def _start(
        self, name: str, kind: SpanKind, delivery: Delivery, more: Mapping[str, str | int]
    ) -> Span:
        assert self._tracer is not None
        if delivery.trace is not None:
            parent = context_of(delivery.trace)
        elif may_carry_context(delivery.raw_headers):
            parent = read_context(delivery.headers)
        else:
            parent = Context()
        about = {
            "messaging.system": "nats",
            "messaging.destination.name": self._topic,
            "messaging.message.body.size": len(delivery.payload),
            "shove.stream": delivery.stream,
            "shove.sequence": delivery.sequence,
            **more,
        }
        return self._tracer.start_span(name, context=parent, kind=kind, attributes=about)

    @contextmanager
    def within(self, delivery: Delivery) -> Iterator[None]:
        """What is done in the block belongs to the attempt that has just ended."""
        if delivery.trace is None:
            yield
        else:
            with current(delivery.trace):
                yield

    # ------------------------------------------------------------------ settling

    def hopping(
        self, delivery: Delivery, destination: str, headers: MutableMapping[str, str]
    ) -> PublishWatch | None:
        """A copy is about to be stored in `destination`; `headers` get its trace context."""
        if self._tracer is None:
            return None
        span = self._start(
            f"hop {destination}",
            SpanKind.PRODUCER,
            delivery,
            {"messaging.operation.type": "send", "shove.destination": destination},
        )
        write_context(span, headers)
        return PublishWatch(None, span)

    def settled(self, verdict: object) -> None:
        """The verdict has been carried out."""
        if isinstance(verdict, (Dead, Discard)):
            reason = verdict.reason
            if reason in _UNHANDLED:
                self._metrics.failed.add({**self.labels, "reason": _UNHANDLED[reason]})
            self._metrics.dead.add({**self.labels, "reason": reason.value})

    def stuck(self, backend: str) -> None:
        """A copy could not be stored; the message stays."""
        self._metrics.errors.add({"backend": backend, "kind": "settle"})

    def audit_failed(self, reason: str, again: bool) -> None:
        consequence = "retry" if again else "gap"
        self._metrics.audit_failures.add(
            {**self.labels, "reason": reason, "consequence": consequence}
        )


class _Results:
    """One topic's publishes: success and error, each with its count and its labels."""

    __slots__ = ("backend", "error", "metrics", "success")

    def __init__(self, metrics: MetricSet, topic: str, backend: str) -> None:
        self.metrics = metrics
        self.backend = backend
        success = {"topic": topic, "outcome": "success"}
        error = {"topic": topic, "outcome": "error"}
        self.success = (metrics.published.cell(success), success)
        self.error = (metrics.published.cell(error), error)

    def add(self, failed: bool, seconds: float) -> None:
        cell, labels = self.error if failed else self.success
        cell.count += 1
        self.metrics.publishing.record(seconds, labels)
        if failed:
            self.metrics.errors.add({"backend": self.backend, "kind": "publish"})


class PublishObserver:
    """Of one broker's publishers."""

    def __init__(self, metrics: MetricSet, tracer: Tracer | None) -> None:
        self._metrics = metrics
        self._tracer = tracer
        #: Of the broker, which says so when it is made.
        self.backend = ""
        self._topics: dict[str, _Results] = {}

    def publishing(
        self, topic: str, subject: str, size: int, headers: Mapping[str, str] | None
    ) -> tuple[Mapping[str, str] | None, PublishWatch]:
        """A message of a caller: the headers it goes with, and who hears of its end.

        A trace context that the caller gives as headers is the parent if there is no current span.
        """
        results = self._topics.get(topic)
        if results is None:
            results = self._topics[topic] = _Results(self._metrics, topic, self.backend)
        if self._tracer is None:
            return headers, PublishWatch(results, None)
        span = self._tracer.start_span(
            f"publish {topic}",
            context=read_context(headers) if headers and not has_current_span() else None,
            kind=SpanKind.PRODUCER,
            attributes={
                "messaging.system": "nats",
                "messaging.operation.type": "send",
                "messaging.destination.name": topic,
                "messaging.message.body.size": size,
                "shove.subject": subject,
            },
        )
        own = dict(headers) if headers else {}
        write_context(span, own)
        return own, PublishWatch(results, span)


class PublishWatch:
    """Hears once how a publish ended. `results` None: a hop, which is no caller's publish."""

    __slots__ = ("_began", "_results", "_span")

    def __init__(self, results: _Results | None, span: Span | None) -> None:
        self._results = results
        self._span = span
        self._began = trio.current_time()

    def done(self, result: object) -> None:
        if self._results is not None:
            failed = isinstance(result, Exception)
            self._results.add(failed, trio.current_time() - self._began)
        span = self._span
        if span is None:
            return
        if isinstance(result, PublishReceipt):
            span.set_attribute("shove.stream", result.stream)
            span.set_attribute("shove.sequence", result.sequence)
            span.set_attribute("shove.duplicate", result.duplicate)
        else:
            fail(span, type(result).__name__)
        span.end()
