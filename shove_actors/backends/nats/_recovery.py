"""Brings back a durable that is gone, however long its stream is away.

Invariants
* One attempt at a time, and never two within `RECOVER_FIRST_S` of each other: a pull may fail at
  once although the durable is there, and that must not spin (PC-003).
* While it goes on nothing is asked for (`active`); afterwards the lane asks again, whatever the
  reason for its end was. It ends with the lane, and with the backend, which may run again.
* The user is told once per absence, not once per attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from shove_actors._errors import (
    ApiError,
    ConsumerNotFound,
    ShoveError,
    StreamNotFound,
    TopicNotDeclared,
    UnavailableError,
)
from shove_actors._log import about
from shove_actors.backends._port import LaneSpec

if TYPE_CHECKING:
    from ._backend import NatsBackend

logger = logging.getLogger("shove_actors.backends.nats")

#: Pauses between attempts to bring back a durable or stream that is gone.
RECOVER_FIRST_S, RECOVER_MAX_S = 0.25, 5.0


class Recovery:
    """Of one lane's durable.

    `notice(kind, detail)` tells the user. `on_created`: it is not the durable that it was.
    `on_failed`: it cannot be had, ever. `on_ended`: go on reading.
    """

    __slots__ = (
        "_backend",
        "_ended_at",
        "_notice",
        "_on_created",
        "_on_ended",
        "_on_failed",
        "_spec",
        "_stopped",
        "active",
        "identity",
        "known",
    )

    def __init__(
        self,
        backend: NatsBackend,
        spec: LaneSpec,
        *,
        notice: Callable[[str, str], None],
        on_created: Callable[[], None],
        on_failed: Callable[[Exception], None],
        on_ended: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._spec = spec
        self._notice = notice
        self._on_created = on_created
        self._on_failed = on_failed
        self._on_ended = on_ended
        self._stopped = trio.Event()
        self._ended_at = float("-inf")
        self.active = False
        #: Whether the last one ended because the durable is there.
        self.known = True
        #: Of the durable that everything in hand comes from.
        self.identity = ""

    def begin(self, why: str) -> None:
        """Returns at once. Nothing happens while one is under way, or after `stop`."""
        if not self._stopped.is_set() and not self.active:
            self.active = True
            self.known = False
            self._backend.start_soon(self._run, why)

    def stop(self) -> None:
        """The lane is closed."""
        self._stopped.set()

    async def _run(self, why: str) -> None:
        try:
            await self._stopped_within(self._ended_at + RECOVER_FIRST_S - trio.current_time())
            await self._bring_back(why)
        finally:
            # Also when the backend ends: it may run again.
            self.active = False
            self._ended_at = trio.current_time()
        self._on_ended()

    async def _stopped_within(self, seconds: float) -> None:
        if seconds > 0:
            with trio.move_on_after(seconds):
                await self._stopped.wait()

    async def _bring_back(self, why: str) -> None:
        pause, told = RECOVER_FIRST_S, False
        while not self._stopped.is_set():
            try:
                created = await self._backend.ensure_durable(self._spec)
                identity = await self._backend.identity(self._spec)
            except TopicNotDeclared as exc:
                if not told:
                    told = True
                    logger.warning(
                        "waiting for stream %s: %s",
                        self._spec.stream,
                        why,
                        extra=about("lane_waiting", queue=self._spec.stream),
                    )
                    self._notice("lane_waiting", str(exc))
            except (UnavailableError, ConsumerNotFound, StreamNotFound):
                # No connection, or JetStream is not ready yet after a restart; or it has gone
                # again between the two questions.
                pass
            except ShoveError as exc:
                if not (isinstance(exc, ApiError) and exc.code == 503):
                    self._on_failed(exc)
                    return
            else:
                if created or identity != self.identity:
                    # Ours, or somebody else's: a new durable delivers everything unacknowledged
                    # again, also what is in our hands, and an acknowledgement of what the old one
                    # delivered would settle another message of that sequence. Let go of it first.
                    self.identity = identity
                    self._on_created()
                    self._notice("lane_recreated", why)
                self.known = True
                return
            await self._stopped_within(pause)
            pause = min(pause * 2, RECOVER_MAX_S)
