"""Hypothesis strategies for programs that send messages (extra `test`).

from shove_actors.testing import strategies

@given(plan=strategies.fault_plans())
def test_orders(plan): ...
"""

from __future__ import annotations

from shove_actors.testing._strategies import fault_plans as fault_plans
from shove_actors.testing._strategies import faults as faults
from shove_actors.testing._strategies import keys as keys
from shove_actors.testing._strategies import message_ids as message_ids
from shove_actors.testing._strategies import payloads as payloads
from shove_actors.testing._strategies import rates as rates
from shove_actors.testing._strategies import scripts as scripts
from shove_actors.testing._strategies import seconds as seconds
from shove_actors.testing._strategies import shard_counts as shard_counts

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
