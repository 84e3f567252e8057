"""The machine of `test_lane_machine.py` against a real server, in real time.

Fewer and smaller: a lease is seconds here. What is made to go wrong is what can be done to a real
server and to real connections: kill and restart, SIGSTOP, connections that break or go silent, a
durable deleted, a stream that is full, and processes that are killed.

Real time does not repeat, so nothing is shrunk: a failure prints its steps and its history.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from nats_faults import PauseServer, durables
from nats_world import NatsWorld

from shove_actors import SequencedTopic, SequenceFailure, Topic, TopologyBuilder
from shove_actors.testing import (
    DeleteConsumer,
    Disconnect,
    Fault,
    MessagingMachine,
    Move,
    RestartServer,
    Stall,
    StreamFull,
)
from shove_actors.testing._strategies import ALL_MOVES

# Waits for real leases and elections; `pytest -m slow` (CI does).
pytestmark = pytest.mark.slow

#: Examples per class, and steps of each.
_SIZES: dict[str, tuple[int, int]] = {"dev": (1, 6), "ci": (3, 12), "deep": (70, 25)}
EXAMPLES, STEPS = _SIZES[os.environ.get("HYPOTHESIS_PROFILE", "dev")]

_SHARDS = 2


class Note(msgspec.Struct):
    number: int
    key: str


def _sequenced(policy: SequenceFailure) -> SequencedTopic[Note]:
    topology = TopologyBuilder("ledger").sequenced(policy).routing_shards(_SHARDS)
    return SequencedTopic(
        Note,
        key=lambda note: note.key,
        topology=topology.hold_queue(0.1).hold_queue(0.3).dlq().build(),
    )


_PLAIN = Topic(Note, TopologyBuilder("orders").hold_queue(0.1).hold_queue(0.3).dlq().build())
_TIMES = st.sampled_from([0.0, 0.2, 1.0, 3.5])


def _faults(topic: Topic[Any]) -> st.SearchStrategy[Fault | PauseServer]:
    """What can be done to a real server; `None` is the process that runs for longest."""
    whom = st.sampled_from([None, "publisher"])
    streams = [topic.topology.queue, topic.topology.dlq]
    kinds: list[st.SearchStrategy[Any]] = [
        st.builds(RestartServer, st.sampled_from([0.0, 1.0]), st.booleans()),
        st.builds(PauseServer, _TIMES),
        st.builds(Disconnect, whom, _TIMES),
        st.builds(Stall, whom, _TIMES, st.sampled_from(["both", "up", "down"])),
        st.builds(StreamFull, st.sampled_from(streams), st.sampled_from([0.2, 1.0])),
    ]
    if not isinstance(topic, SequencedTopic):
        # On a shard the next durable may deliver what a handler is still busy with.
        kinds.append(
            st.builds(DeleteConsumer, st.just(topic.queue), st.sampled_from(durables(topic)))
        )
    return st.one_of(kinds)


class RealMachine(MessagingMachine):
    """See the module."""

    topic = _PLAIN
    batch = 40
    options: ClassVar = {"max_retries": 2, "ack_wait": 2.0, "handler_timeout": 3.5}
    moves: ClassVar[tuple[Move, ...]] = ALL_MOVES
    sim: Any

    def make(self, number: int, key: str) -> Note:
        return Note(number, key)

    @initialize(processes=st.integers(1, 3), replays=st.booleans())
    def begin(self, processes: int, replays: bool) -> None:
        """`replays`: keys are released by replaying their dead letters."""
        self.sim = NatsWorld(
            self.topic, self.make, options=self.options, only=self.only, replays=replays
        )
        self._do("open")
        for _ in range(min(processes, self.most_processes)):
            self._do("start_process")

    @rule(
        share=st.sampled_from([0.03, 0.2, 1.0]),
        keys=st.sampled_from([1, 3, 10]),
        script=st.lists(st.sampled_from(ALL_MOVES), max_size=3).map(tuple),
    )
    def publish(self, share: float, keys: int, script: Any) -> None:
        count = max(1, round(self.batch * share))
        # One message of each batch is trouble: it takes seconds, and its shard waits for it.
        self._do("publish", count, keys=keys, script=script, every=count)

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.5, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self._do("advance", seconds)

    @rule(data=st.data())
    def goes_wrong(self, data: st.DataObject) -> None:
        self._do("fault", data.draw(_faults(self.topic), label="fault"))

    # Nobody can be killed at an event of a real server, leases take real time, and nothing foreign
    # is published here.
    settle_is_the_last = message_kills = None  # type: ignore[assignment]
    publish_foreign = key_is_poisoned = None  # type: ignore[assignment]

    @rule(
        slow=st.integers(1, 3),
        move=st.sampled_from(["hang", "linger", "long"]),
        after=st.sampled_from([0.0, 0.05, 0.5]),
        cut=st.booleans(),
        restart=st.booleans(),
        which=st.integers(0, 2),
        then=_TIMES,
    )
    def busy_process_is_hit(
        self,
        slow: int,
        move: Move,
        after: float,
        cut: bool,
        restart: bool,
        which: int,
        then: float,
    ) -> None:
        self._two_processes()
        self._do("publish", slow, script=(move, move))
        self._do("advance", after)
        busy = self.sim.busy or self.sim.alive
        if busy:
            name = busy[which % len(busy)]
            self._do("fault", Disconnect(name, 3.5) if cut else Stall(name, 3.5))
        if restart:
            self._do("fault", RestartServer())
        self._do("advance", then)

    @precondition(lambda self: self.sim.rules.fail_all)
    @rule(which=st.integers(0, 2))
    def release(self, which: int) -> None:
        keys = self.sim.poisoned
        if keys:
            self._do("release", keys[which % len(keys)])

    def _tell(self) -> None:
        """Real time does not repeat, so there is no program that does the same again."""
        note(f"# faults so far: {self.sim.plan.program()}")

    def teardown(self) -> None:
        try:
            super().teardown()
        except BaseException:
            for event in getattr(getattr(self, "sim", None), "history", [])[:]:
                note(f"# {event}")
            raise


class PlainMachine(RealMachine):
    topic = _PLAIN
    options: ClassVar = {
        **RealMachine.options,
        "consumers": 2,
        "prefetch": 5,
        "concurrent_processing": True,
    }


class SkipMachine(RealMachine):
    topic = _sequenced(SequenceFailure.SKIP)


class FailAllMachine(RealMachine):
    topic = _sequenced(SequenceFailure.FAIL_ALL)


TestPlain = PlainMachine.TestCase
TestSkip = SkipMachine.TestCase
TestFailAll = FailAllMachine.TestCase

_SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    database=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)
TestPlain.settings = TestSkip.settings = TestFailAll.settings = _SETTINGS
