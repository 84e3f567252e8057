"""A stream that has an end and forgets nothing, even what is acknowledged, fills up for good."""

from __future__ import annotations

import logging

from shove_actors._log import about
from shove_actors.messaging import Retention, Topology

logger = logging.getLogger("shove_actors.broker")


def warn_if_it_fills_up(topology: Topology) -> None:
    """Said when it is declared: the day it is full, every publish is refused, and no consumer can
    make room, because acknowledged messages stay."""
    config = topology.stream_config
    if config is None or config.retention is not Retention.LIMITS or config.max_age is not None:
        return
    limits = [name for name in ("max_messages", "max_bytes") if getattr(config, name) is not None]
    if limits:
        logger.warning(
            "stream %s keeps acknowledged messages (Retention.LIMITS) up to %s and no max_age: "
            "once full, it refuses every publish for good. Set max_age, or use "
            "Retention.WORK_QUEUE",
            topology.queue,
            " and ".join(f"{name}={getattr(config, name)}" for name in limits),
            extra=about("stream_fills", queue=topology.queue),
        )
