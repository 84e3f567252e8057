"""Three real servers on loopback that form one JetStream cluster; for tests and measurements."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import trio

from shove_actors._errors import ShoveError
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import JetStream, NatsConfig, StreamConfig, connect

READY_S = 30.0


class Cluster:
    """`with Cluster() as cluster:` three nodes with a meta leader, to be killed and restarted.

    Ports for routes must be known before the first node starts, so they are found by binding and
    letting go; should another program take one meanwhile, the whole start is tried again.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        lame_duck_s: float = 30.0,
        config: str = "",
        tls: Mapping[str, str] | None = None,
    ) -> None:
        """`config` is added to that of each node; with `tls`, the settings to get in."""
        self._size = size
        self._lame_duck_s = lame_duck_s
        self.extra = config
        self._tls = tls
        self._stack = ExitStack()
        self.nodes: list[ServerProcess] = []

    def __enter__(self) -> Cluster:
        for last in (False, False, True):
            try:
                self._start()
                trio.run(self._wait_ready)
                return self
            except Exception:
                self._stack.close()
                if last:
                    raise
        raise AssertionError("not reached")

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        ports = _free_ports(self._size)
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
        self.nodes = []
        for number, port in enumerate(ports):
            config = (
                f"cluster {{ name: shove-test, listen: 127.0.0.1:{port}, routes: [{routes}] }}\n"
                f'lame_duck_duration: "{self._lame_duck_s:g}s"\nlame_duck_grace_period: "1s"\n'
                f"{self.extra}\n"
            )
            server = ServerProcess(config=config, name=f"node-{number}-{os.urandom(3).hex()}")
            self.nodes.append(self._stack.enter_context(server))

    async def _wait_ready(self) -> None:
        with trio.fail_after(READY_S):
            for node in self.nodes:
                while True:
                    with contextlib.suppress(ShoveError, trio.TooSlowError), trio.fail_after(2):
                        async with connect(self.config(node)) as js:
                            # Answered only once there is a meta leader and this node knows it.
                            _ = [name async for name in js.stream_names()]
                            # And takes replicas again: a restarted node counts as away for a while.
                            await js.create_stream(
                                StreamConfig(
                                    name="ready", subjects=("ready",), num_replicas=self._size
                                )
                            )
                            await js.delete_stream("ready")
                            break
                    await trio.sleep(0.1)

    def repair(self) -> None:
        """Every node runs and answers; what a test has killed is started again."""
        down = [node for node in self.nodes if not node.running]
        for node in down:
            node.restart()
        if down:
            trio.run(self._wait_ready)

    @property
    def urls(self) -> list[str]:
        return [self.url(node) for node in self.nodes]

    def url(self, node: ServerProcess) -> str:
        return node.url if self._tls is None else f"tls://{node.host}:{node.port}"

    def config(self, *nodes: ServerProcess, **changes: Any) -> NatsConfig:
        """A configuration that gets in, at `nodes` or at all of them."""
        urls = [self.url(node) for node in nodes or self.nodes]
        return NatsConfig(urls, **{**(self._tls or {}), **changes})

    def node(self, name: str) -> ServerProcess:
        """The node of that server name."""
        return next(node for node in self.nodes if node.name == name)

    async def leader_of(self, js: JetStream, stream: str) -> ServerProcess:
        """The node that leads a stream; waits for one to be elected."""
        with trio.fail_after(READY_S):
            while True:
                with contextlib.suppress(ShoveError):
                    leader = (await js.api(f"STREAM.INFO.{stream}"))["cluster"].get("leader")
                    if leader:
                        return self.node(leader)
                await trio.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
