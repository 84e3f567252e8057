# runnable
"""A key-value bucket: values, compare and set, history, watching.

python examples/jetstream/key_value.py
"""

from __future__ import annotations

import trio

from shove_actors import embedded_server, jetstream
from shove_actors.jetstream import KeyExists, KeyNotFound, KeyRevisionMismatch


async def main() -> None:
    async with embedded_server() as server, jetstream.connect(server.url) as js:
        kv = await js.create_kv(bucket="settings", history=5)

        revision = await kv.put("theme.colour", "blue")
        await kv.update("theme.colour", "green", revision)
        try:
            await kv.update("theme.colour", "red", revision)
        except KeyRevisionMismatch:
            print("somebody was faster")
        try:
            await kv.create("theme.colour", "red")
        except KeyExists:
            print("it is there already")
        entry = await kv.get("theme.colour")
        print(entry.key, entry.value.decode(), entry.revision)
        print([old.value.decode() for old in await kv.history("theme.colour")])

        # First what is there, then None, then every change.
        async with kv.watch("theme.*") as watcher:
            print("initial:", [entry.key for entry in await watcher.initial()])
            await kv.put("theme.font", "serif")
            await kv.put("other", "not watched")
            await kv.delete("theme.colour")
            async for entry in watcher:
                assert entry is not None
                print("update:", entry.key, entry.operation.value, entry.value)
                if entry.is_marker:
                    break

        # A key that lives for a second.
        sessions = await js.create_kv(bucket="sessions", limit_marker_ttl=60.0)
        await sessions.create("alice", "short-lived", ttl=1.0)
        async with sessions.watch(updates_only=True) as watcher:
            entry = await watcher.receive()
            assert entry is not None
            print("expired:", entry.key, entry.operation.value)
        try:
            await sessions.get("alice")
        except KeyNotFound:
            print("gone")
        print([name async for name in js.kv_names()], await kv.keys())


if __name__ == "__main__":
    trio.run(main)
