"""What a status message says of the pull request that it answers.

One function for everybody who pulls: the client's own readers (`_pull_engine.py`, `_fetch.py`) and
the lanes of the messaging runtime. Descriptions are compared by substring and without case: the
servers' wording differs between versions.
"""

from __future__ import annotations

from enum import Enum, auto


class Verdict(Enum):
    """What became of a request, or of the consumer."""

    #: A heartbeat.
    ALIVE = auto()
    #: It ended as it should; the rest of it comes back: ask again.
    RETURNED = auto()
    #: The next message does not fit into its byte limit; the rest of it comes back.
    TOO_LARGE = auto()
    #: There is nothing (left), and the request did not want to wait.
    OVER = auto()
    #: Another server leads the consumer: what was asked of the old one is gone.
    MOVED = auto()
    #: The server is leaving. The connection ends next: ask then.
    LEAVING = auto()
    #: Nobody listens there: no consumer, or none yet.
    ABSENT = auto()
    #: The consumer was deleted.
    DELETED = auto()
    #: Another client is pinned.
    UNPINNED = auto()
    #: The consumer is not one to pull from: never ask again.
    NOT_PULL = auto()
    #: The request breaks a limit of the consumer, and will do so again.
    LIMIT = auto()
    #: The server does not understand the request, and will not the next time.
    REFUSED = auto()
    #: Too many requests wait already; and whatever later servers invent. Try again later.
    STALLED = auto()


def verdict_of(code: int, text: str) -> Verdict:
    verdict = _BY_CODE.get(code)
    if verdict is not None:
        return verdict
    if code == 409:
        lower = text.lower()
        for words, conflict in _CONFLICTS:
            if words in lower:
                return conflict
    return Verdict.STALLED


_BY_CODE = {
    100: Verdict.ALIVE,
    400: Verdict.REFUSED,
    404: Verdict.OVER,
    408: Verdict.RETURNED,
    423: Verdict.UNPINNED,
    503: Verdict.ABSENT,
}

#: The first that matches counts.
_CONFLICTS = (
    ("exceeds maxbytes", Verdict.TOO_LARGE),
    ("completed", Verdict.RETURNED),
    ("consumer deleted", Verdict.DELETED),
    ("shutdown", Verdict.LEAVING),
    ("leadership", Verdict.MOVED),
    ("push based", Verdict.NOT_PULL),
    ("exceeded maxwaiting", Verdict.STALLED),
    ("exceeded max", Verdict.LIMIT),
)
