"""No settle of a shard lies unread in a connection until after its lease.

The server takes settles by sequence, whichever delivery they come from: an acknowledgement that it
reads after it has given the message to somebody else settles the message under the hands of that
other process, and opens the lane while a handler is still running there. What is written is not
read yet: the network may have failed just then, or the server stands still.

So every settle of a shard has to be *proven* to have been read, by a PING that was sent behind it
and answered, before its lease ends. If it cannot be, the connection is cut, with a reset that
makes the kernel forget what it has not delivered (`WireTransport.abort`): what the server has not
got by then it will never read from us. What its own kernel had already taken, it reads within
milliseconds of being resumed; for that the next owner waits (`margins.STALE_ACK_GRACE_S`).

One PING proves everything written before it, so the cost is at most `TICKS_PER_LEASE` of them per
lease while there is traffic, and none without.

Tests: `tests/backends/test_nats_settle_guard.py`.
"""

from __future__ import annotations

import trio

from shove_actors._errors import RequestTimeout, UnavailableError
from shove_actors.backends import margins
from shove_actors.jetstream import Connection

_NEVER = float("inf")


class SettleGuard:
    """Of one connection. `sent` runs once per settle of a shard; `run` in a task."""

    __slots__ = ("_conn", "_deadline", "_pace_s", "_parked", "cuts", "proofs")

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        #: When the first of the unproven settles is void.
        self._deadline = _NEVER
        self._pace_s = _NEVER
        self._parked: trio.lowlevel.Task | None = None
        self.proofs = 0
        self.cuts = 0

    def sent(self, deadline: float, ack_wait_s: float) -> None:
        """A settle was written that is void after `deadline`."""
        if deadline < self._deadline:
            self._deadline = deadline
        if ack_wait_s < self._pace_s:
            self._pace_s = ack_wait_s
        if self._parked is not None:
            task, self._parked = self._parked, None
            trio.lowlevel.reschedule(task)

    def disconnected(self) -> None:
        """Whatever was unread is gone."""
        self._deadline = self._pace_s = _NEVER

    async def run(self) -> None:
        while True:
            if self._deadline == _NEVER:
                await self._park()
                continue
            # Settles that follow soon are proven by the same PING.
            due = trio.current_time() + self._pace_s / margins.TICKS_PER_LEASE
            await trio.sleep_until(min(due, self._deadline))
            deadline, self._deadline, self._pace_s = self._deadline, _NEVER, _NEVER
            if deadline == _NEVER:
                continue  # disconnected meanwhile
            try:
                await self._conn.flush(max(0.0, deadline - trio.current_time()))
            except RequestTimeout:
                self.cuts += 1
                self._conn.drop_session(
                    "an acknowledgement was not read by the server before its lease ended"
                )
            except UnavailableError:
                pass  # lost, and with it what was unread
            else:
                self.proofs += 1

    async def _park(self) -> None:
        self._parked = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._parked = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
