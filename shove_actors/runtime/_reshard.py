"""No publisher that was built with another number of shards puts a message into a wrong lane.

A shard's subject does not say of how many it is one. A publisher that runs on while the number
changes (see `backends/_reshard.py`) would go on publishing to subjects that exist, with keys in the
wrong lanes. So the number of a sequenced topic's stream is looked at before the first publish, and
again whenever it may have changed:

    "no stream" was the answer to a publish          the stream is closed, or gone
    the stream was changed (the server announces it) it was closed, or opened again
    the connection was lost                          an announcement may have been missed

Until it is known to agree, posts for that topic wait; if it does not, they are refused
(`ReshardUnderWay`, `TopologyError`). The same holds for repetitions, which are sent later than they
were made. What is left is a process that stood still for the whole change and sends what it had
begun before it reads anything: the procedure in docs/operations.md says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from shove_actors._errors import ShoveError
from shove_actors.backends import Backend, Post
from shove_actors.messaging import publish_refusal

_SHARD = ".shard."


class ShardFence:
    """What one broker's publishers know of the shards they publish to."""

    __slots__ = ("_backend", "_doubted", "_expected")

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._expected: dict[str, int] = {}
        #: Queues in doubt; each doubt is an object of its own, so that a look knows a newer one.
        self._doubted: dict[str, object] = {}

    def expect(self, queue: str, shards: int) -> None:
        """A message for one of so many shards is about to be posted."""
        if self._expected.get(queue) != shards:
            self._expected[queue] = shards
            self._doubted[queue] = object()

    def doubt(self, queue: str) -> None:
        if queue in self._expected:
            self._doubted[queue] = object()

    def doubt_subject(self, subject: str) -> None:
        self.doubt(subject.rpartition(_SHARD)[0])

    def doubts(self, subject: str) -> bool:
        return bool(self._doubted) and subject.rpartition(_SHARD)[0] in self._doubted

    def held(self, batch: Iterable[Post]) -> list[Post]:
        """Those that have to wait until the number is known."""
        if not self._doubted:
            return []
        return [post for post in batch if self.doubts(post.subject)]

    async def refusal(self, subject: str) -> Exception | None:
        """Look. None: the numbers agree, and the posts may go. `ShoveError`s are returned.

        The doubt stays until the answer is here, so what is published meanwhile waits as well, and
        it stays longer when there is a newer one by then: a change that was announced meanwhile.
        """
        queue = subject.rpartition(_SHARD)[0]
        doubt = self._doubted.get(queue)
        try:
            layout = await self._backend.shard_layout(queue, partial(self.doubt, queue))
        except ShoveError as exc:
            refusal: ShoveError | None = exc
        else:
            refusal = publish_refusal(queue, self._expected[queue], layout)
        if refusal is None and self._doubted.get(queue) is doubt:
            self._doubted.pop(queue, None)
        return refusal
