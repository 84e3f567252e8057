"""A table of numbers that has fewer columns where the terminal is narrow. Needs rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

#: Between two columns.
GAP: Final = 2
#: Columns of the terminal that names have at least, if they need them, and at most.
NAME_LEAST: Final = 12
NAME_MOST: Final = 44

Column = tuple[str, int, Sequence[str | Text]]


class Elastic:
    """`names`: heading and cells of the first column, which is shortened. `numbers`: heading, rank
    and cells of the others, none of which is; those of the highest rank go first when there is no
    room for all. The name and the column of the lowest rank are always there.
    """

    def __init__(self, names: tuple[str, Sequence[str]], *numbers: Column) -> None:
        self._names = names
        self._numbers = numbers

    @property
    def width(self) -> int:
        """With all columns, and names as long as they are."""
        return self._names_width() + sum(GAP + _width(column) for column in self._numbers)

    def fitted(self, width: int) -> Table:
        least = min(NAME_LEAST, self._names_width())
        kept = list(self._numbers)
        while len(kept) > 1 and least + sum(GAP + _width(column) for column in kept) > width:
            kept.remove(max(kept, key=lambda column: column[1]))
        room = width - sum(GAP + _width(column) for column in kept)
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
        table.add_column(
            self._names[0],
            no_wrap=True,
            overflow="ellipsis",
            width=max(1, min(self._names_width(), room)),
        )
        for column in kept:
            table.add_column(column[0], justify="right", no_wrap=True, width=_width(column))
        for row in zip(self._names[1], *(column[2] for column in kept), strict=True):
            table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
        return table

    def _names_width(self) -> int:
        heading, cells = self._names
        return min(NAME_MOST, max(map(cell_len, (heading, *cells))))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.fitted(options.max_width)


def _width(column: Column) -> int:
    heading, _, cells = column
    return max(cell_len(heading), *(cell_len(str(cell)) for cell in cells))
