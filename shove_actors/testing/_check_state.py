"""What a `Checker` knows of each message, key and topic so far."""

from __future__ import annotations

from ._history import Event
from ._rules import HistoryRules


class MessageState:
    __slots__ = (
        "acked",
        "dead",
        "failed",
        "final",
        "first",
        "held",
        "highest",
        "key",
        "published",
        "refused",
        "rejected",
        "remaining",
        "sequence",
        "settled",
        "unended",
    )

    def __init__(self) -> None:
        self.published: Event | None = None
        self.first: Event | None = None
        self.key: str | None = None
        self.sequence = 0
        self.acked = self.refused = self.settled = False
        #: As `refused` (some attempt was rejected), but the attempt that ended last counts.
        self.rejected = False
        self.remaining = self.held = False
        self.dead: str | None = None
        #: Some attempt has ended so that nothing more has to follow.
        self.final = False
        #: One bit per attempt that has failed.
        self.failed = 0
        self.highest = -1
        self.unended = 0


class KeyState:
    __slots__ = ("last", "poisoned", "published")

    def __init__(self) -> None:
        #: The message that was handled last.
        self.last: MessageState | None = None
        self.poisoned: Event | None = None
        #: The batch whose message of this key was published last, and its sequence.
        self.published = ("", 0)


class TopicState:
    __slots__ = ("copies", "keys", "messages", "only", "rules", "shards")

    def __init__(self, rules: HistoryRules) -> None:
        self.rules = rules
        self.only = frozenset(rules.only)
        self.messages: dict[str, MessageState] = {}
        self.keys: dict[str, KeyState] = {}
        #: The start of the handler that runs in each shard; and of each copy elsewhere.
        self.shards: dict[int, Event] = {}
        self.copies: dict[tuple[str, int], Event] = {}

    def over(self, start: Event) -> None:
        """That handler has ended."""
        if start.shard is not None:
            self.shards.pop(start.shard, None)
        else:
            self.copies.pop((start.id, start.sequence), None)
