"""Profiles, chosen by `HYPOTHESIS_PROFILE`, and the summary of what was simulated.

dev    the whole folder in less than half a minute
ci     in less than six minutes on two idle cores
deep   an hour
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["shove_actors.testing.pytest_plugin"]

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("ci", max_examples=150, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("deep", max_examples=5000, deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
