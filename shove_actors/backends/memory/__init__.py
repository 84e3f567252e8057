"""The memory backend: a model of JetStream on Trio's clock, with faults on demand.

    server = MemoryServer(seed=1)
    async with open_broker(MemoryConfig(server=server, name="worker-1")) as broker:
        ...
        server.faults.crash("worker-1")

It behaves as the real server does, including what is inconvenient: leases run out, naks take
their delay, publishes are answered later, streams fill up. Every timing follows Trio's clock, so
`trio.testing.MockClock` runs hours in milliseconds. Nothing survives the Python process.
"""

from __future__ import annotations

from ._backend import MemoryBackend as MemoryBackend
from ._config import MemoryConfig as MemoryConfig
from ._durable import DurableSettings as DurableSettings
from ._faults import Effect as Effect
from ._faults import FaultEvent as FaultEvent
from ._faults import Faults as Faults
from ._lane import MemoryLane as MemoryLane
from ._link import Direction as Direction
from ._server import MemoryServer as MemoryServer
from ._stream import Observer as Observer
from ._stream import StoredMessage as StoredMessage
from ._stream import Stream as Stream
from ._stream import StreamSettings as StreamSettings

__all__ = [
    "Direction",
    "DurableSettings",
    "Effect",
    "FaultEvent",
    "Faults",
    "MemoryBackend",
    "MemoryConfig",
    "MemoryLane",
    "MemoryServer",
    "Observer",
    "StoredMessage",
    "Stream",
    "StreamSettings",
]
