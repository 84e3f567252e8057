"""Carries out what an `Ownership` asks for: one request to the server, and its answer."""

from __future__ import annotations

import itertools
import logging
from typing import Final

import trio

from shove_actors._errors import ShoveError
from shove_actors._log import about

from ._owner_record import decode_owner, encode_owner
from ._ownership import Ownership, Step
from ._pinned import PinnedDurable
from ._port import LaneSpec

logger = logging.getLogger("shove_actors.backends.keyed")

#: How long a request may take before its answer counts as lost.
REQUEST_S: Final = 2.0

_numbers = itertools.count(1)


class OwnerRequests:
    """Of one keyed lane; `make` is called for one request after another."""

    __slots__ = ("_durable", "_own", "_spec", "_troubled", "tenure")

    def __init__(self, spec: LaneSpec, durable: PinnedDurable, own: Ownership) -> None:
        self._spec = spec
        self._durable = durable
        self._own = own
        self._troubled = False
        #: Names the present ownership among all of this process (see `Delivery.tenure`).
        self.tenure = 0

    async def make(self, step: Step) -> None:
        """Returns when the answer was reported, or that there is none."""
        own, durable = self._own, self._durable
        try:
            with trio.fail_after(REQUEST_S):
                if step is Step.READ:
                    value, revision = await durable.read_owner()
                    own.read(decode_owner(value), revision, trio.current_time())
                elif step is Step.LOOK:
                    pinned, floor, high = await durable.look()
                    own.looked(pinned, floor, high, trio.current_time())
                elif step is Step.REWIND:
                    if own.leaving:
                        # What it reads after that, the server ignores.
                        await durable.confirm()
                    await durable.rewind()
                    own.rewound(trio.current_time())
                elif step is Step.UNPIN:
                    await durable.unpin()
                    own.unpinned()
                else:
                    await self._write(step)
        except (ShoveError, trio.TooSlowError) as exc:
            own.failed(step, trio.current_time())
            if not self._troubled:
                self._troubled = True
                logger.warning(
                    "shard %s: %s went without an answer (%s); tried again",
                    self._spec.durable,
                    step.name.lower(),
                    exc or "too slow",
                    extra=about("owner_trouble", queue=self._spec.stream),
                )
        else:
            self._troubled = False

    async def _write(self, step: Step) -> None:
        own = self._own
        record = own.wanted_record
        assert record is not None
        sent_at = trio.current_time()
        revision = await self._durable.write_owner(encode_owner(record), own.revision)
        own.wrote(step, revision, sent_at, trio.current_time())
        if step is Step.CLAIM and own.owns:
            self.tenure = -next(_numbers)
            logger.info(
                "shard %s is handled by this process now",
                self._spec.durable,
                extra=about("shard_taken", queue=self._spec.stream),
            )
        elif step is Step.RELEASE and not own.owns:
            logger.info(
                "shard %s was handed on",
                self._spec.durable,
                extra=about("shard_handed_on", queue=self._spec.stream),
            )
