"""Where an ordered reader stands, and where its next consumer has to begin. Pure.

An ordered reader has a consumer that nobody acknowledges to. The consumer counts what it sends; a
number that does not follow the one before means that something was lost on the way, and then a new
consumer goes on behind the last message that arrived in order.

Invariant (`properties/test_ordered_tracker.py`): whatever is lost, repeated or sent by an earlier
consumer, what `accept` lets through are the stream's messages in order, each once, without a gap
between what was there when the reader began and now.
"""

from __future__ import annotations

from typing import Literal

DeliverPolicy = Literal["all", "last_per_subject", "new", "by_start_sequence"]


class OrderedTracker:
    """The position of one reader, through all of its consumers."""

    __slots__ = ("_consumer_seq", "_policy", "_start", "stream_seq")

    def __init__(self, policy: DeliverPolicy = "all", start: int = 0) -> None:
        self._policy: DeliverPolicy = policy
        self._start = start
        self._consumer_seq = 0
        #: Of the last message that arrived in order; 0 before the first one.
        self.stream_seq = 0

    def begin(self) -> tuple[DeliverPolicy, int]:
        """A new consumer: how it has to deliver, and from which stream sequence (0: not said)."""
        self._consumer_seq = 0
        if self.stream_seq:
            return "by_start_sequence", self.stream_seq + 1
        return self._policy, self._start

    def created(self, delivered: int) -> None:
        """The stream sequence that the server counts as delivered by a consumer just made.

        With the policy `new` that is the stream's last one. What is published between now and the
        loss of this consumer would be skipped by another `new` one, so the next goes on from here.
        """
        if self._policy == "new":
            self._policy, self._start = "by_start_sequence", delivered + 1

    def accept(self, consumer_seq: int, stream_seq: int) -> bool:
        """Whether this message is the next one. False: something is missing; begin anew."""
        if consumer_seq != self._consumer_seq + 1:
            return False
        self._consumer_seq = consumer_seq
        self.stream_seq = stream_seq
        return True

    def complete(self, last_consumer_seq: int) -> bool:
        """Whether all that the consumer says it has sent has arrived."""
        return last_consumer_seq == self._consumer_seq


class InitialPhase:
    """Whether what was there when the reader began has been seen. True comes from it once.

    Three signs, whichever is first: as many messages as the consumer said were waiting; a message
    that says that none is waiting behind it; a heartbeat of an idle consumer. The last one counts
    when messages disappear (expire) before they are delivered: then the count is never reached.

    The count of a new consumer starts anew: it tells what is waiting for *that* one. Messages may
    come before the reply that tells it.
    """

    __slots__ = ("_expected", "_seen", "over")

    def __init__(self) -> None:
        self._expected: int | None = None
        self._seen = 0
        self.over = False

    def begin(self) -> None:
        """A new consumer; how much waits for it is not known yet."""
        self._expected = None
        self._seen = 0

    def created(self, pending: int) -> bool:
        self._expected = pending
        return self._check()

    def message(self, pending: int) -> bool:
        self._seen += 1
        if pending == 0 and not self.over:
            self.over = True
            return True
        return self._check()

    def idle(self) -> bool:
        if self.over or self._expected is None:
            return False
        self.over = True
        return True

    def _check(self) -> bool:
        if self.over or self._expected is None or self._seen < self._expected:
            return False
        self.over = True
        return True
