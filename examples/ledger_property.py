# runnable
"""A ledger that posts twice what is delivered twice, found by a machine and shrunk.

python examples/ledger_property.py

Prints the shortest program that shows the mistake, and that the mended ledger passes. Needs
Hypothesis (`pip install 'shove-actors[test]'`) and no server.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from shove_actors import MessageMetadata, Outcome, SequencedTopic, SequenceFailure, TopologyBuilder
from shove_actors.testing import (
    Fault,
    LoseAck,
    LosePuback,
    LoseRenewal,
    MessagingMachine,
    Simulation,
)


class Entry(msgspec.Struct):
    number: int
    account: str


LEDGER = SequencedTopic(
    Entry,
    key=lambda entry: entry.account,
    topology=TopologyBuilder("ledger")
    .sequenced(SequenceFailure.SKIP)
    .routing_shards(2)
    .hold_queue(1)
    .dlq()
    .build(),
)


FAULTS: list[Fault] = [LoseAck(), LosePuback(), LoseRenewal()]


class LedgerMachine(MessagingMachine):
    """Posts an entry whenever its handler is called: wrong after a redelivery."""

    topic = LEDGER
    # Most of the machine's rules are left out, so that a minute is enough. A test keeps them.
    busy_process_is_hit = settle_is_the_last = message_kills = None  # type: ignore[assignment]
    kill = start_process = stop_process = None  # type: ignore[assignment]
    publish_again = publish_foreign = deliver = release = None  # type: ignore[assignment]
    copy_has_no_room = busy_process_drains = key_is_poisoned = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.posted: Counter[int] = Counter()  # stands for the database

    @initialize()
    def begin(self) -> None:
        """One process, and nothing goes wrong by itself: what does is a line of the program."""
        self.sim = Simulation(self.topic, self.make, handler=self.handler)
        self.sim.open()
        self.sim.start_process()

    @rule(count=st.integers(1, 3))
    def publish(self, count: int) -> None:
        self.sim.publish(count)

    @rule(fault=st.sampled_from(FAULTS), then=st.just(0.0), which=st.just(0))
    def goes_wrong(self, fault: Fault, then: float, which: int) -> None:
        """Of all that the machine knows, what is lost on its way."""
        self.sim.fault(fault)

    def make(self, number: int, key: str) -> Entry:
        return Entry(number, account=key)

    async def handler(self, entry: Entry, metadata: MessageMetadata, context: Any) -> Outcome:
        self.posted[entry.number] += 1
        return Outcome.ACK

    def settled(self) -> None:
        for number, times in self.posted.items():
            assert times == 1, f"entry {number} was posted {times} times"


class MendedMachine(LedgerMachine):
    """What was posted is known by the message's id, which stays the same over all attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    async def handler(self, entry: Entry, metadata: MessageMetadata, context: Any) -> Outcome:
        if metadata.delivery_id not in self.seen:
            # In one transaction, in a real ledger.
            self.seen.add(metadata.delivery_id)
            self.posted[entry.number] += 1
        return Outcome.ACK


SETTINGS = settings(
    max_examples=100,
    stateful_step_count=6,
    deadline=None,
    derandomize=True,
    # Without `explain`, which traces every line of every run.
    phases=[Phase.generate, Phase.shrink],
    database=None,
    # In CI Hypothesis would add a line to paste; the program below it says the same.
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)


def main() -> None:
    try:
        run_state_machine_as_test(LedgerMachine, settings=SETTINGS)
    except AssertionError as exc:
        print(exc)
        print("\n".join(getattr(exc, "__notes__", [])))
    else:
        raise SystemExit("the mistake was not found")
    run_state_machine_as_test(MendedMachine, settings=settings(SETTINGS, max_examples=30))
    print("the mended ledger passes")


if __name__ == "__main__":
    main()
