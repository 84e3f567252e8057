"""audited: a record of every attempt, whatever became of it.

Where it stands. Around the handler's call, inside the worker's cancel scope, so it sees every end
of an attempt: a value, an exception, a time-out, a drain, a kill, a lost lease (SW-61). It returns
to the worker only when the record is written or given up; the worker settles afterwards, so the
record comes before the acknowledgement, and on a sequenced topic the lane is closed meanwhile.

The sink's call is shielded and has a bound of its own (SW-63): a time-out of the handler, a drain
or a kill does not tear a record in two, and a sink that hangs costs that bound and no more.

What a failure costs:

    sink raises, `on_failure="retry"`   the message comes again, at no cost to its retry budget: the
                                        worker is answered `Unaudited` in the handler's place. Also
                                        where the handler had timed out: its cancellation ends here
    sink raises, `on_failure="keep"`    the outcome holds; the gap is reported (log, metric)
    sink does not answer in time        the outcome holds; the gap is reported
    the attempt was interrupted         the message is given back in any case; the gap is reported

Proof: `tests/runtime/test_audit.py`, `tests/runtime/test_audit_failures.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import trio

from shove_actors._errors import ShoveError, UnavailableError, UsageError
from shove_actors._log import about
from shove_actors.backends import Delivery
from shove_actors.messaging import (
    AuditRecord,
    Outcome,
    Topic,
    Unaudited,
    from_ns,
    stored_of,
    trace_id_of,
)

from ._attempt_end import AttemptEnd, end_of_raise, end_of_return
from ._checks import check_seconds
from ._handler import Resolved, is_async, resolve

if TYPE_CHECKING:
    from ._observer import TopicObserver

logger = logging.getLogger("shove_actors.audit")

OnFailure: TypeAlias = Literal["retry", "keep"]

DEFAULT_TIMEOUT_S: Final = 5.0
#: What a sink may take to get ready, while a group waits for it to start.
PREPARE_TIMEOUT_S: Final = 10.0
#: Plain sinks run in threads of their own: one that hangs must not take a place from handlers.
SINK_THREADS: Final = 16
_UNAUDITED: Final = Unaudited()


class AuditSink(Protocol):
    """The object form of a sink.

    `async def prepare()` is optional: it is awaited when a group starts, for at most 10 s, and what
    it raises prevents the start. It may be called again (a connection was lost meanwhile).
    """

    async def audit(self, record: AuditRecord[Any]) -> None: ...


Sink: TypeAlias = "AuditSink | Callable[[AuditRecord[Any]], Awaitable[object] | object]"


class Audited:
    """A handler and its sink. Made by `audited`; give it to `register` in the handler's place."""

    def __init__(
        self, handler: Any, sink: Sink, *, timeout: float | None, on_failure: OnFailure
    ) -> None:
        self.handler = handler
        self.sink = sink
        self.timeout_s = DEFAULT_TIMEOUT_S if timeout is None else timeout
        self.on_failure: OnFailure = on_failure
        write: Any = getattr(sink, "audit", sink)
        self._write: Callable[[AuditRecord[Any]], Any] = write
        self._in_thread = not is_async(write)
        self._limiter = trio.CapacityLimiter(SINK_THREADS)

    def __repr__(self) -> str:
        return f"<Audited {getattr(self.handler, '__qualname__', type(self.handler).__qualname__)}>"

    def __getattr__(self, name: str) -> Any:
        # `handle_dead` and `handle_undecodable` are looked for by name: it has what its handler
        # has. Private names never, or copying and pickling would ask a handler that is not there.
        if name.startswith("_") or name == "handler":
            raise AttributeError(name)
        return getattr(self.handler, name)

    def __call__(self) -> Audited:
        """As `factory=`: another handler of the class or factory it was made of, audited."""
        return Audited(
            self.handler(), self.sink, timeout=self.timeout_s, on_failure=self.on_failure
        )

    async def prepare(self) -> None:
        """Let the sink get ready, or say why it cannot. Raises `UnavailableError` for one that is
        not ready in time."""
        prepare = getattr(self.sink, "prepare", None)
        if prepare is None:
            return
        with trio.move_on_after(PREPARE_TIMEOUT_S) as bound:
            await prepare()
        if bound.cancelled_caught:
            raise UnavailableError(
                f"the audit sink {type(self.sink).__name__} was not ready within "
                f"{PREPARE_TIMEOUT_S:g} s: its prepare() has not returned"
            )

    async def write(self, record: AuditRecord[Any]) -> None:
        """Hand the record over. Raises what the sink raises."""
        if self._in_thread:
            # Given up when the bound is reached; the thread may still write its record.
            answer = await trio.to_thread.run_sync(
                self._write, record, abandon_on_cancel=True, limiter=self._limiter
            )
        else:
            answer = self._write(record)
        if isinstance(answer, Awaitable):
            await answer


