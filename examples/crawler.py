# runnable
# runnable: --kill-something --seed 1
"""A polite crawler as a supervision tree. The site it crawls is a real one, on this machine.

    crawler (rest_for_one: who comes later builds on who came before; ends when `fetchers` has)
    ├─ results      writes every page down before it says yes; the only memory that counts
    ├─ frontier     which pages are to be fetched, and which are being fetched; starts from results
    ├─ limiter      politeness: hands out one permission at a time
    └─ fetchers     (one_for_one, ends when all its children have)
       └─ fetcher-1 ... fetcher-4, transient: crashed they come back, done they stay away

python examples/crawler.py [--kill-something [--seed N]]
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

import trio
from sabotage import Saboteur

from shove_actors import actors
from shove_actors.actors import ChildSpec as Spec

PAGES = 150
FETCHERS = 4
INTERVAL_S = 0.01
PATIENCE_S = 30.0
#: A page that was handed out this long ago and has not come back is handed out again: its fetcher
#: has crashed. Far longer than a fetch; too short would only mean that a page is fetched twice.
LEASE_S = 0.5
#: A crawl meets many odd pages; more than twenty crashes in ten seconds is a bug of ours.
BUDGET = actors.Intensity(max_restarts=20, period_s=10.0)
BACKOFF = actors.Backoff(initial_s=0.02, max_s=0.5, jitter=0.2, reset_after_s=5.0)


@dataclass(frozen=True)
class Page(actors.Request[bool]):
    """Fetched. Results answer True once it is on disk; then the frontier may know of it too."""

    path: str
    links: tuple[str, ...]


class Known(actors.Request[dict[str, tuple[str, ...]]]):
    """To results: the links of every page stored so far."""


class Hint(Enum):
    WAIT = "no page at the moment, but those being fetched may bring more"
    FINISHED = "no page, and none to come"


class Next(actors.Request[str | Hint]):
    """To the frontier: which page shall I fetch?"""


class Permit(actors.Request[bool]):
    """To the limiter: may I send a request? The answer comes when I may."""


async def results(ctx: actors.Context[Page | Known], file: Path) -> None:
    """What an actor holds in memory dies with it. So this one's memory is a file."""
    pages: dict[str, tuple[str, ...]] = {}
    with file.open("a+", encoding="utf-8") as journal:
        journal.seek(0)
        for line in journal:
            path, links = json.loads(line)
            pages[path] = tuple(links)
        ctx.started()
        async for message in ctx:
            if isinstance(message, Known):
                ctx.reply(dict(pages))
                continue
            if message.path not in pages:
                print(json.dumps([message.path, message.links]), file=journal, flush=True)
                pages[message.path] = message.links
            # The yes comes after the flush. Whoever does not hear it has to ask again.
            ctx.reply(True)


async def frontier(ctx: actors.Context[Next | Page]) -> None:
    """Everything here can be worked out from what is stored, and that is how it starts."""
    known = await ctx.system.ref("results").ask(Known(), timeout=5)
    waiting: dict[str, None] = {}  # a set that keeps its order
    leased: dict[str, float] = {}

    def discover(links: tuple[str, ...]) -> None:
        waiting.update((path, None) for path in links if path not in known and path not in leased)

    for links in [("/page/1",), *known.values()]:
        discover(links)
    ctx.started()
    async for message in ctx:
        now = trio.current_time()
        if isinstance(message, Page):
            known[message.path] = message.links
            leased.pop(message.path, None)
            waiting.pop(message.path, None)
            discover(message.links)
            continue
        late = [path for path, since in leased.items() if now - since > LEASE_S]
        path = next(iter((*late, *waiting)), None)
        if path is None:
            ctx.reply(Hint.WAIT if leased else Hint.FINISHED)
        else:
            waiting.pop(path, None)
            leased[path] = now
            ctx.reply(path)


async def limiter(ctx: actors.Context[Permit]) -> None:
    """At most one permission in `INTERVAL_S`, also over a restart: it begins with a pause."""
    ctx.started()
    async for _ in ctx:
        await trio.sleep(INTERVAL_S)
        port = ctx.reply_port
        if port is not None and not port.abandoned:
            port.reply(True)


