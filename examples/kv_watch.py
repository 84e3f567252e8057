# runnable
"""Settings in a key-value bucket, watched: a handler follows them while it works.

The watch is the subsystem's own task. It is ready when it has read what was there, so no message is
handled with settings that nobody has read. Run it:

    python examples/kv_watch.py
"""

from __future__ import annotations

import trio

from shove_actors import (
    NatsConfig,
    Outcome,
    Topic,
    TopologyBuilder,
    embedded_server,
    jetstream,
    open_broker,
)

CHARGES = Topic(str, TopologyBuilder("charges").hold_queue(5).dlq().build())


class Settings:
    """What the bucket says now. `until` waits for a revision of it."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.revision = 0
        self._changed = trio.Event()

    async def follow(
        self,
        kv: jetstream.KeyValue,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with kv.watch("prices.>") as watcher:
            for entry in await watcher.initial():
                self.take(entry)
            task_status.started()
            async for change in watcher:
                if change is not None:
                    self.take(change)

    def take(self, entry: jetstream.KeyValueEntry) -> None:
        if entry.is_marker:  # deleted
            self.values.pop(entry.key, None)
        else:
            self.values[entry.key] = entry.value.decode()
        self.revision = entry.revision
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, revision: int) -> None:
        while self.revision < revision:
            await self._changed.wait()


async def main() -> None:
    settings = Settings()
    handled, charged = trio.open_memory_channel[str](10)

    async def handle(what: str) -> Outcome:
        price = settings.values.get(f"prices.{what}")
        await handled.send(f"{what}: {'no price, later' if price is None else price}")
        return Outcome.ACK

    async with (
        embedded_server() as server,
        jetstream.connect(server.url) as js,
        open_broker(NatsConfig(server.url)) as broker,
        trio.open_nursery() as nursery,
    ):
        kv = await js.create_kv(bucket="settings", history=3)
        await kv.put("prices.tea", "3.50")
        await kv.put("theme", "dark")  # not watched
        await nursery.start(settings.follow, kv)
        await broker.declare(CHARGES)
        group = broker.consumer_group()
        group.register(CHARGES, handle)
        await nursery.start(group.serve)

        async def charge(what: str) -> None:
            await broker.publisher().publish(CHARGES, what)
            print(await charged.receive())

        await charge("tea")
        await settings.until(await kv.put("prices.tea", "4.00"))
        await charge("tea")
        await charge("bread")
        await settings.until(await kv.create("prices.bread", "2.20"))
        await charge("bread")
        await kv.delete("prices.tea")
        await settings.until((await kv.history("prices.tea"))[-1].revision)
        await charge("tea")
        values = [each.value.decode() for each in await kv.history("prices.tea")]
        print("prices of tea so far:", ", ".join(values[:-1]))
        group.stop()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
