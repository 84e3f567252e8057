"""What a simulated handler can be told to do."""

from __future__ import annotations

from typing import Literal, TypeAlias

#: In one attempt. `ack`: what the handler of the user does, if there is one. `wait`: it takes a
#: second. `long`: longer than its lease. `hang`: longer than its
#: time-out. `linger`: as `hang`, and takes a while to end when cancelled. `die`: its process is
#: killed.
Move: TypeAlias = Literal[
    "ack", "retry", "reject", "defer", "raise", "wait", "long", "hang", "linger", "die"
]
