"""Outcome: what a handler says about its message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from shove_actors._errors import UsageError

from ._delays import delay_problem


class Outcome:
    """A handler's verdict on one message.

    * `Outcome.ACK`: done. The message is gone once the server has the acknowledgement.
    * `Outcome.RETRY`: try again later; costs one retry. For trouble that can pass.
    * `Outcome.REJECT`: never try again; to the dead letters at once. For messages that are wrong.
    * `Outcome.DEFER`: not now; costs no retry. For messages that are early, not for failures: a
      handler that always defers keeps its message in circulation for ever. On a sequenced topic,
      where a message that steps aside would break the order, it behaves as RETRY.

    The forms that carry data are outcomes as well: `Retry(after=30)`, `Reject(reason="no such
    account")`, `Defer(after=5)`. Without data they equal the constants: `Retry() ==
    Outcome.RETRY`. The set is closed: this class cannot be instantiated or extended.

    `Outcome.INTERRUPTED` is what an audit record says of an attempt that was cut short: it is no
    answer that a handler can give (one that does is treated as RETRY).
    """

    __slots__ = ()

    ACK: ClassVar[Outcome]
    RETRY: ClassVar[Outcome]
    REJECT: ClassVar[Outcome]
    DEFER: ClassVar[Outcome]
    INTERRUPTED: ClassVar[Outcome]

    name: ClassVar[str]
    """`ack`, `retry`, `reject`, `defer` or `interrupted`: a stable label for metrics and logs."""

    def __new__(cls, *args: object, **kwargs: object) -> Outcome:
        if cls is Outcome:
            raise UsageError("use Outcome.ACK, RETRY, REJECT or DEFER: Outcome itself is not one")
        return super().__new__(cls)

    def __init_subclass__(cls) -> None:
        # `route` is total because nothing but the kinds below can reach it.
        if cls.__module__ != __name__:
            raise UsageError("the set of outcomes is closed: Outcome cannot be subclassed")


def _check_after(after: object, what: str) -> None:
    if after is not None and (problem := delay_problem(after)) is not None:
        raise UsageError(f"{what}(after=...) {problem}; leave it out for the topic's own delay")


def _check_reason(reason: object, what: str) -> None:
    if reason is not None and not isinstance(reason, str):
        raise UsageError(f"{what}(reason=...) must be a str, not {type(reason).__name__}")


@final
@dataclass(frozen=True, kw_only=True)
class Ack(Outcome):
    """Done; the same as `Outcome.ACK`."""

    name: ClassVar[str] = "ack"


@final
@dataclass(frozen=True, kw_only=True)
class Retry(Outcome):
    """Try again, after `after` seconds (None: the delay the topic has for this retry).

    `reason` is kept, shortened, with the message if this retry was one too many.
    Raises `UsageError` unless `after` is finite and above 0.
    """

    name: ClassVar[str] = "retry"
    after: float | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        _check_after(self.after, "Retry")
        _check_reason(self.reason, "Retry")


@final
@dataclass(frozen=True, kw_only=True)
class Reject(Outcome):
    """To the dead letters; `reason` is kept with them, sanitised and shortened."""

    name: ClassVar[str] = "reject"
    reason: str | None = None

    def __post_init__(self) -> None:
        _check_reason(self.reason, "Reject")


@final
@dataclass(frozen=True, kw_only=True)
class Defer(Outcome):
    """Hand the message back for `after` seconds (None: the first hold queue's delay)."""

    name: ClassVar[str] = "defer"
    after: float | None = None

    def __post_init__(self) -> None:
        _check_after(self.after, "Defer")


@final
@dataclass(frozen=True, kw_only=True)
class Interrupted(Outcome):
    """The attempt ended before the handler could say anything: a drain, a kill, a lost lease.

    Only in audit records; the message is given back and is no attempt the poorer.
    """

    name: ClassVar[str] = "interrupted"


@final
@dataclass(frozen=True, kw_only=True)
class Unaudited(Outcome):
    """The attempt is over and its audit record could not be written: again, at no cost.

    Internal: the audit wrapper answers with it in the handler's place, whatever the handler said.
    It never counts against `max_retries`, so that finished work is not dead-lettered because an
    audit sink is down (SW-60).
    """

    name: ClassVar[str] = "retry"


Outcome.ACK = Ack()
Outcome.RETRY = Retry()
Outcome.REJECT = Reject()
Outcome.DEFER = Defer()
Outcome.INTERRUPTED = Interrupted()
