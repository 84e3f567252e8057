"""Hypothesis strategies for programs that send messages (extra `test`).

from shove_actors.testing import strategies

@given(plan=strategies.fault_plans())
def test_orders(plan): ...
"""

from __future__ import annotations

from .._strategies import fault_plans as fault_plans
from .._strategies import faults as faults
from .._strategies import keys as keys
from .._strategies import message_ids as message_ids
from .._strategies import payloads as payloads
from .._strategies import rates as rates
from .._strategies import scripts as scripts
from .._strategies import seconds as seconds
from .._strategies import shard_counts as shard_counts

__all__ = [
    "fault_plans",
    "faults",
    "keys",
    "message_ids",
    "payloads",
    "rates",
    "scripts",
    "seconds",
    "shard_counts",
]
