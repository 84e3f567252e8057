# runnable
"""Watching an object store: what is there, then None, then what happens.

python examples/jetstream/object_watch.py
"""

from __future__ import annotations

import trio

from shove_actors import embedded_server, jetstream


async def main() -> None:
    async with embedded_server() as server, jetstream.connect(server.url) as js:
        os = await js.create_object_store(bucket="configs")

        await os.put("config-1", "first config")

        # Watch for changes
        async with os.watch() as watcher:
            # create a second object
            await os.put("config-2", "second config")

            # update metadata of the first object
            await os.update_meta("config-1", description="updated config")

            # Receive initial values
            info = await watcher.receive()
            assert info is not None
            print("initial:", info.name, info.size)

            # Receive None after initial values are sent
            info = await watcher.receive()
            if info is not None:
                print("Unexpected object received")

            # Receive updates
            async for info in watcher:
                assert info is not None
                print("update:", info.name, repr(info.description))
                if info.description:
                    watcher.stop()

        # A watcher never brings the content.
        print(await os.get_string("config-2"))


if __name__ == "__main__":
    trio.run(main)
