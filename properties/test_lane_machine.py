"""Order, exclusion, durability, budget, poison and lifetime, in every history that can be found.

The machine is the one that users have (`shove_actors.testing.MessagingMachine`): publishers,
processes that come, go and are killed, handlers of every behaviour, a network and a server that
fail. After every step the invariants hold; in the end everything is settled.

How much of it depends on the profile: see `conftest.py`. Real time per example is bounded by the
size of its batches, so the profile decides over both.
"""

from __future__ import annotations

import os
from typing import ClassVar

import msgspec
from hypothesis import settings

from shove_actors import SequencedTopic, SequenceFailure, Topic, TopologyBuilder
from shove_actors.runtime import AutoscalerConfig
from shove_actors.testing import MessagingMachine

#: Examples, steps of each, and messages of a large batch.
_SIZES: dict[str, tuple[int, int, int]] = {
    "dev": (5, 12, 200),
    "ci": (35, 25, 1500),
    "deep": (450, 25, 1500),
}
EXAMPLES, STEPS, BATCH = _SIZES[os.environ.get("HYPOTHESIS_PROFILE", "dev")]


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
    batch = BATCH

    def make(self, number: int, key: str) -> Note:
        return Note(number, key)


class PlainMachine(NoteMachine):
    """Hold queues, dead letters, concurrent handlers; no order."""

    topic = Topic(Note, TopologyBuilder("orders").hold_queue(1).hold_queue(3).dlq().build())
    options: ClassVar = {"consumers": 2, "prefetch": 20, "concurrent_processing": True}


class SerialMachine(NoteMachine):
    """The same, with handlers that take their turn, and as many consumers as the load calls for."""

    topic = PlainMachine.topic
    options: ClassVar = {
        "consumers": (1, 3),
        "prefetch": 20,
        "autoscaler": AutoscalerConfig(poll_interval=1.0, hysteresis=1.0, cooldown=2.0),
    }


class SkipMachine(NoteMachine):
    """One lane per shard; what fails for good is skipped."""

    topic = _sequenced(SequenceFailure.SKIP)


class FailAllMachine(NoteMachine):
    """One lane per shard; what fails for good takes its key along, until it is released."""

    topic = _sequenced(SequenceFailure.FAIL_ALL)


TestPlain = PlainMachine.TestCase
TestSerial = SerialMachine.TestCase
TestSkip = SkipMachine.TestCase
TestFailAll = FailAllMachine.TestCase


_SETTINGS = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None)
TestPlain.settings = _SETTINGS
TestSerial.settings = _SETTINGS
TestSkip.settings = _SETTINGS
TestFailAll.settings = _SETTINGS
