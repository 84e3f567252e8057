"""What a `Checker` knows of each message, key and topic so far."""

from __future__ import annotations

from collections.abc import Hashable

from ._history import Event
from ._rules import HistoryRules


class MessageState:
    __slots__ = (
        "acked",
        "asked",
        "buried",
        "dead",
        "deferred",
        "deferred_at",
        "died",
        "digests",
        "doubtful",
        "failed",
        "failed_at",
        "final",
        "first",
        "highest",
        "key",
        "latest",
        "published",
        "refused",
        "rejected",
        "remaining",
        "replay_acked",
        "replayed",
        "seen",
        "sequence",
        "settled",
        "suspected",
        "unended",
    )

    def __init__(self) -> None:
        self.published: Event | None = None
        #: Somebody has published it, but of what is stored for that nothing is known.
        self.doubtful = False
        #: Of its payload: as its publishers know it ("": one of them does not); and where it was
        #: seen before one of them said.
        self.digests: tuple[str, ...] = ()
        self.seen: Event | None = None
        self.first: Event | None = None
        self.key: str | None = None
        self.sequence = 0
        self.acked = self.refused = self.settled = False
        #: As `refused` (some attempt was rejected), but the attempt that ended last counts.
        self.rejected = False
        self.remaining = False
        self.dead: str | None = None
        self.died: Event | None = None
        #: Of which of its copies there is a dead letter that does not say which one it is.
        self.buried: tuple[int, ...] = ()
        #: Some attempt has ended so that nothing more has to follow.
        self.final = False
        #: One bit per attempt that has failed.
        self.failed = 0
        #: When the last of them did.
        self.failed_at = 0.0
        self.highest = -1
        self.unended = 0
        #: When it was noted that this suspect is tried, and the troubles until then.
        self.suspected: tuple[float, int] | None = None
        #: The attempt that began last; it ended in a way that is no retry, then; the delay that the
        #: handler asked for which ended last.
        self.latest: Event | None = None
        self.deferred = False
        self.deferred_at = 0.0
        self.asked = 0.0
        #: Its dead letter was handled again, with a budget of its own; to the end.
        self.replayed = self.replay_acked = False

    @property
    def unheard_of(self) -> bool:
        """Nothing was told of it so far: it may be older than the history."""
        return self.first is None and self.published is None and not self.doubtful

    def begin_again(self) -> None:
        """A replay gives it another budget."""
        self.replayed = True
        self.failed, self.highest, self.latest = 0, -1, None
        self.final = self.refused = self.replay_acked = False


class KeyState:
    __slots__ = (
        "ever_poisoned",
        "failed",
        "first_poisoned",
        "last",
        "letters",
        "pardoned",
        "poisoned",
        "published",
        "released",
        "shard",
    )

    def __init__(self) -> None:
        #: The message that was handled last.
        self.last: MessageState | None = None
        self.poisoned: Event | None = None
        self.ever_poisoned = False
        self.first_poisoned = 0
        #: The dead letter for which it counts as failed, whether or not it was marked.
        self.failed: Event | None = None
        #: When it was released last, and which message had poisoned it then.
        self.released: Event | None = None
        self.pardoned = 0
        #: Where a message of it was handled first.
        self.shard: int | None = None
        #: Dead letters that a replay would handle: ids by the sequence of their message.
        self.letters: dict[int, str] = {}
        #: The batch whose message of this key was published last, and its sequence.
        self.published = ("", 0)


class TopicState:
    __slots__ = ("copies", "keys", "lanes", "messages", "only", "rules")

    def __init__(self, rules: HistoryRules) -> None:
        self.rules = rules
        self.only = frozenset(rules.only)
        self.messages: dict[str, MessageState] = {}
        self.keys: dict[str, KeyState] = {}
        #: The start of the handler that runs in each lane; and of each copy elsewhere.
        self.lanes: dict[Hashable, Event] = {}
        self.copies: dict[tuple[str, int], Event] = {}

    def key(self, name: str) -> KeyState:
        found = self.keys.get(name)
        if found is None:
            found = self.keys[name] = KeyState()
        return found

    def lane(self, event: Event) -> Hashable:
        """What handles one message at a time: a shard, or each key of one."""
        return (event.shard, event.key) if self.rules.keyed else event.shard

    def over(self, start: Event) -> None:
        """That handler has ended."""
        if start.shard is not None:
            lane = self.lane(start)
            if self.lanes.get(lane) is start:
                del self.lanes[lane]
        elif self.copies.get((start.id, start.sequence)) is start:
            del self.copies[start.id, start.sequence]
