"""Shares the shards of a keyed topic among the processes that consume it (see `_shares.py`).

A shard is let go of in order: its handlers end, what they settled is confirmed, the record says
that it was handed on, and the next owner begins at once. Other shards are not touched by that.

Tests: `tests/runtime/test_shares.py`, `test_keyed_sharing.py`, `test_keyed_rebalancing.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from shove_actors._errors import ShoveError
from shove_actors._log import about
from shove_actors.backends import Backend, KeyedLane

from ._shares import Presence, share_of

logger = logging.getLogger("shove_actors.consumer")

#: Before the name of a process, among the records of who owns which shard.
PREFIX: Final = "alive-"
#: An entry is written again after this share of the lease.
BEAT_SHARE: Final = 1 / 3
#: How often the entries of others are looked at, as a share of the lease; and bounds. A look costs
#: a request for each entry and each shard: with many of them it is made more seldom.
LOOK_SHARE: Final = 1 / 10
LOOK_LEAST_S: Final = 0.1
LOOK_MOST_S: Final = 1.0
LOOK_ENTRY_S: Final = 0.02
#: How long taking the entry away may take at the end.
GOODBYE_S: Final = 1.0
_NEVER: Final = float("inf")


class Balance:
    """Of one registration in one process.

    Who else is there is looked at with each beat, and more often while there are others: what one
    of them leaves behind is nobody's until we hear of that.
    """

    def __init__(self, backend: Backend, stream: str, lanes: Sequence[KeyedLane]) -> None:
        self._backend = backend
        self._stream = stream
        self._lanes = lanes
        self._lease_s = lanes[0].spec.ack_wait_s
        # By when it has come, as the server has it. If clocks differ, shards move once more often.
        came_at = max(0, backend.now_ns())
        self._name = f"{PREFIX}{came_at:020d}-{backend.new_name()}"
        self._presence = Presence(self._name, self._lease_s)
        self._revision = 0
        self._troubled = False
        self._changed = trio.Event()

    async def run(self) -> None:
        """Until cancelled. Decides when it has looked, and when a shard was taken, let go of or
        lost."""
        for lane in self._lanes:
            lane.on_change = self._wake
        try:
            while True:
                await self._beat()
                now = trio.current_time()
                beat_at, look_at = now + self._lease_s * BEAT_SHARE, self._next_look(now)
                while True:
                    self._changed = trio.Event()
                    self._decide()
                    with trio.move_on_at(min(beat_at, look_at)):
                        await self._changed.wait()
                    now = trio.current_time()
                    if now >= beat_at:
                        break
                    if now >= look_at:
                        await self._try(self._see)
                        look_at = self._next_look(trio.current_time())
        finally:
            for lane in self._lanes:
                lane.on_change = None
            with trio.move_on_after(GOODBYE_S, shield=True):
                await self._leave()

    def _wake(self) -> None:
        self._changed.set()

    def _next_look(self, now: float) -> float:
        _, processes = self._presence.place(now)
        if processes == 1:
            return _NEVER
        every_s = max(LOOK_LEAST_S, min(LOOK_MOST_S, self._lease_s * LOOK_SHARE))
        return now + max(every_s, LOOK_ENTRY_S * (len(self._lanes) + processes))

    async def _beat(self) -> None:
        await self._try(self._write_and_see)

    async def _write_and_see(self) -> None:
        await self._write()
        await self._see()

    async def _try(self, ask: Callable[[], Awaitable[None]]) -> None:
        try:
            await ask()
        except ShoveError as exc:
            if not self._troubled:
                self._troubled = True
                logger.warning(
                    "topic %s: who else consumes it cannot be seen (%s); shards stay where they "
                    "are",
                    self._stream,
                    exc,
                    extra=about("shares_unknown", queue=self._stream),
                )
            return
        self._troubled = False

    async def _see(self) -> None:
        found = await self._backend.list_owners(self._stream)
        now = trio.current_time()
        entries = {name: revision for name, revision in found.items() if name.startswith(PREFIX)}
        self._presence.saw(entries, now)
        for name, revision in self._presence.gone(now).items():
            try:
                await self._backend.remove_owner(self._stream, name, revision)
            except ShoveError:
                return  # somebody else was faster, or it waits until the next time

    async def _write(self) -> None:
        written = await self._backend.write_owner(self._stream, self._name, b"here", self._revision)
        if written is None:
            # Taken for gone, and removed: or an earlier write whose answer was lost.
            found = await self._backend.list_owners(self._stream)
            self._revision = found.get(self._name, 0)
        else:
            self._revision = written

    def _decide(self) -> None:
        owned = [lane for lane in self._lanes if lane.owned]
        winding_down = [lane for lane in self._lanes if lane.winding_down]
        place, processes = self._presence.place(trio.current_time())
        share = share_of(
            shards=len(self._lanes),
            place=place,
            processes=processes,
            owned=len(owned),
            leaving=sum(lane.leaving for lane in self._lanes),
            winding_down=len(winding_down),
        )
        if share.let_go:
            least = min(owned, key=lambda lane: lane.statistics().held)
            least.let_go()
        elif share.keep:
            winding_down[0].stand_by(True)
            self._wake()  # and decide again
        for lane in self._lanes:
            if not lane.owned and not lane.leaving:
                lane.stand_by(share.stand_by)

    async def _leave(self) -> None:
        try:
            if self._revision:
                await self._backend.remove_owner(self._stream, self._name, self._revision)
        except ShoveError:
            pass  # the others will see that it is not written any more
