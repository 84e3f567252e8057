"""How a durable of a keyed shard differs from others."""

from __future__ import annotations

from typing import Any, Final

from shove_actors.backends._pinned import pin_timeout
from shove_actors.backends._port import LaneSpec

#: The one priority group; whoever is pinned in it is sent the messages.
GROUP: Final = "owner"


def pinned_settings(spec: LaneSpec) -> dict[str, Any]:
    """The settings that others have not."""
    return {
        "priority_groups": (GROUP,),
        "priority_policy": "pinned_client",
        "priority_timeout": pin_timeout(spec.ack_wait_s),
    }
