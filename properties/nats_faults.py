"""Processes and faults of a `NatsWorld`: networks that are cut, a server that is killed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import trio

from shove_actors import SequencedTopic, Topic
from shove_actors._errors import ConsumerNotFound
from shove_actors.jetstream import connect
from shove_actors.testing import (
    Crash,
    DeleteConsumer,
    Disconnect,
    Event,
    Fault,
    Recorder,
    RestartServer,
    Stall,
    StreamFull,
)
from shove_actors.testing._recorder import history_time
from tests.backends.proxy import Proxy

if TYPE_CHECKING:
    from nats_world import NatsWorld

#: A machine that is busy with other things takes its time.
SOON_S = 60.0


@dataclass(frozen=True, slots=True)
class PauseServer:
    """SIGSTOP: connections stay, nothing answers."""

    for_s: float = 1.0


class Network(Proxy):
    """A proxy whose owner can be killed."""

    def die(self) -> None:
        """Every connection is closed here and now, with all that is on its way."""
        self._refuses = True
        for stream in list(self._streams):
            stream.socket.close()


@dataclass(kw_only=True, eq=False)
class RealProcess:
    name: str
    proxy: Network
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    recorder: Recorder | None = None
    broker: Any = None
    group: Any = None
    outcome: Any = None
    error: BaseException | None = None
    stopping: bool = False
    over: bool = False
    ready: trio.Event = field(default_factory=trio.Event)

    @property
    def dead(self) -> bool:
        return self.recorder is not None and self.recorder.dead

    def kill(self) -> None:
        """SIGKILL. No other task runs in the course of it."""
        self.proxy.die()
        if self.recorder is not None:
            self.recorder.crashed()
        self.scope.cancel()


@dataclass(frozen=True, slots=True)
class _Taken:
    fault: Fault | PauseServer


class Faults:
    """What a `FaultPlan` is on a server in memory; only for what is taken by hand."""

    def __init__(self, world: NatsWorld) -> None:
        self._world = world
        self._running = 0
        self.happened: list[_Taken] = []

    def program(self) -> str:
        return "; ".join(repr(taken.fault) for taken in self.happened)

    def take(self, fault: Fault | PauseServer) -> None:
        """Now, and in the background until it is over. In the world's run."""
        world = self._world
        name = getattr(fault, "process", None)
        process = world.processes.get(name) if name else None
        if name == world._publisher.name:
            process = world._publisher
        if process is None and world.processes:
            process = next(iter(world.processes.values()))
        self.happened.append(_Taken(fault))
        where = process.name if process is not None else ""
        world.history.add(Event("fault", history_time(), where, detail=repr(fault)))
        if isinstance(fault, Crash):
            if process is not None and process is not world._publisher:
                process.kill()
            return
        self._running += 1
        world._later(self._carry_out, fault, process)

    def _done(self, fault: Fault) -> None:
        """What was delivered since the fault was taken is forgotten as well."""
        self._world.history.add(Event("fault", history_time(), detail=repr(fault)))

    async def quiet(self) -> None:
        """Everything that was begun is over: each takes some seconds at most."""
        with trio.fail_after(SOON_S):
            while self._running:  # noqa: ASYNC110 - each ends by itself
                await trio.sleep(0.01)

    async def _carry_out(self, fault: Fault | PauseServer, process: RealProcess | None) -> None:
        try:
            if isinstance(fault, (RestartServer, PauseServer, DeleteConsumer, StreamFull)):
                async with self._world._server_lock:
                    await self._to_server(fault)
            elif process is not None and isinstance(fault, Disconnect):
                await process.proxy.cut()
                await trio.sleep(fault.for_s)
                process.proxy.mend()
            elif process is not None and isinstance(fault, Stall):
                process.proxy.stall(fault.direction)
                await trio.sleep(fault.for_s)
                process.proxy.unstall()
        finally:
            self._running -= 1

    async def _to_server(self, fault: Fault | PauseServer) -> None:
        server = self._world.server
        if isinstance(fault, RestartServer):
            await trio.to_thread.run_sync(server.kill if fault.killed else server.terminate)
            self._done(fault)
            await trio.sleep(fault.down_s)
            await trio.to_thread.run_sync(server.restart)
        elif isinstance(fault, PauseServer):
            server.pause()
            try:
                await trio.sleep(fault.for_s)
            finally:
                server.resume()
        else:
            async with connect(server.url) as js:
                if isinstance(fault, DeleteConsumer):
                    try:
                        await js.delete_consumer(fault.stream, fault.durable)
                    except ConsumerNotFound:
                        pass
                    self._done(fault)
                elif isinstance(fault, StreamFull):
                    config = (await js.stream_info(fault.stream)).config
                    full = (await js.stream_info(fault.stream)).messages
                    await js.update_stream(replace(config, max_msgs=max(1, full)))
                    await trio.sleep(fault.for_s)
                    await js.update_stream(config)


def durables(topic: Topic[Any]) -> list[str]:
    """Names of the durables that a consumer of the topic has."""
    topology = topic.topology
    if not isinstance(topic, SequencedTopic):
        return [f"{topology.queue}-consumer"]
    return [f"{topology.queue}-shard-{n}" for n in range(topology.routing_shards)]
