"""Order, exclusion, durability, budget, poison and lifetime, in every history that can be found.

The machine is the one that users have (`shove_actors.testing.MessagingMachine`): publishers,
processes that come, go and are killed, handlers of every behaviour, a network and a server that
fail. After every step the invariants hold; in the end everything is settled.

How much of it depends on the profile: see `conftest.py`. Real time per example is bounded by the
size of its batches, so the profile decides over both.
"""

from __future__ import annotations

import math
import os
from typing import ClassVar, cast

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from shove_actors import SequencedTopic, SequenceFailure, Topic, TopologyBuilder
from shove_actors.runtime import AutoscalerConfig
from shove_actors.testing import DeleteConsumer, MessagingMachine, StreamFull
from shove_actors.testing._places import durables_of, streams_of
from shove_actors.testing.strategies import seconds

# A search, not a check of a minute: `nox -s properties`.
pytestmark = pytest.mark.slow

_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "dev")
#: By machine: examples, and messages of a large batch. What waits for a message before it costs
#: more, and a key that is poisoned most of all.
_SIZES: dict[str, dict[str, tuple[int, int]]] = {
    "plain": {"dev": (5, 200), "ci": (115, 5000), "deep": (450, 5000)},
    "serial": {"dev": (5, 200), "ci": (60, 1500), "deep": (450, 2000)},
    "skip": {"dev": (5, 200), "ci": (70, 1200), "deep": (450, 1500)},
    "fail_all": {"dev": (5, 200), "ci": (70, 800), "deep": (450, 1000)},
    # Owners of shards renew, pull and look also while nothing happens: more for each second.
    "keyed": {"dev": (2, 100), "ci": (30, 400), "deep": (150, 800)},
}
STEPS = {"dev": 12, "ci": 25, "deep": 25}[_PROFILE]
PARTS = {"dev": 1, "ci": 4, "deep": 4}


class Note(msgspec.Struct):
    number: int
    key: str


def _key(note: Note) -> str:
    return note.key


def _sequenced(policy: SequenceFailure) -> SequencedTopic[Note]:
    topology = TopologyBuilder("ledger").sequenced(policy).routing_shards(8)
    return SequencedTopic(
        Note, key=_key, topology=topology.hold_queue(1).hold_queue(3).dlq().build()
    )


class NoteMachine(MessagingMachine):
    """With what only a drawn plan does otherwise: durables are deleted, streams are full."""

    #: So that a message which is too large needs little memory.
    options: ClassVar = {"max_message_size": 2000}

    def make(self, number: int, key: str) -> Note:
        return Note(number, key)

    @rule(which=st.integers(0, 15), then=seconds())
    def consumer_is_deleted(self, which: int, then: float) -> None:
        """A durable: those of a sequenced topic's shards, or one of a queue or hold queue."""
        found = durables_of(self.sim.server, self.topic)
        if found:
            self._do("fault", DeleteConsumer(*found[which % len(found)]))
        self._do("advance", then)

    @rule(which=st.integers(0, 4), for_s=seconds(), then=seconds())
    def stream_is_full(self, which: int, for_s: float, then: float) -> None:
        """Of the queue, its hold queues, its dead letters, its poisoned keys."""
        found = streams_of(self.topic)
        self._do("fault", StreamFull(found[which % len(found)], for_s))
        self._do("advance", then)


class PlainMachine(NoteMachine):
    """Hold queues, dead letters, concurrent handlers; no order."""

    batch = _SIZES["plain"][_PROFILE][1]
    topic = Topic(Note, TopologyBuilder("orders").hold_queue(1).hold_queue(3).dlq().build())
    options: ClassVar = {
        **NoteMachine.options,
        "consumers": 2,
        "prefetch": 20,
        "concurrent_processing": True,
    }


class SerialMachine(NoteMachine):
    """The same, with handlers that take their turn, and as many consumers as the load calls for."""

    batch = _SIZES["serial"][_PROFILE][1]
    topic = PlainMachine.topic
    options: ClassVar = {
        **NoteMachine.options,
        "consumers": (1, 3),
        "prefetch": 20,
        "autoscaler": AutoscalerConfig(poll_interval=1.0, hysteresis=1.0, cooldown=2.0),
    }


class SkipMachine(NoteMachine):
    """One lane per shard; what fails for good is skipped."""

    batch = _SIZES["skip"][_PROFILE][1]
    topic = _sequenced(SequenceFailure.SKIP)


class FailAllMachine(NoteMachine):
    """One lane per shard; what fails for good takes its key along, until it is released."""

    batch = _SIZES["fail_all"][_PROFILE][1]
    topic = _sequenced(SequenceFailure.FAIL_ALL)


class KeyedMachine(NoteMachine):
    """Many keys of a shard at once, in the process that owns it."""

    batch = _SIZES["keyed"][_PROFILE][1]
    topic = SequencedTopic(
        Note,
        key=_key,
        topology=TopologyBuilder("ledger")
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(4)
        .keyed(max_in_flight=8)
        .hold_queue(1)
        .hold_queue(3)
        .dlq()
        .build(),
    )


def _in_parts(machine: type[NoteMachine], size: str) -> None:
    """Tests of this module. More than one, so that they can run in more than one process."""
    examples, _ = _SIZES[size][_PROFILE]
    parts = PARTS[_PROFILE]
    for part in range(1, parts + 1):
        # Examples are kept by name (Hypothesis' database), so each has its own.
        name = f"{machine.__name__.removesuffix('Machine')}{part}"
        own = cast("type[NoteMachine]", type(f"{name}Machine", (machine,), {}))
        case = own.TestCase
        case.settings = settings(
            max_examples=math.ceil(examples / parts), stateful_step_count=STEPS, deadline=None
        )
        globals()[f"Test{name}"] = case


_in_parts(PlainMachine, "plain")
_in_parts(SerialMachine, "serial")
_in_parts(SkipMachine, "skip")
_in_parts(FailAllMachine, "fail_all")
_in_parts(KeyedMachine, "keyed")
