"""The part of a broker that is about dead letters; what it does is in `_dead_letters.py`."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from shove_actors._errors import UsageError
from shove_actors.messaging import Topic

from ._dead_letter import DeadLetter, DeadLettersDone, LetterFilter
from ._dead_letters import browse, purge, replay

if TYPE_CHECKING:
    from shove_actors.actors import ActorSystem
    from shove_actors.backends import Backend

    from ._publish_service import PublishService

_ALL = LetterFilter()

P = ParamSpec("P")
R = TypeVar("R")


def _with_a_filter(method: Callable[P, R]) -> Callable[P, R]:
    """Arguments that do not fit are told with what is wanted: what of all is deleted, say."""
    signature, name = inspect.signature(method), method.__name__

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as exc:
            raise UsageError(
                f"{name}: {exc}. Say which letters are meant with a LetterFilter, as in "
                f"{name}(topic, LetterFilter(limit=1)); LetterFilter() means all"
            ) from None
        return method(*args, **kwargs)

    return called


class DeadLetterDesk:
    """See `Broker`, which this is a part of."""

    if TYPE_CHECKING:
        backend: Backend
        publish_service: PublishService

        @property
        def system(self) -> ActorSystem: ...

    @_with_a_filter
    def dead_letters(
        self, topic: Topic[Any], which: LetterFilter = _ALL
    ) -> AsyncIterator[DeadLetter]:
        """The dead letters of a topic, oldest death first. Looking consumes nothing.

            async for letter in broker.dead_letters(ORDERS, LetterFilter(reasons={"rejected"})):
                print(letter.sequence, letter.metadata.detail, letter.payload)

        They are read one at a time; what dies after the loop has begun is not among them. Leaving
        the loop early needs no care. Also there are letters that a consumer of the dead letters
        (`run_dlq`) has acknowledged: of all topics but FAIL_ALL ones, the dead-letter queue keeps
        them until its limits, or `purge_dead_letters`, remove them.

        Raises `UsageError` for a topic without a dead-letter queue; in the loop `TopicNotDeclared`,
        `ConnectionError`.
        """
        self._check(topic, "dead_letters")
        return browse(self.backend, topic, which)

    @_with_a_filter
    async def replay_dead_letters(
        self, topic: Topic[Any], which: LetterFilter = _ALL, *, dry_run: bool = False
    ) -> DeadLettersDone:
        """Put dead letters back into their topic, with a fresh budget of retries.

        Each is stored in the topic under its message's own id, and deleted once the server has
        acknowledged that. Nothing is lost when this is cancelled or its process killed: the letters
        that were not deleted are still there, and one that had been stored already is stored once
        if the replay is repeated within the duplicate window (120 s).

        Letters of a sequenced topic are put back key by key in the order in which their messages
        were first published, however they died; if one cannot be stored, those behind it stay. They
        come behind what was published meanwhile. Letters of a poisoned key stay: use
        `release(topic, key, replay=True)`. What stays, and why, is in the result.

        `dry_run`: nothing is changed, the result says what would be done.

        Raises `UsageError` for a topic without a dead-letter queue, `TopologyError` if the stream
        has another number of shards than `topic`, `TopicNotDeclared`, `ConnectionError`.
        """
        self._check(topic, "replay_dead_letters")
        return await replay(self.publish_service, topic, which, dry_run=dry_run)

    @_with_a_filter
    async def purge_dead_letters(
        self, topic: Topic[Any], which: LetterFilter, *, dry_run: bool = False
    ) -> DeadLettersDone:
        """Delete dead letters for good. `which` has no default: `LetterFilter()` means all.

        `dry_run`: nothing is changed, the result says how many would be. Raises what
        `replay_dead_letters` raises, and `UsageError` without `which`. Cancelled, it has deleted
        some.
        """
        self._check(topic, "purge_dead_letters")
        return await purge(self.backend, topic, which, dry_run=dry_run)

    def _check(self, topic: object, what: str) -> None:
        _ = self.system  # `BrokerClosed` outside the broker's block
        if not isinstance(topic, Topic):
            raise UsageError(f"{what} takes a topic, not {type(topic).__name__}")
