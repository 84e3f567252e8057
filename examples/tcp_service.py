# runnable
# runnable: --kill-something --seed 1
"""A TCP service as a supervision tree: numbers come in, their squares come from a backend.

    service (one_for_one)
    ├─ upstream (rest_for_one)     what we depend on; a new backend means new links to it
    │  ├─ backend                  the server that can square, on a port of its own choice
    │  ├─ links    (dynamic)       the connection pool: one actor for each connection
    │  └─ health                   fills the pool, and replaces links that do not answer
    └─ front (rest_for_one)        what our clients see
       ├─ sessions (dynamic)       one actor for each client, never restarted
       └─ acceptor                 last, so it stops first: no new client while we leave

python examples/tcp_service.py [--kill-something [--seed N]]
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio
from sabotage import Saboteur

from shove_actors import actors
from shove_actors.actors import ChildSpec as Spec
from shove_actors.actors import DynamicSupervisor as Pool

LINKS = frozenset({"link-1", "link-2", "link-3"})
CLIENTS = 4
REQUESTS = 100
PATIENCE_S = 30.0

#: More than twenty crashes in ten seconds are no accident: the supervisor gives up and says why.
BUDGET = actors.Intensity(max_restarts=20, period_s=10.0)
BACKOFF = actors.Backoff(initial_s=0.02, max_s=0.5, jitter=0.2, reset_after_s=5.0)
#: For those that do not wait for messages, and hold nothing that could be lost.
KILL = actors.Shutdown.KILL


class Lines:
    """Reads a stream line by line."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream, self._buffer = stream, b""

    async def next(self) -> bytes | None:
        """The next line without its end, or None once the other side has closed."""
        while b"\n" not in self._buffer:
            chunk = await self._stream.receive_some()
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


class WhichPort(actors.Request[int]):
    """Asked of the backend, which listens on another port in each of its lives."""


@dataclass(frozen=True)
class Square(actors.Request[int]):
    """Asked of a link."""

    number: int


async def backend(ctx: actors.Context[WhichPort]) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        lines = Lines(stream)
        try:
            while (line := await lines.next()) is not None:
                await stream.send_all(b"%d\n" % int(line) ** 2)
        except trio.BrokenResourceError:
            pass  # a client that has gone is no reason to go as well

    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        # From here on its supervisor goes on to the next child: whoever comes can connect.
        ctx.started()
        async for _ in ctx:
            ctx.reply(listener.socket.getsockname()[1])
        nursery.cancel_scope.cancel()


async def link(ctx: actors.Context[Square]) -> None:
    """One connection. Any trouble with it is a crash, and the cure is a new connection."""
    port = await ctx.system.ref("upstream/backend").ask(WhichPort(), timeout=1)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        lines = Lines(stream)
        ctx.started()
        async for request in ctx:
            with trio.fail_after(1):
                await stream.send_all(b"%d\n" % request.number)
                line = await lines.next()
            if line is None:
                raise ConnectionError("the backend has closed the connection")
            ctx.reply(int(line))


async def health(ctx: actors.Context[None], links: Pool, spec: Callable[[str], Spec]) -> None:
    """Keeps `LINKS` in the pool and working. It has no state to lose: it looks at the pool."""

    async def look() -> None:
        for ref in links.children:
            try:
                assert await ref.ask(Square(3), timeout=1) == 9
            except (actors.ActorGone, trio.TooSlowError):
                # It runs and does not answer: nothing that its supervisor would notice.
                await links.stop_child(ref, grace_s=0)
        for name in sorted(LINKS - {ref.id for ref in links.children}):
            try:
                await links.start_child(spec(name))
            except (actors.StartFailed, actors.ActorGone):
                pass  # the backend is on its way down or up; the next look tries again

    await look()
    ctx.started()
    while True:
        await trio.sleep(0.1)
        await look()


