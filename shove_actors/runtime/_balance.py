"""Shares the shards of a keyed topic among the processes that consume it (see `_shares.py`).

A shard is let go of in order: its handlers end, what they settled is confirmed, the record says
that it was handed on, and the next owner begins at once. Other shards are not touched by that.

Tests: `tests/runtime/test_shares.py`, `tests/runtime/test_keyed_sharing.py`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
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
#: How long taking the entry away may take at the end.
GOODBYE_S: Final = 1.0


class Balance:
    """Of one registration in one process."""

    def __init__(self, backend: Backend, stream: str, lanes: Sequence[KeyedLane]) -> None:
        self._backend = backend
        self._stream = stream
        self._lanes = lanes
        self._lease_s = lanes[0].spec.ack_wait_s
        self._name = f"{PREFIX}{os.getpid()}-{os.urandom(6).hex()}"
        self._presence = Presence(self._name, self._lease_s)
        self._revision = 0
        self._troubled = False
        self._changed = trio.Event()

    async def run(self) -> None:
        """Until cancelled. Between two beats only when a shard was taken, let go of or lost."""
        for lane in self._lanes:
            lane.on_change = self._wake
        try:
            while True:
                await self._beat()
                beat_at = trio.current_time() + self._lease_s * BEAT_SHARE
                while trio.current_time() < beat_at:
                    self._changed = trio.Event()
                    self._decide()
                    with trio.move_on_at(beat_at):
                        await self._changed.wait()
        finally:
            for lane in self._lanes:
                lane.on_change = None
            with trio.move_on_after(GOODBYE_S, shield=True):
                await self._leave()

    def _wake(self) -> None:
        self._changed.set()

    async def _beat(self) -> None:
        try:
            await self._write()
            found = await self._backend.list_owners(self._stream)
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
        share = share_of(
            shards=len(self._lanes),
            processes=self._presence.alive(trio.current_time()),
            owned=len(owned),
            leaving=sum(lane.leaving for lane in self._lanes),
        )
        if share.let_go:
            least = min(owned, key=lambda lane: lane.statistics().held)
            least.let_go()
        for lane in self._lanes:
            if not lane.owned and not lane.leaving:
                lane.stand_by(share.stand_by)

    async def _leave(self) -> None:
        try:
            if self._revision:
                await self._backend.remove_owner(self._stream, self._name, self._revision)
        except ShoveError:
            pass  # the others will see that it is not written any more
