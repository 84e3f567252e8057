"""Carries out what an `Ownership` asks for: one request to the server, and its answer.

What this user may not ask for, no repetition mends: the lane fails with it, and the group that it
belongs to ends. Any other trouble is repeated, and told once: until the same request succeeds.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable

import trio

from shove_actors._errors import PermissionDenied, ShoveError
from shove_actors._log import about

from ._owner_record import encode_owner
from ._ownership import Ownership, Step
from ._pinned import PinnedDurable
from ._port import LaneSpec

logger = logging.getLogger("shove_actors.backends.keyed")

_numbers = itertools.count(1)


class OwnerRequests:
    """Of one keyed lane; `make` is called for one request after another.

    `fail`: called once, with what this user may not do.
    """

    __slots__ = ("_durable", "_fail", "_forbidden", "_own", "_spec", "_troubled", "tenure")

    def __init__(
        self,
        spec: LaneSpec,
        durable: PinnedDurable,
        own: Ownership,
        fail: Callable[[Exception], None],
    ) -> None:
        self._spec = spec
        self._durable = durable
        self._own = own
        self._fail = fail
        self._forbidden = False
        #: What went wrong when it was asked last.
        self._troubled: set[Step] = set()
        #: Names the present ownership among all of this process (see `Delivery.tenure`).
        self.tenure = 0

    async def make(self, step: Step) -> None:
        """Returns when the answer was reported, or that there is none."""
        own, durable = self._own, self._durable
        try:
            with trio.fail_after(own.request_s):
                if step is Step.READ:
                    record, revision = await durable.read_owner()
                    own.read(record, revision, trio.current_time())
                elif step is Step.LOOK:
                    pinned, floor, high, stream = await durable.look()
                    own.looked(pinned, floor, high, trio.current_time(), stream)
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
        except PermissionDenied as exc:
            own.failed(step, trio.current_time())
            self._deny(exc)
        except (ShoveError, trio.TooSlowError) as exc:
            own.failed(step, trio.current_time())
            if step not in self._troubled:
                self._troubled.add(step)
                logger.warning(
                    "shard %s: %s went without an answer (%s); tried again",
                    self._spec.durable,
                    step.name.lower(),
                    exc or "too slow",
                    extra=about("owner_trouble", queue=self._spec.stream),
                )
        else:
            self._troubled.discard(step)

    def _deny(self, error: PermissionDenied) -> None:
        if self._forbidden:
            return
        self._forbidden = True
        # Whoever leaves already has no worker any more that could raise it.
        logger.error(
            "shard %s cannot be handled: %s",
            self._spec.durable,
            error,
            extra=about("shard_forbidden", queue=self._spec.stream),
        )
        self._fail(forbidden(self._spec, error))

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


def forbidden(spec: LaneSpec, error: PermissionDenied) -> PermissionDenied:
    """What the consumers of the shard end with."""
    return PermissionDenied(
        f"shard {spec.durable!r} of stream {spec.stream!r} cannot be handled: {error}",
        subject=error.subject,
        operation=error.operation,
    )