async def session(ctx: actors.Context[None], stream: trio.SocketStream, links: Pool) -> None:
    """One client. It does not care which link answers, nor which life of it."""
    async with stream:
        ctx.started()
        lines = Lines(stream)
        while (line := await lines.next()) is not None:
            answer = None
            while answer is None:
                try:
                    answer = await random.choice(links.children).ask(Square(int(line)), timeout=1)
                except (actors.ActorGone, trio.TooSlowError, IndexError):
                    # Lost with the link, or there is none. Squaring may be asked for again.
                    await trio.sleep(0.02)
            await stream.send_all(b"%d\n" % answer)


async def acceptor(
    ctx: actors.Context[None],
    listener: trio.SocketListener,
    sessions: Pool,
    spec: Callable[[trio.SocketStream], Spec],
) -> None:
    """Accepts. The socket is not its own, so clients that come while it is down just wait."""
    ctx.started()
    while True:
        stream = await listener.accept()
        try:
            await sessions.start_child(spec(stream))
        except BaseException:  # nobody else knows of this connection yet
            await trio.aclose_forcefully(stream)
            raise


def tree(listener: trio.SocketListener, saboteur: Saboteur) -> list[Spec]:
    """The whole service, in start order."""
    breakable = saboteur.breakable
    links = Pool(intensity=BUDGET)
    sessions = Pool()
    numbers = itertools.count(1)

    def link_spec(name: str) -> Spec:
        return Spec(id=name, start=breakable(link), backoff=BACKOFF)

    def session_spec(stream: trio.SocketStream) -> Spec:
        return Spec(
            id=f"session-{next(numbers)}",
            start=breakable(partial(session, stream=stream, links=links)),
            # Its connection is gone with it: only the client can open another.
            restart=actors.Restart.TEMPORARY,
            shutdown=KILL,
        )

    watch = breakable(partial(health, links=links, spec=link_spec))
    accept = breakable(partial(acceptor, listener=listener, sessions=sessions, spec=session_spec))
    return [
        actors.supervisor(
            id="upstream",
            strategy=actors.Strategy.REST_FOR_ONE,
            intensity=BUDGET,
            children=[
                Spec(id="backend", start=breakable(backend), backoff=BACKOFF),
                links.spec(id="links", backoff=BACKOFF),
                Spec(id="health", start=watch, shutdown=KILL, backoff=BACKOFF),
            ],
        ),
        actors.supervisor(
            id="front",
            strategy=actors.Strategy.REST_FOR_ONE,
            intensity=BUDGET,
            children=[
                sessions.spec(id="sessions"),
                Spec(id="acceptor", start=accept, shutdown=KILL),
            ],
        ),
    ]


async def client(number: int, port: int, answered: Callable[[int, int], None]) -> None:
    """Asks one thing after another; a connection that breaks is opened again."""
    wanted = iter(range(number, CLIENTS * REQUESTS, CLIENTS))
    question = next(wanted, None)
    while question is not None:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                lines = Lines(stream)
                while question is not None:
                    await stream.send_all(b"%d\n" % question)
                    line = await lines.next()
                    if line is None:
                        break
                    answered(question, int(line))
                    question = next(wanted, None)
                    await trio.sleep(0.01)
        except (OSError, trio.BrokenResourceError):
            pass  # what was not answered is asked again


async def main() -> int:
    saboteur = Saboteur.from_command_line(__doc__, kills=6)
    answers: dict[int, int] = {}
    total = CLIENTS * REQUESTS

    def answered(question: int, answer: int) -> None:
        answers[question] = answer
        saboteur.progress(len(answers), total)

    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listener.socket.getsockname()[1]
    service = tree(listener, saboteur)
    async with listener, actors.open_actor_system(children=service, listener=saboteur.listen):
        with trio.move_on_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for number in range(CLIENTS):
                    nursery.start_soon(client, number, port, answered)
    right = sum(answers.get(number) == number**2 for number in range(total))
    print(f"{right} of {total} answers; {saboteur.killed} killed, {saboteur.restarted} restarts")
    return 0 if right == total and saboteur.killed == saboteur.kills else 1


if __name__ == "__main__":
    raise SystemExit(trio.run(main))
