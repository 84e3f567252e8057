"""A picture that is drawn again and again in a terminal, by `top` and by `run --top`.

Nothing is drawn from a thread: each refresh is a step of the event loop, so a handler that blocks
it is seen as a picture that stands still.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from typing import Any, Final

import trio

from shove_actors import ShoveError
from shove_actors.backends.nats._backend import NatsBackend

from ._base import CommandFailed, Exit
from ._process import Process
from ._running import Running
from ._top_state import Looker, Rates

#: Lines of the log below the picture of `run --top`.
LOG_LINES: Final = 6
RICH_MISSING: Final = (
    "the live view needs rich, which is not installed. Install it with: "
    "pip install 'shove-actors[cli]'"
)

Look = Callable[[], Awaitable[dict[str, Any]]]


def need_rich() -> None:
    if find_spec("rich") is None:
        raise CommandFailed(RICH_MISSING)


def need_terminal(way_out: str) -> None:
    if sys.stdout is None or not sys.stdout.isatty():
        raise CommandFailed(f"the live view needs a terminal; {way_out}", Exit.USAGE)


async def show(look: Look, interval: float) -> None:
    """Until cancelled. What prevents a look is shown, and looked for again."""
    from rich.console import Console
    from rich.live import Live

    from ._top_view import picture

    console = Console(file=sys.stdout)
    ascii_only = console.options.ascii_only
    snapshot: dict[str, Any] = {"topics": [], "processes": []}
    with Live(console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        while True:
            try:
                snapshot = await look()
            except ShoveError as exc:
                snapshot = {**snapshot, "trouble": str(exc)}
            live.update(picture(snapshot, ascii_only=ascii_only), refresh=True)
            await trio.sleep(interval)


class _Lines(logging.Handler):
    """Keeps the latest lines: on the terminal they would tear the picture apart."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=LOG_LINES)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            self.lines.append(self.format(record).partition("\n")[0])


@asynccontextmanager
async def observed(
    running: Running, *, top: bool, answer: bool, interval: float
) -> AsyncIterator[None]:
    """Around what runs: shows it (`top`), and answers those who ask (`answer`)."""
    process = Process(running)
    async with trio.open_nursery() as nursery:
        if top:
            nursery.start_soon(_show_own, running, process, interval)
        if answer:
            async with process.answering():
                yield
        else:
            yield
        nursery.cancel_scope.cancel()


async def _show_own(running: Running, process: Process, interval: float) -> None:
    backend = running.broker.backend if running.broker is not None else None
    js = backend.js if isinstance(backend, NatsBackend) else None
    looker = Looker(js, ask_processes=False) if js is not None else None
    rates = Rates()
    log = _Lines()
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers[:] = [log]

    async def look() -> dict[str, Any]:
        own = process.state()
        snapshot: dict[str, Any] = {"topics": [], "processes": [own], "log": list(log.lines)}
        rates.add(own)
        if looker is not None:
            try:
                snapshot |= {k: v for k, v in (await looker.look()).items() if k != "processes"}
            except ShoveError as exc:
                snapshot["trouble"] = str(exc)
        return snapshot

    try:
        await show(look, interval)
    finally:
        root.handlers[:] = before
