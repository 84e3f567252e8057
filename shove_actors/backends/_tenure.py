"""Whether somebody else may have had a message of this shard since our last one.

A durable counts its deliveries, redeliveries included, and tells each one's number. A shard has one
message in flight. So if the delivery before this one was ours as well, nobody else has been given
anything in between, and whatever only the holder of a message may do to the shard's keys (to
poison one), nobody else has done. Such an unbroken run of deliveries is a *tenure*. What was learnt
of a key within a tenure, and only from the server or from what we did ourselves, still holds at
every later delivery of the same tenure.

A tenure ends when a number is missing, and whenever the count itself may be another one: the
connection was lost (a server that was killed may have forgotten its last deliveries), the durable
is another one, or another server leads it. Numbers of tenures are unique in this process, so that
what was learnt through one lane is never believed of another.

Tests: `tests/backends/test_tenure.py`; two processes in
`tests/runtime/test_fail_all_processes.py::test_poisoned_by_one_process_refused_by_the_other`.
"""

from __future__ import annotations

import itertools

_numbers = itertools.count(1)


class Tenure:
    """Of one lane."""

    __slots__ = ("_last", "_number")

    def __init__(self) -> None:
        self._last: int | None = None
        self._number = 0

    def of(self, count: int) -> int:
        """The tenure of the delivery that the durable counted as number `count`; never 0."""
        if self._last is None or count != self._last + 1:
            self._number = next(_numbers)
        self._last = count
        return self._number

    def end(self) -> None:
        """The next delivery begins another one."""
        self._last = None
