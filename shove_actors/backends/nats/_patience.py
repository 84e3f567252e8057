"""Ask again: what a cluster does not answer while it elects a leader.

A stream or consumer without a leader has nobody who answers for it, and the server does not say so:
the request just times out (a new stream with replicas, or one whose leader has died; seen as a
declare from eight processes at once failing in `tests/cluster`). Everything asked here has the same
effect once or twice, so it is asked again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from shove_actors._errors import RequestTimeout
from shove_actors._log import about

logger = logging.getLogger("shove_actors.nats")

T = TypeVar("T")

#: Times the client's own timeout (5 s): longer than elections take on a busy machine.
ATTEMPTS: Final = 4


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """What `ask` answers; it must be idempotent. Raises its last `RequestTimeout`."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await ask()
        except RequestTimeout as exc:
            logger.info(
                "asking again: %s",
                exc,
                extra=about("asked_again"),
            )
    return await ask()
