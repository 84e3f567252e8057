"""Servers that go away."""

from __future__ import annotations

import trio

from shove_actors.embedded import ServerProcess


async def restart(server: ServerProcess) -> None:
    await trio.to_thread.run_sync(server.restart)


async def kill(server: ServerProcess) -> None:
    await trio.to_thread.run_sync(server.kill)
