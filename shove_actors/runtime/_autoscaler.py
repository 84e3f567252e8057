"""The autoscaler: looks at a backlog now and then, and starts or stops consumers of one topic.

It holds no truth: how many consumers run it reads from the pool each time, so a consumer that
crashed for good, or an autoscaler that was restarted, needs no repair. It decides by the pure
functions of `_scaling`; what remains here is measuring, and choosing whom to stop.

Whom to stop: consumers without a running handler only; if all are busy, nothing is stopped and no
cooldown begins. A consumer that becomes busy in the instant it is chosen finishes and settles
first, as at any stop (PC-089).

Failures never leave it: a poll that fails, a strategy that raises or answers with no number, and
consumers that cannot be started or stopped are logged once per cause until all works again, and
nothing else changes meanwhile (SW-46).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from shove_actors._errors import ShoveError
from shove_actors._log import about
from shove_actors.backends import Backlog

from ._scaling import AutoscalerConfig, Load, NoNumber, Stability, stabilise

logger = logging.getLogger("shove_actors.autoscaler")


class Scalable(Protocol):
    """One topic's consumers, as the autoscaler sees them."""

    @property
    def name(self) -> str: ...

    @property
    def limits_of_scale(self) -> tuple[int, int]:
        """Fewest and most consumers."""
        ...

    @property
    def takes(self) -> int:
        """Messages that one consumer handles at once."""
        ...

    def count(self) -> int:
        """Consumers that run now."""
        ...

    async def backlog(self) -> Backlog | None:
        """None: the durable is not there. Raises what prevents the look."""
        ...

    async def grow(self, number: int) -> None: ...

    async def shrink(self, number: int) -> int:
        """Stop up to `number` idle consumers; how many were stopped."""
        ...


class Autoscaler:
    """One topic's. `decided` hears of every change that was made: `(name, before, after)`."""

    def __init__(
        self,
        pool: Scalable,
        config: AutoscalerConfig,
        *,
        decided: Callable[[str, int, int], None] = lambda _name, _before, _after: None,
    ) -> None:
        self._pool = pool
        self._config = config
        self._decided = decided
        self._state = Stability()
        self._trouble: str | None = None

    async def run(self) -> None:
        """Until cancelled. The first look is after one interval: a start needs to settle."""
        while True:
            await trio.sleep(self._config.poll_interval)
            await self.poll()

    async def poll(self) -> None:
        """One look, and what follows from it."""
        load = await self._measure()
        before = self._state
        try:
            self._state, target = stabilise(before, load, trio.current_time(), self._config)
        except NoNumber as exc:
            # Another fraction at each look is one cause.
            self._report(str(exc), None, cause=type(exc).__name__)
            self._state = Stability(acted_at=before.acted_at)
            return
        except Exception as exc:
            self._report(f"strategy raised {type(exc).__name__}: {exc}", exc)
            self._state = Stability(acted_at=before.acted_at)
            return
        if load is None:
            return
        if target is None:
            self._trouble = None
            return
        try:
            after = await self._act(load, target)
        except Exception as exc:
            self._report(f"consumers could not be changed: {type(exc).__name__}: {exc}", exc)
            self._state = before
            return
        self._trouble = None
        if after == load.consumers:
            # Nothing could be stopped: not an action, so no cooldown; asked again at the next look.
            self._state = before
            return
        logger.info(
            "%s: %d consumers, were %d (%d pending, %d in flight)",
            self._pool.name,
            after,
            load.consumers,
            load.pending,
            load.in_flight,
            extra=about("scaled", queue=self._pool.name, consumers=after, before=load.consumers),
        )
        self._decided(self._pool.name, load.consumers, after)

    async def _act(self, load: Load, target: int) -> int:
        if target > load.consumers:
            await self._pool.grow(target - load.consumers)
            return target
        return load.consumers - await self._pool.shrink(load.consumers - target)

    async def _measure(self) -> Load | None:
        pool = self._pool
        try:
            # Bounded: a server that does not answer is unknown, and the next look is soon.
            with trio.fail_after(max(self._config.poll_interval, 1.0)):
                backlog = await pool.backlog()
        except (ShoveError, trio.TooSlowError) as exc:
            self._report(f"backlog unknown: {exc or type(exc).__name__}", None)
            return None
        except Exception as exc:
            self._report(f"backlog unknown: {type(exc).__name__}", exc)
            return None
        if backlog is None:
            self._report("backlog unknown: its durable is not there", None)
            return None
        low, high = pool.limits_of_scale
        return Load(
            pending=backlog.pending,
            in_flight=backlog.ack_pending,
            consumers=pool.count(),
            takes=pool.takes,
            minimum=low,
            maximum=high,
        )

    def _report(
        self, trouble: str, error: BaseException | None, *, cause: str | None = None
    ) -> None:
        cause = trouble if cause is None else cause
        if cause != self._trouble:
            self._trouble = cause
            logger.warning(
                "%s: %s; the number of consumers stays",
                self._pool.name,
                trouble,
                exc_info=error,
                extra=about("scaling_failed", queue=self._pool.name),
            )

    async def serve(self, ready: Callable[[], None], stop: Callable[[], Awaitable[object]]) -> None:
        """As an actor's body: run until asked to stop."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.run)
            ready()
            await stop()
            nursery.cancel_scope.cancel()
