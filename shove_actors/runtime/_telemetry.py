"""The seam to OpenTelemetry: chosen once per broker, and None when nobody looks.

The package uses OpenTelemetry's API only, and only if the application has installed an SDK (set a
meter or tracer provider) before it opened the broker. Otherwise `choose` returns None, nothing of
OpenTelemetry is imported, and what is left on the way of a message is one `is None` while it is
published. A consumed message passes nothing at all: the observer of a topic wraps the handler, and
without one there is no wrapper.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shove_actors._errors import UsageError
from shove_actors._log import about

from ._checks import check_switch

if TYPE_CHECKING:
    from ._instruments import Instruments

logger = logging.getLogger("shove_actors.telemetry")

#: With these, OpenTelemetry's API makes a provider by itself when it is first asked for one.
_PROVIDERS: Final = ("OTEL_PYTHON_METER_PROVIDER", "OTEL_PYTHON_TRACER_PROVIDER")
_PREFIX: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}|")


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """What a broker tells OpenTelemetry; for `open_broker(config, telemetry=...)`.

    `prefix`: of all metric names. `metrics`, `tracing`: switch one of them off. `meter_provider`,
    `tracer_provider`: the SDK's; None means the global ones, which have to be set before the broker
    is opened. Where a provider is only the API's own (no SDK installed), nothing is recorded and
    nothing is paid. Needs `pip install 'shove-actors[otel]'` and an SDK of the application.

    Raises `UsageError` for a prefix that is no metric name, and a provider that is none.
    """

    prefix: str = "shove_"
    metrics: bool = True
    tracing: bool = True
    meter_provider: Any = None
    tracer_provider: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str) or _PREFIX.fullmatch(self.prefix) is None:
            raise UsageError(
                f"telemetry prefix {self.prefix!r}: letters, digits and `_`, beginning with a "
                "letter, at most 63 characters"
            )
        check_switch(self.metrics, "telemetry metrics")
        check_switch(self.tracing, "telemetry tracing")
        for name, method in (("meter_provider", "get_meter"), ("tracer_provider", "get_tracer")):
            provider = getattr(self, name)
            if provider is not None and not callable(getattr(provider, method, None)):
                raise UsageError(
                    f"telemetry {name}={type(provider).__name__}: give a provider of "
                    "OpenTelemetry's SDK, or None for the global one"
                )


def choose(telemetry: Telemetry | None) -> Instruments | None:
    """The instruments of a broker; None when there is nobody to tell."""
    if telemetry is None or not (telemetry.metrics or telemetry.tracing):
        return None
    given = telemetry.meter_provider is not None or telemetry.tracer_provider is not None
    loaded = sys.modules.get("opentelemetry") is not None
    if not given and not loaded and not _made_by_environment():
        # Who has not imported the API has set no provider: importing it costs tens of
        # milliseconds, for nothing.
        return None
    try:
        from ._instruments import instruments_for
    except ImportError as exc:
        logger.warning(
            "OpenTelemetry cannot be used (%s); install shove-actors[otel]",
            exc.name or type(exc).__name__,
            extra=about("telemetry_off"),
        )
        return None
    return instruments_for(telemetry)


def _made_by_environment() -> bool:
    return any(name in os.environ for name in _PROVIDERS)
