"""What the status of a one-off request means to whoever reads its batch."""

from __future__ import annotations

from shove_actors._errors import (
    BadRequest,
    ConsumerDeleted,
    JetStreamError,
    LeadershipChanged,
    NoResponders,
    NotPullConsumer,
    PinIdMismatch,
    RequestLimitExceeded,
    ServerShutdown,
)

from ._pull_status import Verdict


def error_of(verdict: Verdict, code: int, text: str, name: str) -> Exception | None:
    """What a batch ends with; None for what is no error."""
    if verdict in (Verdict.RETURNED, Verdict.OVER, Verdict.TOO_LARGE):
        return None
    if verdict is Verdict.DELETED:
        return ConsumerDeleted(f"{name} was deleted")
    if verdict is Verdict.ABSENT:
        return NoResponders(f"nobody answers the requests to {name} (503); does it exist?")
    if verdict is Verdict.REFUSED:
        return BadRequest(code, 10003, text or "bad request")
    if verdict is Verdict.NOT_PULL:
        return NotPullConsumer(f"{name} is a push consumer; use `push_consumer`")
    if verdict is Verdict.LIMIT:
        return RequestLimitExceeded(f"the request breaks a limit of {name}: {text}")
    if verdict is Verdict.STALLED and "exceeded" in text.lower():
        return RequestLimitExceeded(f"the request breaks a limit of {name}: {text}")
    if verdict is Verdict.MOVED:
        return LeadershipChanged(f"another server leads {name} now ({text})")
    if verdict is Verdict.LEAVING:
        return ServerShutdown(f"the server is going down ({text})")
    if verdict is Verdict.UNPINNED:
        return PinIdMismatch(f"another client of {name} is pinned now ({text})")
    return JetStreamError(f"the request to {name} ended with {code} {text}")
