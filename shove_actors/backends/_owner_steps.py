"""What an `Ownership` asks the server for, and what it says about a delivery."""

from __future__ import annotations

from enum import Enum, auto


class Step(Enum):
    """A request to the server. The lane makes it and reports its answer; one at a time."""

    READ = auto()
    """Read the record: `read`."""
    LOOK = auto()
    """Ask about the durable: `looked`."""
    CLAIM = auto()
    """Write `wanted_record` if the record is at `revision`: `wrote`."""
    RENEW = auto()
    """The same."""
    RELEASE = auto()
    """The same."""
    REWIND = auto()
    """Reset the durable to its ack floor: `rewound`. Also before a release: what was in hand would
    be delivered to nobody until its ack wait is over, and without a message nobody is pinned."""
    UNPIN = auto()
    """Let the server choose somebody else: `unpinned`."""


class Fate(Enum):
    """What is to be done with a delivery."""

    DISCARD = auto()
    """Forget it. It comes again, to whoever owns the shard then."""
    NEW = auto()
    """Handle it, behind what is in hand."""
    AGAIN = auto()
    """It is in hand already; settle it by its new number."""
    SETTLED = auto()
    """It was settled under this ownership, and the server did not hear it: settle it again."""
