"""Brings back a durable that is gone, however long its stream is away.

Invariants
* One attempt at a time, and never two within `RECOVER_FIRST_S` of each other: a pull may fail at
  once although the durable is there, and that must not spin (PC-003).
* While it goes on nothing is asked for (`active`); afterwards the lane asks again, whatever the
  reason for its end was. It ends with the lane, and with the backend, which may run again.
* The user is told once per absence, not once per attempt.
* A durable that is gone has taken its leases with it, and the next one delivers what the old one
  had delivered already. So first everything in hand is let go of, then the others are given time to
  do the same, then the durable is made anew and read (`_Absence`). On a shard, where two handlers
  at a time are a broken promise, and something is stored that the old one may have delivered, that
  is a whole lease: also a process that is cut off, and hears nothing, has ended its handler by then
  (`margins`). Who starts in the meantime does not know: see `NatsBackend.open_lanes`.

Tests: `tests/backends/checks_deleted.py`, `tests/runtime/test_deleted_durable.py`.
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
from shove_actors.backends import margins
from shove_actors.backends._port import LaneSpec

if TYPE_CHECKING:
    from ._backend import NatsBackend

logger = logging.getLogger("shove_actors.backends.nats")

#: Pauses between attempts to bring back a durable or stream that is gone.
RECOVER_FIRST_S, RECOVER_MAX_S = 0.25, 5.0


class Recovery:
    """Of one lane's durable.

    `notice(kind, detail)` tells the user. `on_gone`: the durable that it was is not there any more.
    `on_failed`: it cannot be had, ever. `on_ended`: go on reading.
    """

    __slots__ = (
        "_backend",
        "_ended_at",
        "_notice",
        "_on_ended",
        "_on_failed",
        "_on_gone",
        "_pause_s",
        "_spec",
        "_stopped",
        "_stream_gone",
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
        on_gone: Callable[[], None],
        on_failed: Callable[[Exception], None],
        on_ended: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._spec = spec
        self._notice = notice
        self._on_gone = on_gone
        self._on_failed = on_failed
        self._on_ended = on_ended
        self._stopped = trio.Event()
        self._ended_at = float("-inf")
        self._pause_s = 0.0
        #: Then nothing that is stored was ever delivered by the durable that it was.
        self._stream_gone = False
        self.active = False
        #: Whether the last one ended because the durable is there.
        self.known = True
        #: Of the durable that everything in hand comes from.
        self.identity = ""

    def begin(self, why: str, *, pause_s: float = 0.0) -> None:
        """Returns at once. Nothing happens while one is under way, or after `stop`.

        `pause_s`: how long not to look at it first, nor read it.
        """
        if not self._stopped.is_set() and not self.active:
            self.active = True
            self.known = False
            self._pause_s = pause_s
            self._backend.start_soon(self._run, why)

    def stream_deleted(self) -> None:
        """Said so by the server, and the durable with it."""
        self._stream_gone = True

    def stop(self) -> None:
        """The lane is closed."""
        self._stopped.set()

    async def _run(self, why: str) -> None:
        try:
            due = self._ended_at + RECOVER_FIRST_S - trio.current_time()
            await self._stopped_within(max(due, self._pause_s))
            await self._bring_back(why)
        finally:
            # Also when the backend ends: it may run again.
            self.active = False
            self._ended_at = trio.current_time()
        self._on_ended()
        if self.known and not self._stopped.is_set():
            await self._backend.look_again([self._spec])

    async def _stopped_within(self, seconds: float) -> None:
        if seconds > 0:
            with trio.move_on_after(seconds):
                await self._stopped.wait()

    async def _bring_back(self, why: str) -> None:
        pause, told = RECOVER_FIRST_S, False
        gone_at: float | None = None
        while not self._stopped.is_set():
            try:
                if gone_at is None and await self._is_there():
                    self.known = True
                    return
                if gone_at is None:
                    # Let go of what is in hand: it is delivered again, and an acknowledgement of
                    # what the old one delivered would settle another message of that sequence.
                    gone_at = trio.current_time()
                    self._on_gone()
                left = gone_at + await self._old_leases() - trio.current_time()
                if left > 0:
                    await self._stopped_within(left)
                    continue
                await self._backend.ensure_durable(self._spec)
                self.identity = await self._backend.identity(self._spec)
            except TopicNotDeclared as exc:
                self._stream_gone = True
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
                self._stream_gone = False
                self._notice("lane_recreated", why)
                self.known = True
                return
            await self._stopped_within(pause)
            pause = min(pause * 2, RECOVER_MAX_S)

    async def _is_there(self) -> bool:
        """Whether it is the one that it was. One that is not is left alone for now."""
        try:
            identity = await self._backend.identity(self._spec)
        except ConsumerNotFound:
            return False
        except StreamNotFound:
            identity = self.identity  # then the next one says so
        if identity != self.identity:
            return False
        # Its settings may have been changed; gone in between, it is made anew by this.
        return not await self._backend.ensure_durable(self._spec)

    async def _old_leases(self) -> float:
        """How long after it has gone somebody may be at what it had delivered."""
        spec = self._spec
        if spec.max_ack_pending == 1 and not self._stream_gone and await self._backend.stores(spec):
            return spec.ack_wait_s
        return margins.DELETED_GRACE_S
