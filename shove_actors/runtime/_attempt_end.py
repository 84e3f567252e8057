"""How one attempt of a handler ended; the audit trail and the telemetry see it the same way.

Both stand around the handler's call, inside the worker's cancel scope. What passes them on its way
out is a value, an exception, or the cancellation; and of a cancellation the delivery says whose it
was: the handler clock's (`timed_out`), the lease keeper's (`lost`), or else somebody's who stops
the worker. A lost lease is first: whatever the handler said, it cannot be carried out any more.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import trio

from shove_actors.backends import Delivery
from shove_actors.messaging import AttemptCause, Outcome, Reject, Retry, Unaudited

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup


class AttemptEnd(NamedTuple):
    """`detail` is one word or a reason, for people."""

    outcome: Outcome
    cause: AttemptCause
    detail: str | None = None


_LOST = AttemptEnd(Outcome.INTERRUPTED, "interrupted", "lease lost")
_TIMEOUT = AttemptEnd(Outcome.RETRY, "timeout")
_STOPPED = AttemptEnd(Outcome.INTERRUPTED, "interrupted", "cancelled")


def end_of_return(delivery: Delivery, value: object) -> AttemptEnd:
    """The handler returned `value`."""
    if delivery.lost:
        return _LOST
    if isinstance(value, Unaudited):
        return AttemptEnd(Outcome.RETRY, "outcome", "unaudited")
    if not isinstance(value, Outcome) or value is Outcome.INTERRUPTED:
        return AttemptEnd(Outcome.RETRY, "invalid", f"returned {type(value).__name__}")
    return AttemptEnd(
        value, "outcome", value.reason if isinstance(value, (Retry, Reject)) else None
    )


def end_of_raise(delivery: Delivery, error: BaseException) -> AttemptEnd:
    """The handler's call ended with `error`, which may be the cancellation."""
    if delivery.lost:
        return _LOST
    if isinstance(error, Exception):
        return AttemptEnd(Outcome.RETRY, "raised", type(error).__name__)
    if isinstance(error, (trio.Cancelled, BaseExceptionGroup)):
        return _TIMEOUT if delivery.timed_out else _STOPPED
    return AttemptEnd(Outcome.INTERRUPTED, "interrupted", type(error).__name__)
