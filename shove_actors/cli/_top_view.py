"""The picture of `top`, made of a snapshot. Needs rich; draws nothing by itself."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ._elastic import Elastic
from ._percentiles import duration

#: Workers that are all well are drawn up to this number side by side, then counted.
ALIKE: Final = 4
#: More topics than this, and those at rest are counted; of the others so many are shown.
BUSY: Final = 20
MANY: Final = 40
_REMOTE_FONT: Final = re.compile(r""",\s*url\("https?://[^;]*;""")
_STYLES: Final = {
    "running": "green",
    "starting": "cyan",
    "backing_off": "yellow",
    "stopping": "yellow",
    "stopped": "dim",
    "failed": "bold red",
}
_TRUNK: Final = ("│  ", "├─ ", "└─ ", "   ")
_ASCII: Final = ("|  ", "|- ", "`- ", "   ")


def picture(snapshot: Mapping[str, Any], *, ascii_only: bool = False) -> RenderableType:
    """All of it, from the server down to each process."""
    parts: list[RenderableType] = [_headline(snapshot), ""]
    if snapshot.get("trouble"):
        parts.append(Text(snapshot["trouble"], style="bold red"))
    if snapshot["topics"]:
        parts.append(_topics(snapshot["topics"]))
    elif snapshot.get("server"):
        parts.append(Text("no topics on this server", style="dim"))
    parts.append("")
    parts += [_process(process, ascii_only) for process in snapshot["processes"]]
    if not snapshot["processes"]:
        parts.append(
            Text(
                "no process answers: those that are started with `run --answer` show their tree, "
                "latencies and scaling here",
                style="dim",
            )
        )
    parts += [Text(line, style="dim") for line in snapshot.get("log", ())]
    return Group(*parts)


def as_text(snapshot: Mapping[str, Any], *, width: int = 120, ascii_only: bool = False) -> str:
    """The picture without colours."""
    console = Console(
        width=width, color_system=None, force_terminal=False, record=True, file=io.StringIO()
    )
    console.print(picture(snapshot, ascii_only=ascii_only))
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


def as_svg(snapshot: Mapping[str, Any], *, width: int = 120, title: str) -> str:
    """The picture as an SVG image."""
    console = Console(width=width, record=True, force_terminal=True, file=io.StringIO())
    console.print(picture(snapshot))
    # Whoever looks at it shall not have to fetch a font from somewhere.
    return _REMOTE_FONT.sub(";", console.export_svg(title=title))


def _headline(snapshot: Mapping[str, Any]) -> Text:
    server = snapshot.get("server")
    line = Text("shove-actors top", style="bold")
    if server:
        line.append(f"   {server['url']}", style="cyan")
        line.append(f"   nats-server {server['version']}", style="default")
        line.append(f"   round trip {duration(server['round_trip'])}", style="default")
        if server.get("more_topics"):
            line.append("   (not all topics are shown: choose with --queue)", style="yellow")
    return line


def _topics(topics: Sequence[Mapping[str, Any]]) -> RenderableType:
    shown = list(topics)
    if len(shown) > BUSY:
        shown = [topic for topic in topics if not _at_rest(topic)][:MANY]
    reading = [bool(topic["pulls"] or topic["in_flight"]) for topic in shown]
    table = Elastic(
        ("topic", [topic["queue"] for topic in shown]),
        ("stored/s", 6, [f"{topic['stored_per_s']:,.1f}" for topic in shown]),
        ("settled/s", 7, [f"{topic['settled_per_s']:,.1f}" for topic in shown]),
        # Red: nobody asks for them.
        (
            "pending",
            1,
            [
                Text(f"{topic['pending']:,}", "" if asked or not topic["pending"] else "bold red")
                for topic, asked in zip(shown, reading, strict=True)
            ],
        ),
        ("in flight", 5, [f"{topic['in_flight']:,}" for topic in shown]),
        ("held", 4, [_coloured(topic["held"], "yellow") for topic in shown]),
        ("dead", 2, [_coloured(topic["dead"], "red") for topic in shown]),
        # Few servers have FAIL_ALL topics, and the terminal is narrow.
        *(
            [("poisoned", 3, [_poisoned(topic) for topic in shown])]
            if any(topic["fails_all"] for topic in shown)
            else []
        ),
        ("redelivered", 8, [f"{topic['redelivered']:,}" for topic in shown]),
        ("pulls", 9, [f"{topic['pulls']:,}" for topic in shown]),
    )
    if len(shown) == len(topics):
        return table
    return Group(table, Text(f"and {len(topics) - len(shown)} topics more", style="dim"))


def _poisoned(topic: Mapping[str, Any]) -> Text:
    if not topic["fails_all"]:
        return Text("")
    count = topic["poisoned"]
    return Text("?" if count is None else f"{count:,}", "bold red" if count else "")


def _at_rest(topic: Mapping[str, Any]) -> bool:
    moving = ("stored_per_s", "settled_per_s", "pending", "in_flight", "held", "pulls")
    return not any(topic[name] for name in (*moving, "poisoned"))


def _coloured(count: int, style: str) -> Text:
    return Text(f"{count:,}", style if count else "")


