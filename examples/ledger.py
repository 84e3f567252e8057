# runnable
"""A ledger: strict order per account, also over a retry; accounts go on independently.

python examples/ledger.py
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from shove_actors import (
    MessageMetadata,
    NatsConfig,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    TopologyBuilder,
    embedded_server,
    open_broker,
)


@dataclass
class Entry:
    account: str
    number: int
    cents: int


LEDGER = SequencedTopic(
    Entry,
    key=lambda entry: entry.account,
    topology=TopologyBuilder("ledger")
    .sequenced(SequenceFailure.SKIP)
    .routing_shards(4)
    .hold_queue(0.5)
    .dlq()
    .build(),
)
ACCOUNTS = ("ada", "grace", "edsger")
ENTRIES = 20


class Books:
    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = {name: [] for name in ACCOUNTS}
        self.balance = dict.fromkeys(ACCOUNTS, 0)
        self.complete = trio.Event()


async def apply(entry: Entry, metadata: MessageMetadata, books: Books) -> Outcome:
    if entry.account == "grace" and entry.number == 5 and metadata.retry_count < 2:
        # The lane waits: entry 6 of this account is not handled before entry 5 is.
        return Outcome.RETRY
    books.seen[entry.account].append(entry.number)
    books.balance[entry.account] += entry.cents
    if all(len(numbers) == ENTRIES for numbers in books.seen.values()):
        books.complete.set()
    return Outcome.ACK


async def main() -> int:
    books = Books()
    async with embedded_server() as server, open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(LEDGER)
        async with broker.publisher().pipeline(LEDGER) as pipe:
            for number in range(ENTRIES):
                for account in ACCOUNTS:
                    await pipe.send(Entry(account, number, 100 + number))
        group = broker.consumer_group(context=books)
        group.register(LEDGER, apply)
        outcome = await group.run_until(books.complete.wait, drain_timeout=10)
    for account, numbers in books.seen.items():
        in_order = numbers == sorted(numbers)
        print(f"{account}: {len(numbers)} entries, in order: {in_order}, {books.balance[account]}")
        assert in_order
    return outcome.exit_code


if __name__ == "__main__":
    raise SystemExit(trio.run(main))
