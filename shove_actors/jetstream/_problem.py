"""A refusal on its way to the place where it may be raised.

A traceback shows the local variables of every frame it passes (pytest, rich and error reporters
do that), and an exception raised while another one is handled carries that one along. Functions
that hold a credential in a local variable therefore *return* what is wrong; only
`NatsConfig.validate`, whose variables all have a redacted `repr`, raises.
Test: `test_pc131_tracebacks_with_locals`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """Names the field, the rule and the fix; never the value of a credential."""

    text: str