async def fetcher(ctx: actors.Context[None], site: int) -> None:
    """Fetches one page after another. Cancelled or crashed anywhere, its page is leased anew."""
    to = ctx.system.ref
    ctx.started()
    while (path := await to("frontier").ask(Next())) is not Hint.FINISHED:
        if path is Hint.WAIT:
            await trio.sleep(INTERVAL_S)
            continue
        await to("limiter").ask(Permit())
        with trio.fail_after(2):
            page = Page(path, tuple(re.findall(r'href="([^"]+)"', await get(site, path))))
        await to("results").ask(page)
        await to("frontier").tell(page)


async def get(port: int, path: str) -> str:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        answer = b"".join([chunk async for chunk in stream])
    head, _, body = answer.decode().partition("\r\n\r\n")
    if " 200 " not in head.partition("\r\n")[0]:
        raise ConnectionError(f"{path}: {head}")
    return body


def tree(file: Path, site: int, saboteur: Saboteur) -> list[Spec]:
    """The whole crawler, in start order."""
    breakable = saboteur.breakable
    fetch = breakable(partial(fetcher, site=site))
    return [
        Spec(id="results", start=breakable(partial(results, file=file)), backoff=BACKOFF),
        Spec(id="frontier", start=breakable(frontier), backoff=BACKOFF),
        Spec(id="limiter", start=breakable(limiter), backoff=BACKOFF),
        actors.supervisor(
            id="fetchers",
            intensity=BUDGET,
            # The crawl is over when every fetcher has returned: this supervisor returns then,
            # and the root after it. Nobody has to watch.
            restart=actors.Restart.TRANSIENT,
            auto_shutdown=actors.AutoShutdown.ALL,
            significant=True,
            children=[
                Spec(
                    id=f"fetcher-{number}",
                    start=fetch,
                    restart=actors.Restart.TRANSIENT,
                    significant=True,
                    # It may wait for an actor that is down because it is itself in the way.
                    shutdown=actors.Shutdown.KILL,
                    backoff=BACKOFF,
                )
                for number in range(1, FETCHERS + 1)
            ],
        ),
    ]


class Site:
    """The outside world: no actor of ours. Page n links to 2n, 2n + 1, and back to n // 2."""

    def __init__(self, saboteur: Saboteur) -> None:
        self.requests = 0
        self.served: set[int] = set()
        self._saboteur = saboteur

    async def serve(self, stream: trio.SocketStream) -> None:
        request = b""
        try:
            while b"\r\n\r\n" not in request:
                chunk = await stream.receive_some()
                if not chunk:
                    return
                request += chunk
            number = int(request.split()[1].removeprefix(b"/page/"))
            links = [n for n in (2 * number, 2 * number + 1, number // 2) if 1 <= n <= PAGES]
            body = "".join(f'<a href="/page/{n}">page {n}</a>' for n in links)
            await stream.send_all(f"HTTP/1.0 200 OK\r\n\r\n{body}".encode())
        except trio.BrokenResourceError:
            return  # the fetcher was killed
        self.requests += 1
        self.served.add(number)
        self._saboteur.progress(len(self.served), PAGES)


async def crawl(file: Path, saboteur: Saboteur) -> bool:
    """Crawls the whole site; returns whether it kept to its rate."""
    site = Site(saboteur)
    async with trio.open_nursery() as outside:
        [listener] = await outside.start(partial(trio.serve_tcp, site.serve, 0, host="127.0.0.1"))
        began = trio.current_time()
        async with actors.open_actor_system(
            name="crawler",
            strategy=actors.Strategy.REST_FOR_ONE,
            intensity=BUDGET,
            auto_shutdown=actors.AutoShutdown.ANY,
            children=tree(file, listener.socket.getsockname()[1], saboteur),
            listener=saboteur.listen,
        ) as system:
            with trio.move_on_after(PATIENCE_S):
                await system.wait_stopped()
        took = trio.current_time() - began
        outside.cancel_scope.cancel()
    print(
        f"{site.requests} requests in {took:.1f} s; "
        f"{saboteur.killed} killed, {saboteur.restarted} restarts"
    )
    return (site.requests - 1) * INTERVAL_S <= took


def main() -> int:
    saboteur = Saboteur.from_command_line(__doc__, kills=6)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pages"
        polite = trio.run(crawl, file, saboteur)
        stored = {json.loads(line)[0] for line in file.read_text(encoding="utf-8").splitlines()}
    print(f"{len(stored)} of {PAGES} pages stored; polite: {polite}")
    complete = stored == {f"/page/{number}" for number in range(1, PAGES + 1)}
    return 0 if complete and polite and saboteur.killed == saboteur.kills else 1


if __name__ == "__main__":
    raise SystemExit(main())
