# runnable
"""Dead letters from an operator's side: look at them, put them back in order, throw the rest away.

The command line does the same: `shove-actors dlq list|replay|purge payments`. Run it:

    python examples/dlq_replay.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import trio

from shove_actors import (
    Broker,
    DeathReason,
    LetterFilter,
    MessageMetadata,
    NatsConfig,
    Outcome,
    Reject,
    SequencedTopic,
    SequenceFailure,
    TopologyBuilder,
    embedded_server,
    open_broker,
)


class Payment(msgspec.Struct):
    account: str
    number: int


PAYMENTS = SequencedTopic(
    Payment,
    key=lambda payment: payment.account,
    topology=TopologyBuilder("payments")
    .sequenced(SequenceFailure.SKIP)
    .routing_shards(2)
    .hold_queue(0.1)
    .dlq()
    .build(),
)
FIRST = [Payment(account, number) for number in (1, 2, 3) for account in ("ada", "grace")]


class Bank:
    """Closed, it rejects everything but grace's first payment."""

    def __init__(self, *, is_open: bool, expected: int) -> None:
        self.is_open, self.left = is_open, expected
        self.seen: dict[str, list[int]] = {"ada": [], "grace": []}
        self.done = trio.Event()

    async def pay(self, payment: Payment, metadata: MessageMetadata) -> Outcome:
        self.left -= 1
        if not self.left:
            self.done.set()
        if not self.is_open and payment != Payment("grace", 1):
            return Reject(reason="the bank is closed")
        self.seen[payment.account].append(payment.number)
        return Outcome.ACK


async def consume(broker: Broker, handler: object, until: Callable[[], Awaitable[object]]) -> None:
    group = broker.consumer_group()
    group.register(PAYMENTS, handler)
    await group.run_until(until, drain_timeout=10)


async def main() -> None:
    async with embedded_server() as server, open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(PAYMENTS)
        await broker.publisher().publish_batch(PAYMENTS, FIRST)
        closed = Bank(is_open=False, expected=len(FIRST))
        await consume(broker, closed.pay, closed.done.wait)

        found = [letter async for letter in broker.dead_letters(PAYMENTS)]
        for letter in sorted(found, key=lambda each: (each.key or "", each.sequence)):
            payment = PAYMENTS.decode(letter.payload)
            story = letter.metadata
            print(f"{letter.key} {payment.number}: {story.reason}, {story.detail}")

        of_ada = LetterFilter(keys={"ada"}, reasons={DeathReason.REJECTED})
        dry = await broker.replay_dead_letters(PAYMENTS, of_ada, dry_run=True)
        print(f"would be replayed: {dry.done}")
        done = await broker.replay_dead_letters(PAYMENTS, of_ada)
        print(f"replayed: {done.done}, none had to stay: {done.is_complete}")
        opened = Bank(is_open=True, expected=3)
        await consume(broker, opened.pay, opened.done.wait)
        print(f"handled now, in the order of the account: {opened.seen['ada']}")

        purged = await broker.purge_dead_letters(PAYMENTS, LetterFilter())
        left = [letter async for letter in broker.dead_letters(PAYMENTS)]
        print(f"thrown away: {purged.done}, left: {len(left)}")


if __name__ == "__main__":
    trio.run(main)
