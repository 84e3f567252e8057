"""What a simulation turns down in its Python process while it is open."""

from __future__ import annotations

import gc
import logging

#: Objects that may be made before the collector looks at the young ones, and how many of its looks
#: later at the others. A history only grows, and to look through it again and again costs a third
#: of the time of a simulation.
THRESHOLDS = (50_000, 50, 50)


class Hush:
    """The runtime's loggers, which tell of all that it was made to suffer, and the collector."""

    def __init__(self) -> None:
        self._level = logging.NOTSET
        self._thresholds: tuple[int, int, int] | None = None

    def begin(self) -> None:
        logger = logging.getLogger("shove_actors")
        self._level = logger.level
        logger.setLevel(logging.CRITICAL + 1)
        self._thresholds = gc.get_threshold()
        if self._thresholds[0]:  # else somebody has turned it off
            gc.set_threshold(*THRESHOLDS)

    def end(self) -> None:
        """As it was. Idempotent, and without effect before `begin`."""
        if self._thresholds is not None:
            logging.getLogger("shove_actors").setLevel(self._level)
            gc.set_threshold(*self._thresholds)
            self._thresholds = None
