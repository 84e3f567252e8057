"""A dead letter, which of them are meant, and what became of those; see `_dead_letters.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from types import MappingProxyType

from shove_actors._errors import UsageError
from shove_actors.backends import Kept
from shove_actors.messaging import DeadMetadata, decode_headers, letter_origin

from ._checks import check_seconds, check_whole


@dataclass(frozen=True, kw_only=True)
class LetterFilter:
    """Which dead letters are meant: all that is given must fit, and nothing given means all.

    * `reasons`: of these `DeathReason` values.
    * `keys`: of these sequence keys.
    * `sequences`: their numbers in the dead-letter queue, as `DeadLetter.sequence` has them.
    * `older_than`, `newer_than`: seconds since they died.
    * `limit`: of those that fit the first so many, oldest death first.

        LetterFilter(reasons={DeathReason.REJECTED}, older_than=900, limit=100)

    Raises `UsageError` for what cannot be meant.
    """

    reasons: Collection[str] = frozenset()
    keys: Collection[str] = frozenset()
    sequences: Collection[int] = frozenset()
    older_than: float | None = None
    newer_than: float | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        for name, kind in (("reasons", str), ("keys", str), ("sequences", int)):
            value: object = getattr(self, name)
            if (
                isinstance(value, (str, bytes))  # each of its characters would be one
                or not isinstance(value, Collection)
                or not all(isinstance(each, kind) for each in value)
            ):
                raise UsageError(
                    f"LetterFilter({name}=...): give a set of {kind.__name__}, as {{...}}"
                )
            object.__setattr__(self, name, frozenset(value))
        if self.limit is not None:
            check_whole(self.limit, "limit", least=1, why=", or None for all")
        for name in ("older_than", "newer_than"):
            if getattr(self, name) is not None:
                check_seconds(getattr(self, name), name)

    def takes(self, letter: DeadLetter, now_ns: int) -> bool:
        """Whether it fits, at that time since the epoch. `limit` is not a letter's affair."""
        age_s = (now_ns - letter.died_ns) / 1e9
        return (
            (not self.reasons or letter.metadata.reason in self.reasons)
            and (not self.keys or letter.key in self.keys)
            and (not self.sequences or letter.sequence in self.sequences)
            and (self.older_than is None or age_s > self.older_than)
            and (self.newer_than is None or age_s <= self.newer_than)
        )


class DeadLetter:
    """One stored dead letter, as `Broker.dead_letters` shows it. Looking at it changes nothing.

    * `payload`: what the message was, byte for byte; `topic.decode(letter.payload)` if it decodes.
    * `metadata`: its story, a `DeadMetadata`: `reason`, `detail`, `original_queue` ...
    * `headers`: all of them, as they are stored.
    * `stream`, `sequence`: the dead-letter queue, and its number there.
    """

    # Satisfies `messaging.Stored`, so that `metadata` can read its story.
    num_delivered = 0

    def __init__(self, queue: str, kept: Kept, key: str | None = None) -> None:
        self.stream = queue
        self.payload = kept.payload
        self.raw_headers = kept.raw_headers
        self.sequence = kept.sequence
        self.timestamp_ns = kept.timestamp_ns
        self.subject = kept.subject
        self._key = key

    def __repr__(self) -> str:
        return f"<DeadLetter {self.stream}:{self.sequence} {self.metadata.reason}>"

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """Its headers; read only."""
        return MappingProxyType(decode_headers(self.raw_headers) if self.raw_headers else {})

    @cached_property
    def metadata(self) -> DeadMetadata:
        """What it says about its death."""
        return DeadMetadata(self)

    @property
    def key(self) -> str | None:
        """Its sequence key, from its header or else from its payload; None if it has none."""
        found = self.metadata.key
        return self._key if found is None else found

    @property
    def died_at(self) -> datetime:
        """When it died; when it was stored here, if it does not say."""
        return self.metadata.died_at or self.metadata.timestamp

    @property
    def died_ns(self) -> int:
        """`died_at` in nanoseconds since the epoch."""
        return int(self.died_at.timestamp() * 1e9)

    @property
    def place(self) -> tuple[int, int]:
        """Sorts letters as their messages were first stored: by time, then by sequence.

        The time comes first because sequences start over when a stream is made again.
        """
        sequence, stored_ns = letter_origin(self.headers) or (self.sequence, 0)
        return stored_ns or self.timestamp_ns, sequence


@dataclass(frozen=True, kw_only=True)
class DeadLettersDone:
    """What `replay_dead_letters` or `purge_dead_letters` did, or would do (`dry_run`).

    * `done`: so many were replayed or deleted.
    * `skipped`: why how many stay where they are.
    * `poisoned_keys`: the keys because of which some stay; `Broker.release` lets them go on.
    * `failure`: the first error of a publish, whose letter stays too.
    """

    done: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    poisoned_keys: frozenset[str] = frozenset()
    failure: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether none of those that were meant had to stay."""
        return not self.skipped and self.failure is None