def audited(
    handler: Any,
    sink: Sink,
    *,
    timeout: float | None = None,
    on_failure: OnFailure = "retry",
) -> Audited:
    """`handler`, with one `AuditRecord` per attempt handed to `sink`.

        group.register(ORDERS, audited(handle, AuditLog(broker)))

    `handler`: whatever `register` and `register_dlq` take; of a class or a factory,
    `factory=audited(Handler, sink)`. `sink`: an async function of one record, a plain function
    (it runs in a thread), or an object with `audit(record)`. Attempts that raise, time out or are
    interrupted have a record too; messages that no handler saw (undecodable, too large) have none.

    The record is written before the message is settled. `timeout`: seconds the sink may take
    (default 5); after it the outcome holds, and the gap is logged and counted. `on_failure`: what
    happens when the sink raises. `"retry"`, the strict default: the message is handled again, which
    does not use its retry budget, so handlers must be idempotent. `"keep"`: the outcome holds, and
    the gap is logged and counted.

    Cancelling a handler does not cancel its record: the sink has its own bound.
    Raises `UsageError` for a timeout or a policy that is none.
    """
    if timeout is not None:
        check_seconds(
            timeout,
            "audited timeout",
            positive=True,
            why=f", or None for {DEFAULT_TIMEOUT_S:g}; a sink without a bound could hold its "
            "message for ever",
        )
    if on_failure not in ("retry", "keep"):
        raise UsageError(f"audited(on_failure={on_failure!r}): 'retry' or 'keep'")
    if isinstance(sink, type):
        raise UsageError(
            f"audited(sink={sink.__name__}): give an object, {sink.__name__}(...), not its class"
        )
    if handler is None:
        raise UsageError("audited(None, sink): give the handler, as to `register`")
    if not callable(getattr(sink, "audit", sink)):
        raise UsageError(
            f"audited(sink={type(sink).__name__}): a function of one record, or an object with an "
            "`audit(record)` method"
        )
    return Audited(handler, sink, timeout=timeout, on_failure=on_failure)


class AuditedJob(Protocol):
    """What a registration is asked for."""

    topic: Topic[Any]
    observer: TopicObserver | None

    def now_ns(self) -> int: ...


def resolve_audited(handler: object, job: AuditedJob, *, method: str = "handle") -> Resolved:
    """As `resolve`, with telemetry around the handler if somebody looks, and with its audits."""
    if not isinstance(handler, Audited):
        resolved = resolve(handler, method=method)
        # Innermost: what is measured is the handler, not its audit.
        return resolved if job.observer is None else job.observer.around(resolved)
    return with_audit(resolve_audited(handler.handler, job, method=method), handler, job)


def audits_of(handler: object) -> list[Audited]:
    """The audits around a handler, outermost first."""
    found = []
    while isinstance(handler, Audited):
        found.append(handler)
        handler = handler.handler
    return found


