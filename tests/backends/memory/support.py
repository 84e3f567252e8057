"""A world around one MemoryServer, for tests that also take hold of the server itself."""

from __future__ import annotations

from shove_actors.backends.memory import MemoryBackend, MemoryConfig, MemoryServer
from tests.backends.world import Process, World


def memory_world(server: MemoryServer) -> World:
    async def delete_stream(name: str) -> None:
        server.delete_stream(name)

    async def delete_durable(stream: str, durable: str) -> None:
        server.delete_durable(stream, durable)

    return World(
        create_backend=MemoryConfig(server=server).create_backend,
        queue="q",
        delete_stream=delete_stream,
        delete_durable=delete_durable,
    )


def backend_of(process: Process) -> MemoryBackend:
    backend = process.backend
    assert isinstance(backend, MemoryBackend)
    return backend
