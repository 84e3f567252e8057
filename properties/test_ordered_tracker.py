"""Invariant: what an ordered reader lets through is the stream, in order, each once, no gap.

For all streams, starting points and policies, and whatever happens on the way: messages are lost,
repeated or swapped; consumers are lost before, in the middle of and after what they send; more is
published meanwhile. Whenever something does not follow, a new consumer is made, as the tracker
says.

And the mark behind the initial state comes exactly once, after everything that was there at the
start, whether the count, the last message or an idle heartbeat says so, and in whichever order the
reply of the creation arrives; also when messages disappear before they are delivered.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shove_actors.jetstream._ordered_tracker import DeliverPolicy, InitialPhase, OrderedTracker

FAULTS = st.sampled_from(["deliver"] * 6 + ["lose", "repeat", "swap", "reset", "publish"])


class Server:
    """A stream of sequences with gaps, and the one consumer that the tracker has asked for."""

    def __init__(self, sequences: list[int]) -> None:
        self.stored = list(sequences)
        self.queue: list[tuple[int, int]] = []
        self._begin = 0
        self._sent = 0

    @property
    def last(self) -> int:
        return self.stored[-1] if self.stored else 0

    def publish(self) -> None:
        self.stored.append(self.last + 1)
        self._fill()

    def create(self, policy: DeliverPolicy, start: int) -> int:
        """What the server counts as delivered: the last sequence before the first one to come."""
        if policy == "new":
            self._begin = self.last
        elif policy == "by_start_sequence":
            self._begin = start - 1
        else:
            self._begin = 0
        self._sent = 0
        self.queue = []
        self._fill()
        return self._begin

    def _fill(self) -> None:
        due = [s for s in self.stored if s > self._begin]
        for sequence in due[self._sent :]:
            self._sent += 1
            self.queue.append((self._sent, sequence))


@given(
    gaps=st.lists(st.integers(1, 4), max_size=12),
    policy=st.sampled_from(["all", "new", "by_start_sequence"]),
    start=st.integers(1, 30),
    faults=st.lists(FAULTS, max_size=60),
)
def test_in_order_each_once_without_a_gap(
    gaps: list[int], policy: DeliverPolicy, start: int, faults: list[str]
) -> None:
    sequences = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    server = Server(sequences)
    asked = start if policy == "by_start_sequence" else 0
    tracker = OrderedTracker(policy, asked)
    first = {"all": 1, "new": server.last + 1, "by_start_sequence": asked}[policy]
    received: list[int] = []

    def create() -> None:
        tracker.created(server.create(*tracker.begin()))

    def deliver(consumer_seq: int, sequence: int) -> None:
        if tracker.accept(consumer_seq, sequence):
            received.append(sequence)
        else:
            create()

    create()
    for fault in faults:
        if fault == "publish":
            server.publish()
        elif fault == "reset":
            create()
        elif fault == "swap" and len(server.queue) > 1:
            server.queue[:2] = reversed(server.queue[:2])
        elif fault == "lose" and server.queue:
            server.queue.pop(0)
        elif fault == "repeat" and server.queue:
            deliver(*server.queue[0])
        elif fault == "deliver" and server.queue:
            deliver(*server.queue.pop(0))
    # The server's own word at rest: a heartbeat with the consumer's last number.
    if not tracker.complete(server._sent) and not server.queue:
        create()
    for _ in range(3):
        while server.queue:
            deliver(*server.queue.pop(0))
        if not tracker.complete(server._sent):
            create()
    assert received == [s for s in server.stored if s >= first]


@given(
    there=st.integers(0, 8),
    vanish=st.integers(0, 8),
    reply_after=st.integers(0, 8),
    later=st.integers(0, 4),
    reset_after=st.none() | st.integers(0, 8),
)
def test_the_mark_comes_once_and_behind_what_was_there(
    there: int, vanish: int, reply_after: int, later: int, reset_after: int | None
) -> None:
    """`vanish` of the messages expire before they are delivered: only a heartbeat tells then."""
    vanish = min(vanish, there)
    phase = InitialPhase()
    events: list[str] = []

    def note(what: str, marked: bool) -> None:
        if what:
            events.append(what)
        if marked:
            events.append("mark")

    def consumer(pending: int, deliveries: int, final: bool) -> None:
        phase.begin()
        for number in range(deliveries):
            if number == min(reply_after, deliveries):
                note("", phase.created(pending))
            # As the server counts: what has vanished is found out only when it is looked for.
            note("message", phase.message(pending - number - 1 if not vanish else pending - number))
        if reply_after >= deliveries:
            note("", phase.created(pending))
        if final:
            note("", phase.idle())

    arrives = there - vanish
    if reset_after is not None and reset_after < arrives:
        consumer(there, reset_after, final=False)
        consumer(there - reset_after, arrives - reset_after, final=True)
    else:
        consumer(there, arrives, final=True)
    for _ in range(later):
        note("message", phase.message(0))
        note("", phase.idle())
    assert events.count("mark") == 1
    assert events.index("mark") >= arrives
    assert events.index("mark") == arrives