def with_audit(inner: Resolved, policy: Audited, job: AuditedJob) -> Resolved:
    trail = _Trail(policy, job, inner.name)
    attempt = inner.call

    async def call(message: Any, metadata: Any, context: Any) -> Any:
        delivery = stored_of(metadata)
        assert isinstance(delivery, Delivery)
        began = trio.current_time()
        try:
            value = await attempt(message, metadata, context)
        except Exception as exc:
            end = end_of_raise(delivery, exc)
            if await trail.holds(message, metadata, delivery, began, end):
                raise
            # The worker, which logs what a handler raises, will not hear of it.
            logger.error(
                "handler %s raised on message %s:%d",
                inner.name,
                delivery.stream,
                delivery.sequence,
                exc_info=exc,
                extra=about(
                    "handler_raised",
                    queue=delivery.stream,
                    sequence=delivery.sequence,
                    handler=inner.name,
                ),
            )
        except BaseException as exc:
            end = end_of_raise(delivery, exc)
            if await trail.holds(message, metadata, delivery, began, end):
                raise
        else:
            end = end_of_return(delivery, value)
            if await trail.holds(message, metadata, delivery, began, end):
                return value
        return _UNAUDITED

    return Resolved(call, wants_metadata=True, in_thread=inner.in_thread, name=inner.name)


class _Trail:
    """Writes the records of one handler of one registration."""

    __slots__ = ("_job", "_name", "_policy")

    def __init__(self, policy: Audited, job: AuditedJob, name: str) -> None:
        self._policy = policy
        self._job = job
        self._name = name

    async def holds(
        self, message: Any, metadata: Any, delivery: Delivery, began: float, end: AttemptEnd
    ) -> bool:
        """Write the record. Whether the outcome stands; False: the message has to come again."""
        record = self._record(message, metadata, delivery, began, end)
        policy, observer = self._policy, self._job.observer
        interrupted = end.outcome is Outcome.INTERRUPTED
        # Whoever stops us waits for this: a long bound is for ordinary days.
        bound = min(policy.timeout_s, DEFAULT_TIMEOUT_S) if interrupted else policy.timeout_s
        error: Exception | None = None
        # The `try` is outside of the scope: what a sink makes of the cancellation that ends its
        # time is raised when the scope closes.
        try:
            with trio.move_on_after(bound, shield=True):
                with nullcontext() if observer is None else observer.within(delivery):
                    await policy.write(record)
                return True
        except Exception as exc:
            error = exc
        again = error is not None and policy.on_failure == "retry" and not interrupted
        self._report(delivery, record, error, again)
        if observer is not None:
            observer.audit_failed("timeout" if error is None else "error", again)
        return not again

    def _record(
        self, message: Any, metadata: Any, delivery: Delivery, began: float, end: AttemptEnd
    ) -> AuditRecord[Any]:
        topic = self._job.topic.queue
        return AuditRecord(
            trace_id=trace_id_of(topic, delivery.headers, delivery.stream, delivery.sequence),
            topic=topic,
            payload=message,
            metadata=metadata,
            outcome=end.outcome,
            duration_ms=(trio.current_time() - began) * 1000.0,
            timestamp=from_ns(self._job.now_ns()),
            cause=end.cause,
            detail=end.detail,
            raw=delivery.payload,
        )

    def _report(
        self, delivery: Delivery, record: AuditRecord[Any], error: Exception | None, again: bool
    ) -> None:
        if error is None:
            why = f"no answer within {self._policy.timeout_s:g} s"
        else:
            # A foreign exception may quote the record; its text is for the debug level.
            why = str(error) if isinstance(error, ShoveError) else type(error).__name__
        logger.log(
            logging.WARNING if again else logging.ERROR,
            "the audit record of handler %s on message %s:%d (%s) could not be written (%s); %s",
            self._name,
            delivery.stream,
            delivery.sequence,
            record.outcome.name,
            why,
            "the message is handled again" if again else "it is missing from the audit trail",
            extra=about(
                "audit_retry" if again else "audit_gap",
                queue=delivery.stream,
                sequence=delivery.sequence,
                handler=self._name,
                trace_id=record.trace_id,
                outcome=record.outcome.name,
            ),
        )
        if error is not None:
            logger.debug("the audit sink raised", exc_info=error, extra=about("audit_sink_raised"))
