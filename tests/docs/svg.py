"""Pictures of plain shapes, laid out by counting: the same text each time, and no library.

Three kinds: a *ladder* (columns, and one arrow per row between two of them, what it means beside
it), *boxes* (rows of boxes joined by arrows), and a *tree*. None of them can overlap itself,
whatever the tables behind them grow to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

#: Widths of one character at the sizes below; a little more than any common font needs.
MONO, SANS = 7.3, 6.6
LINE, PAPER, HEAD, ACCENT = "#adb5bd", "#ffffff", "#f1f3f5", "#0b5ed7"
STYLE = (
    "text{font:12px system-ui,'DejaVu Sans',Arial,sans-serif;fill:#212529}"
    ".m{font:12px 'DejaVu Sans Mono',Consolas,monospace}.f{fill:#6c757d}.b{font-weight:bold}"
)


class Canvas:
    """Collects shapes, and knows how large they are together."""

    def __init__(self) -> None:
        self._shapes: list[str] = []
        self._width = self._height = 0.0

    def box(self, x: float, y: float, w: float, h: float, *, dashed: bool = False) -> None:
        self._grow(x + w, y + h)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="4" fill="{HEAD}" '
            f'stroke="{LINE}"{dash}/>'
        )

    def blank(self, x: float, y: float, w: float, h: float) -> None:
        """Paper again, so that what is written there is not crossed by what is below."""
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{PAPER}"/>'
        )

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        width = text_width(text, "m" in kind)
        self._grow(x + {"start": width, "middle": width / 2, "end": 0.0}[anchor], y + 4)
        self._shapes.append(
            f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def line(self, points: Sequence[tuple[float, float]], *, arrow: bool = False) -> None:
        for x, y in points:
            self._grow(x, y)
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        colour = ACCENT if arrow else LINE
        width = 1.5 if arrow else 1
        self._shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
        )
        if arrow:
            self._head(*points[-2], *points[-1])

    def dot(self, x: float, y: float) -> None:
        self._shapes.append(f'<circle cx="{x:g}" cy="{y:g}" r="3" fill="{ACCENT}"/>')

    def _head(self, x0: float, y0: float, x: float, y: float) -> None:
        if y == y0:
            back = -7.0 if x > x0 else 7.0
            corners = [(x, y), (x + back, y - 4), (x + back, y + 4)]
        else:
            back = -7.0 if y > y0 else 7.0
            corners = [(x, y), (x - 4, y + back), (x + 4, y + back)]
        path = " ".join(f"{a:g},{b:g}" for a, b in corners)
        self._shapes.append(f'<polygon points="{path}" fill="{ACCENT}"/>')

    def _grow(self, x: float, y: float) -> None:
        self._width, self._height = max(self._width, x), max(self._height, y)

    def svg(self, title: str) -> str:
        w, h = round(self._width + 12), round(self._height + 12)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" '
                f'viewBox="0 0 {w} {h}" role="img" aria-label="{escape(title)}">',
                f"<title>{escape(title)}</title><style>{STYLE}</style>",
                f'<rect width="{w}" height="{h}" fill="{PAPER}"/>',
                *self._shapes,
                "</svg>\n",
            ]
        )


def text_width(text: str, mono: bool = False) -> float:
    return len(text) * (MONO if mono else SANS)


# ------------------------------------------------------------------------------ ladder


@dataclass(frozen=True, kw_only=True)
class Rung:
    """An arrow from one column to another, what makes it happen, and what is done then."""

    label: str
    start: str
    end: str
    note: str = ""


def ladder(title: str, columns: Sequence[str], rungs: Sequence[Rung | str]) -> str:
    """One row per rung; a string among them is a heading of those below it."""
    canvas = Canvas()
    arrows = [rung for rung in rungs if isinstance(rung, Rung)]
    left = max(text_width(rung.label) for rung in arrows) + 16
    at: dict[str, float] = {}
    x = left + 8
    for name in columns:
        width = max(text_width(name, True) + 20, 74)
        at[name] = x + width / 2
        canvas.box(x, 8, width, 26)
        canvas.text(at[name], 25, name, "m", "middle")
        x += width + 12
    right, y, row = x + 6, 34.0, 24.0
    bottom = y + row * len(rungs) + 10
    for name in columns:
        canvas.line([(at[name], 34), (at[name], bottom)])
    for rung in rungs:
        y += row
        if isinstance(rung, str):
            canvas.blank(8, y - 10, text_width(rung) * 1.1, 20)
            canvas.text(8, y + 4, rung, "b")
            continue
        canvas.text(left, y + 4, rung.label, "", "end")
        begin, end = at[rung.start], at[rung.end]
        if begin == end:
            points = [(begin, y - 5), (begin + 22, y - 5), (begin + 22, y + 5), (begin + 1, y + 5)]
        else:
            points = [(begin, y), (end - 1 if end > begin else end + 1, y)]
        canvas.line(points, arrow=True)
        canvas.dot(begin, points[0][1])
        if rung.note:
            canvas.text(right, y + 4, rung.note, "f")
    return canvas.svg(title)


# ------------------------------------------------------------------------------- boxes


@dataclass(frozen=True, kw_only=True)
class Box:
    """A name, and what is to be said about it, line by line."""

    name: str
    lines: tuple[str, ...] = ()
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """A box, the boxes its arrows lead to, and what it is. `back`: an arrow up to the first row."""

    what: str
    box: Box
    readers: tuple[Box, ...] = ()
    back: bool = False


def boxes(title: str, panels: Sequence[tuple[str, Sequence[Row]]]) -> str:
    """A heading and rows per panel."""
    canvas = Canvas()
    every = [row for _, rows in panels for row in rows]
    left = max(text_width(row.what) for row in every) + 36
    wide = max(_box_width(row.box) for row in every)
    second = left + wide + 60
    y = 8.0
    for heading, rows in panels:
        canvas.text(8, y + 14, heading, "m b")
        y += 30
        top: float | None = None
        for row in rows:
            height = max(_height(row.box), sum(_height(box) + 8 for box in row.readers) - 8)
            canvas.text(8, y + 17, row.what, "f")
            _draw_box(canvas, left, y, wide, row.box)
            middle = y + 13
            at = y
            for reader in row.readers:
                _draw_box(canvas, second, at, _box_width(reader), reader)
                turn = second - 30
                points = [(left + wide, middle), (turn, middle), (turn, at + 13), (second, at + 13)]
                canvas.line(points if at != y else [points[0], points[3]], arrow=True)
                at += _height(reader) + 8
            if top is None:
                top = middle
            elif row.back:
                lane = left - 18
                canvas.line([(left, middle), (lane, middle), (lane, top), (left, top)], arrow=True)
            y += height + 12
        y += 12
    return canvas.svg(title)


def _box_width(box: Box) -> float:
    return max(text_width(box.name, True), *(text_width(line) for line in box.lines), 60.0) + 20


def _height(box: Box) -> float:
    return 26.0 + 16 * len(box.lines)


def _draw_box(canvas: Canvas, x: float, y: float, width: float, box: Box) -> None:
    canvas.box(x, y, width, _height(box), dashed=box.dashed)
    canvas.text(x + 10, y + 17, box.name, "m")
    for index, line in enumerate(box.lines):
        canvas.text(x + 10, y + 33 + 16 * index, line, "f")


# -------------------------------------------------------------------------------- tree


@dataclass(frozen=True, kw_only=True)
class Branch:
    name: str
    note: str
    children: tuple[Branch, ...] = ()

    def depth(self) -> int:
        return 1 + max((child.depth() for child in self.children), default=0)

    def widest(self) -> float:
        own = text_width(self.name, True) + 20
        return max([own, *(30 + child.widest() for child in self.children)])


def tree(title: str, root: Branch) -> str:
    """Boxes below each other, children further to the right, notes in a column."""
    canvas = Canvas()
    notes = 8 + root.widest() + 24

    def draw(node: Branch, x: float, y: float) -> float:
        canvas.box(x, y, text_width(node.name, True) + 20, 24)
        canvas.text(x + 10, y + 16, node.name, "m")
        canvas.text(notes, y + 16, node.note, "f")
        below = y + 32
        for child in node.children:
            canvas.line([(x + 14, y + 24), (x + 14, below + 12), (x + 30, below + 12)])
            below = draw(child, x + 30, below)
        return below

    draw(root, 8, 8)
    return canvas.svg(title)