def _process(process: Mapping[str, Any], ascii_only: bool) -> Panel:
    connection = process["connection"]
    where = connection.get("server") or f"in {connection['backend']}"
    facts = [
        f"up {duration(process['uptime'])}",
        f"cpu {process.get('cpu_percent', 0.0):.0f} %",
    ]
    if process.get("memory_bytes"):
        facts.append(f"memory {process['memory_bytes'] / 2**20:,.0f} MiB")
    facts.append(where if connection["connected"] else f"NOT CONNECTED to {where}")
    if connection.get("reconnects"):
        facts.append(f"{connection['reconnects']} reconnects")
    facts += [f"{count} {kind}" for kind, count in process.get("troubles", {}).items()]
    if process.get("stopping"):
        facts.append("stopping")
    marks = _ASCII if ascii_only else _TRUNK
    beside = _Beside(
        _tree(process["tree"], marks),
        _latencies(process["topics"]),
        list(_scaling(process["scaling"])),
    )
    return Panel(
        Group(Text("   ".join(facts), style="" if connection["connected"] else "bold red"), beside),
        title=f"{process['target']}  pid {process['pid']} on {process['host']}",
        title_align="left",
        border_style="blue" if connection["connected"] else "red",
    )


class _Beside:
    """The tree and what its consumers do: side by side, or below each other for want of room."""

    def __init__(
        self, tree: Sequence[Text], latencies: Elastic | Text, scaling: Sequence[RenderableType]
    ) -> None:
        self._tree = Text("\n", no_wrap=True, overflow="ellipsis").join(tree)
        self._latencies = latencies
        self._scaling = scaling

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        latencies = self._latencies
        wide = latencies.width if isinstance(latencies, Elastic) else latencies.cell_len
        used = max(line.cell_len for line in self._tree.split()) + 3
        if used + wide <= options.max_width:
            columns = Table.grid(padding=(0, 3, 0, 0))
            right = latencies.fitted(wide) if isinstance(latencies, Elastic) else latencies
            columns.add_row(self._tree, Group(right, *self._scaling))
            yield columns
        else:
            # The tree may be cut off at the bottom; it is the longer one.
            yield from (latencies, *self._scaling, "", self._tree)


def _latencies(topics: Sequence[Mapping[str, Any]]) -> Elastic | Text:
    if not topics:
        return Text("no consumers yet", style="dim")
    handler = [topic["latency"]["handler"] for topic in topics]
    waited = [topic["latency"]["waited"] for topic in topics]
    return Elastic(
        ("consumers of", [topic["queue"] for topic in topics]),
        ("n", 6, [str(topic["consumers"]) for topic in topics]),
        ("busy", 1, [str(topic["busy"]) for topic in topics]),
        ("/s", 2, [f"{topic.get('attempts_per_s', 0.0):,.0f}" for topic in topics]),
        ("handler p50", 3, [_time(times, "p50") for times in handler]),
        ("p95", 7, [_time(times, "p95") for times in handler]),
        ("p99", 5, [_time(times, "p99") for times in handler]),
        ("wait p50", 4, [_time(times, "p50") for times in waited]),
        ("wait p99", 8, [_time(times, "p99") for times in waited]),
    )


def _time(times: Mapping[str, float], share: str) -> str:
    return duration(times[share]) if share in times else "-"


def _scaling(decisions: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    if decisions:
        yield ""
    for each in reversed(decisions[-4:]):
        yield Text(
            f"{each['queue']}: {each['before']} -> {each['after']} consumers, "
            f"{duration(each['ago'])} ago",
            style="cyan",
        )


def _tree(root: Mapping[str, Any], marks: Sequence[str]) -> list[Text]:
    lines = [_node(root)]
    lines += _below(root, marks, "")
    if root.get("truncated"):
        lines.append(Text("(too large to be shown)", style="dim"))
    return lines


def _below(node: Mapping[str, Any], marks: Sequence[str], indent: str) -> Iterator[Text]:
    trunk, branch, last_branch, nothing = marks
    shown = list(_shortened(node["children"]))
    for index, child in enumerate(shown):
        last = index == len(shown) - 1
        line = Text().append(f"{indent}{last_branch if last else branch}", "dim")
        yield line.append_text(child if isinstance(child, Text) else _node(child))
        if not isinstance(child, Text):
            yield from _below(child, marks, indent + (nothing if last else trunk))


def _shortened(children: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any] | Text]:
    """Dozens of shards that are all well are one line; whatever is not well has its own."""
    well = [child for child in children if _is_well(child)]
    if len(well) <= ALIKE:
        yield from children
        return
    yield from (child for child in children if not _is_well(child))
    yield well[0]
    yield Text(f"and {len(well) - 1} more that run", style="dim")


def _is_well(node: Mapping[str, Any]) -> bool:
    return (
        node["kind"] == "worker"
        and node["state"] == "running"
        and not (node["restarts"] or node["mailbox"] or node["children"])
    )


def _node(node: Mapping[str, Any]) -> Text:
    text = Text(node["name"], style="default")
    text.append(f"  {node['state']}", style=_STYLES.get(node["state"], "yellow"))
    if node["restarts"]:
        times = "restart" if node["restarts"] == 1 else "restarts"
        text.append(f"  {node['restarts']} {times}", style="yellow")
    if node["last_exit"] is not None:
        text.append(f"  last {node['last_exit']}", style="yellow")
    if node["kind"] == "worker" and node["mailbox"]:
        text.append(f"  mailbox {node['mailbox']:,}/{node['capacity']:,}", style="magenta")
    return text
