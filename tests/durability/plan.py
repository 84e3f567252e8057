"""What a child process is told to do, and where it leaves its traces."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from .notes import Kind

#: before_store: the copy has not been sent. after_store: the next place has acknowledged it, the
#: acknowledgement of the original has not been sent. after_ack: the server has processed that too.
#: before_nak, after_nak: the same for a retry that waits in place.
#: before_record, after_record: of a key's poison. before_delete, after_delete: of a dead letter
#: that was replayed. before_removal, after_removal: of the record when its key is released.
Point = Literal[
    "before_store",
    "after_store",
    "after_ack",
    "before_nak",
    "after_nak",
    "before_record",
    "after_record",
    "before_delete",
    "after_delete",
    "before_removal",
    "after_removal",
]


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """The child kills itself at `point` of a move out of the stream `source` into `target`.

    `number`: at which deletion of a dead letter.
    """

    point: Point
    source: str
    target: str = ""
    number: int = 1


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`movers`: "only" runs no consumers, "none" no hold movers, so that a held message stays
    untouched. `mover_lease_s`: None leaves the package's own; tests that kill a mover with a
    message in its hands shorten it. `quick_restarts`: restart crashed consumers without pauses, so
    that a crash loop ends in a moment instead of a minute."""

    name: str
    folder: str
    url: str
    queue: str
    kind: Kind = "holds"
    hold_s: float = 1.0
    shards: int = 2
    kill: Kill | None = None
    movers: Literal["yes", "only", "none"] = "yes"
    quick_restarts: bool = False
    mover_lease_s: float | None = None
    ack_wait: float = 1.0
    max_retries: int = 10
    prefetch: int = 10
    retry_delay: float = 1.0
    drain_timeout: float = 10.0
    work_s: float = 0.0

    def path(self, suffix: str) -> Path:
        """Its traces: `.journal`, `.log`, `.outcome` and, once it has ended, `.exit`."""
        return Path(self.folder) / f"{self.name}{suffix}"


def gate_path(folder: Path, queue: str) -> Path:
    return folder / f"{queue}.gate"
