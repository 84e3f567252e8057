# runnable
"""FAIL_ALL: what fails takes all later messages of its key along, until somebody releases the key.

For messages that make no sense without the one before, as the entries of an account. The key is
remembered on the server, by all processes and over restarts. Run it:

    python examples/fail_all.py
"""

from __future__ import annotations

import logging

import msgspec
import trio

from shove_actors import (
    Broker,
    DeadMetadata,
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


class Entry(msgspec.Struct):
    account: str
    cents: int


LEDGER = SequencedTopic(
    Entry,
    key=lambda entry: entry.account,
    topology=TopologyBuilder("ledger")
    .sequenced(SequenceFailure.FAIL_ALL)
    .routing_shards(2)
    .hold_queue(0.2)
    .dlq()
    .build(),
)


class Books:
    """The `context`: balances, and whether an overdraft is allowed."""

    def __init__(self, overdraft: int) -> None:
        self.overdraft = overdraft
        self.balance = {"ada": 0, "grace": 0}
        self.left = 6
        self.done = trio.Event()

    def ended(self) -> None:
        self.left -= 1
        if not self.left:
            self.done.set()


async def apply(entry: Entry, metadata: MessageMetadata, books: Books) -> Outcome:
    if books.balance[entry.account] + entry.cents < -books.overdraft:
        return Reject(reason="overdrawn")
    books.balance[entry.account] += entry.cents
    if metadata.replayed:
        print(f"  {entry.account} {entry.cents:+}, which was a dead letter")
    books.ended()
    return Outcome.ACK


async def report(entry: Entry, metadata: DeadMetadata, books: Books) -> Outcome:
    print(f"  dead: {entry.account} {entry.cents:+}, {metadata.reason}")
    books.ended()
    return Outcome.REJECT  # it stays where it is; acknowledged, it would be deleted


async def consume(broker: Broker, books: Books, *, dead: bool) -> None:
    group = broker.consumer_group(context=books)
    group.register(LEDGER, apply)
    if dead:
        group.register_dlq(LEDGER, report)
    await group.run_until(books.done.wait, drain_timeout=10)


async def main() -> None:
    async with embedded_server() as server, open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(LEDGER)
        for account, cents in (
            *(("ada", 100), ("grace", 50), ("ada", -200)),  # the third one is too much
            *(("grace", 50), ("ada", 150), ("ada", -50)),
        ):
            await broker.publisher().publish(LEDGER, Entry(account, cents))
        print("no overdraft:")
        strict = Books(overdraft=0)
        await consume(broker, strict, dead=True)
        print(f"  balances {strict.balance}")
        for found in await broker.poisoned(LEDGER):
            print(f"{found.key} waits: entry {found.sequence} was {found.reason}, {found.detail}")
            await broker.release(LEDGER, found.key, replay=True)
        print("an overdraft of 100, the dead letters first, in their order:")
        await broker.publisher().publish(LEDGER, Entry("ada", 1))
        generous = Books(overdraft=100)
        generous.balance, generous.left = strict.balance, 4
        await consume(broker, generous, dead=False)
        print(f"  balances {generous.balance}")
        print(f"poisoned: {len(await broker.poisoned(LEDGER))}")


if __name__ == "__main__":
    logging.disable(logging.ERROR)  # a poisoned key is an error in the log of a service
    trio.run(main)
