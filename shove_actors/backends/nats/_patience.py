"""Ask again: what a cluster does not answer while it elects a leader, and what a lost connection
took along.

A stream or consumer without a leader has nobody who answers for it, and the server does not say so:
the request just times out (a new stream with replicas, or one whose leader has died; seen as a
declare from eight processes at once failing in `tests/cluster`). Right after a change of replicas,
or a restart, it does answer: that it is not available for now. Everything asked here has the same
effect once or twice, so it is asked again.

Each kind of trouble has an end: silence after `ATTEMPTS` requests, "not now" after `NOT_NOW_S`. A
connection that is lost ends with the connection itself: whoever starts something that will run for
weeks waits for it, as the running thing would (`waits=True`); others give up as after silence.
Proof: `tests/backends/test_nats_patience.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from shove_actors._errors import (
    ApiError,
    AuthenticationError,
    ConnectionError,
    JetStreamNotEnabled,
    RequestTimeout,
    TLSError,
)
from shove_actors._log import about
from shove_actors.jetstream import Connection

logger = logging.getLogger("shove_actors.nats")

T = TypeVar("T")

#: Times the client's own timeout (5 s): longer than elections take on a busy machine.
ATTEMPTS: Final = 4
#: How long a server may say "not now" before it is taken at its word, and between two questions.
NOT_NOW_S: Final = 20.0
PAUSE_S: Final = 0.25
#: "JetStream system temporarily unavailable", "insufficient resources" (also while a stream or a
#: consumer is being moved to other servers).
_TEMPORARY: Final = frozenset({10008, 10023, 10028})
_UNAVAILABLE: Final = 503


async def patiently(
    ask: Callable[[], Awaitable[T]], connection: Connection, *, waits: bool = False
) -> T:
    """What `ask` answers; it must be idempotent. Raises its last error of the kinds above.

    `waits`: a lost connection is waited for, however long; raises why it is not coming back.
    """
    asked = 0
    first_refusal: float | None = None
    while True:
        asked += 1
        try:
            return await ask()
        except (RequestTimeout, ConnectionError) as exc:
            if isinstance(exc, (AuthenticationError, TLSError)):
                raise
            lost = isinstance(exc, ConnectionError) or not connection.connected
            if not (waits and lost) and asked >= ATTEMPTS:
                raise
            _tell(exc)
            if lost:
                # A connection that is there again, and lost again, is not to be asked in a loop.
                await trio.sleep(PAUSE_S)
            if waits and lost:
                await connection.wait_connected()
                asked, first_refusal = 0, None
        except (ApiError, JetStreamNotEnabled) as exc:
            if not _not_now(exc, connection):
                raise
            now = trio.current_time()
            if first_refusal is None:
                first_refusal = now
                _tell(exc)
            if now - first_refusal >= NOT_NOW_S:
                raise
            await trio.sleep(PAUSE_S)


def _not_now(error: Exception, connection: Connection) -> bool:
    if isinstance(error, ApiError):
        return error.code == _UNAVAILABLE or error.err_code in _TEMPORARY
    # A server that has just come back takes its clients before it has its JetStream. One that we
    # have never been away from has none.
    return type(error) is JetStreamNotEnabled and connection.reconnects > 0


def _tell(error: Exception) -> None:
    logger.info("asking again: %s", error, extra=about("asked_again"))
