# runnable
"""Audit: a record of every attempt, in a topic of its own, while the audit is down for a moment.

Starts its own nats-server, handles three orders, prints the audit trail and ends. Run it:

    pip install 'shove-actors[server]'
    python examples/audited.py
"""

from __future__ import annotations

from typing import Any

import msgspec
import trio

from shove_actors import (
    AuditEntry,
    AuditLog,
    AuditRecord,
    Broker,
    MessageMetadata,
    NatsConfig,
    Outcome,
    Topic,
    TopologyBuilder,
    audited,
    embedded_server,
    open_broker,
)


class Order(msgspec.Struct):
    order_id: str


ORDERS = Topic(Order, TopologyBuilder("orders").hold_queue(0.5).dlq().build())
#: Attempts that leave a record: one for ORD-1; a time-out and its retry for ORD-2; and one for
#: ORD-3, whose first attempt could not be recorded and did not count.
EXPECTED = 4


async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
    if order.order_id == "ORD-2" and metadata.retry_count == 0:
        await trio.sleep_forever()
    return Outcome.ACK


class Unreliable:
    """The audit log, with one failure: for its first record of ORD-3."""

    def __init__(self, broker: Broker) -> None:
        self.log = AuditLog(broker)
        self.failed = False

    async def prepare(self) -> None:
        await self.log.prepare()

    async def audit(self, record: AuditRecord[Any]) -> None:
        if record.payload.order_id == "ORD-3" and not self.failed:
            self.failed = True
            print("the audit is down for a moment: ORD-3 will be handled again")
            raise RuntimeError("down")
        await self.log.audit(record)


class Archive:
    """Consumes the audit topic."""

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []
        self.complete = trio.Event()

    async def handle(self, entry: AuditEntry) -> Outcome:
        self.entries.append(entry)
        if len(self.entries) == EXPECTED:
            self.complete.set()
        return Outcome.ACK


async def main() -> int:
    archive = Archive()
    async with embedded_server() as server, open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(ORDERS, AuditLog.topic)
        orders = [Order(f"ORD-{n}") for n in (1, 2, 3)]
        await broker.publisher().publish_batch(ORDERS, orders)
        group = broker.consumer_group()
        # A single retry: the failure of the audit does not use it up.
        group.register(
            ORDERS, audited(handle, Unreliable(broker)), handler_timeout=0.5, max_retries=1
        )
        group.register(AuditLog.topic, archive)
        outcome = await group.run_until(archive.complete.wait, drain_timeout=10)
    for entry in sorted(archive.entries, key=lambda entry: entry.timestamp):
        print(
            f"{entry.payload['order_id']}  {entry.outcome:5}  ({entry.cause})  "
            f"{entry.duration_ms:6.1f} ms  retries {entry.metadata.retry_count}  "
            f"trace {entry.trace_id[:8]}"
        )
    return outcome.exit_code


if __name__ == "__main__":
    raise SystemExit(trio.run(main))
