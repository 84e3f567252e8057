"""Where a run shows itself: a terminal with `rich`, or plain lines."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any, Final, Protocol, TextIO

from ._output import OutputClosed as OutputClosed
from ._output import ascii_only, write_lines
from ._progress import Snapshot
from ._render import progress_line, table_lines, tree_lines, verdict_rows
from ._verdict import Verdict

RICH_MISSING: Final = (
    "the live view needs rich, which is not installed; plain lines follow. "
    "Install it with: pip install shove-actors[demo]"
)
#: Seconds between two plain lines.
_PLAIN_EVERY_S: Final = 1.0


class Screen(Protocol):
    """Used as a context manager around the run."""

    def __enter__(self) -> Screen: ...
    def __exit__(self, *exc: object) -> None: ...
    def note(self, text: str) -> None:
        """Something happened that is worth a line of its own."""

    def update(self, now: Snapshot) -> None:
        """Called several times a second."""

    def verdict(self, verdict: Verdict, *, chaos: bool, mistakes: list[str]) -> None:
        """The last word."""


class PlainScreen:
    """Lines for logs and pipes: one each second, and the tree once it is complete."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._next_s = 0.0
        self._tree_shown = False
        self._done_shown = False

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def _print(self, *lines: str) -> None:
        write_lines(self._out, lines)

    def note(self, text: str) -> None:
        self._print(text)

    def update(self, now: Snapshot) -> None:
        if not self._tree_shown and now.tree is not None and now.handled:
            self._tree_shown = True
            self._print(*tree_lines(now.tree, ascii_only=ascii_only(self._out)))
        last = now.done and not self._done_shown
        if now.elapsed_s >= self._next_s or last:
            self._done_shown = now.done
            self._next_s = now.elapsed_s + _PLAIN_EVERY_S
            self._print(progress_line(now))

    def verdict(self, verdict: Verdict, *, chaos: bool, mistakes: list[str]) -> None:
        self._print("", *table_lines(verdict_rows(verdict, chaos=chaos)), "")
        self._print(*([f"WRONG: {text}" for text in mistakes] or ["Everything as it must be."]))


class JsonScreen:
    """The verdict alone, as one JSON object."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out

    def __enter__(self) -> JsonScreen:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def note(self, text: str) -> None:
        return None

    def update(self, now: Snapshot) -> None:
        return None

    def verdict(self, verdict: Verdict, *, chaos: bool, mistakes: list[str]) -> None:
        found = {**asdict(verdict), "chaos": chaos, "mistakes": mistakes, "good": not mistakes}
        write_lines(self._out, [json.dumps(found, indent=2)])


class RichScreen:
    """A progress bar for each stage, and the live tree, drawn by `rich`.

    Nothing is drawn from a thread: every `update` draws, so a handler that blocked the loop would
    be seen as a picture that stands still.
    """

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=out)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)

    def __enter__(self) -> RichScreen:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def update(self, now: Snapshot) -> None:
        self._live.update(self._picture(now), refresh=True)

    def _picture(self, now: Snapshot) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bars = Table.grid(padding=(0, 1))
        stages = (
            ("published", now.published, now.rates.published),
            ("handled", now.handled, now.rates.handled),
        )
        for name, done, rate in stages:
            bars.add_row(
                name,
                ProgressBar(total=now.total, completed=min(done, now.total), width=40),
                f"{done:,} / {now.total:,}",
                f"{rate:,.0f}/s",
            )
        bars.add_row("dead", "", f"{now.dead:,}", f"{now.rates.dead:,.0f}/s")
        bars.add_row("time", "", f"{now.elapsed_s:.1f} s", f"{now.calls:,} handler calls")
        parts: list[Any] = [bars, *(Text(worker) for worker in now.workers)]
        if now.tree is not None:
            # What does not fit would make the terminal scroll at each refresh.
            room = max(3, self._console.height - 6 - len(now.workers))
            lines = tree_lines(now.tree, ascii_only=self._console.options.ascii_only)
            shown = lines if len(lines) <= room else [*lines[: room - 1], "..."]
            parts.append(Text("\n".join(shown)))
        return Group(*parts)

    def verdict(self, verdict: Verdict, *, chaos: bool, mistakes: list[str]) -> None:
        from rich.table import Table

        table = Table(show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for what, value in verdict_rows(verdict, chaos=chaos):
            table.add_row(what, value)
        self._console.print(table)
        for text in mistakes:
            self._console.print(f"WRONG: {text}", style="bold red", markup=False, highlight=False)
        if not mistakes:
            self._console.print("Everything as it must be.", style="bold green")


def make_screen(*, plain: bool, out: TextIO | None = None) -> Screen:
    """Plain lines if asked for, if `out` is no terminal, or if `rich` is missing (and says so)."""
    out = sys.stdout if out is None else out
    if plain or out is None or not out.isatty():
        return PlainScreen(out)
    try:
        return RichScreen(out)
    except ImportError:
        print(RICH_MISSING, file=sys.stderr)
        return PlainScreen(out)
