"""What SIGINT and SIGTERM mean to a group: drain, and cut the drain short."""

from __future__ import annotations

import logging
import signal as signals
from typing import TYPE_CHECKING

import trio

from shove_actors._log import about

if TYPE_CHECKING:
    from ._group import ConsumerGroup

logger = logging.getLogger("shove_actors.group")


async def stop_on_signals(group: ConsumerGroup) -> None:
    """Stops `group` on the first signal, and cancels its handlers on the next. Never returns."""
    try:
        with trio.open_signal_receiver(signals.SIGINT, signals.SIGTERM) as received:
            async for number in received:
                name = signals.Signals(number).name
                if group.stopping:
                    logger.warning(
                        "%s again: cancelling handlers",
                        name,
                        extra=about("kill_signal", signal=name),
                    )
                    group.hard_stop()
                else:
                    logger.info(
                        "%s: draining",
                        name,
                        extra=about("drain_signal", signal=name),
                    )
                    group.stop()
    except RuntimeError:
        # Signals only reach the main thread; a Trio run elsewhere is stopped with `stop`.
        await trio.sleep_forever()
