"""The picture of `top`, made of a snapshot. Needs rich; draws nothing by itself."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

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
    table = _table("topic", "stored/s", "settled/s", "pending", "in flight", "held", "dead")
    # Few servers have FAIL_ALL topics, and the terminal is narrow.
    poisonable = any(topic["fails_all"] for topic in shown)
    for name in (*(("poisoned",) if poisonable else ()), "redelivered", "pulls"):
        _numbers(table, name)
    for topic in shown:
        reading = topic["pulls"] or topic["in_flight"]
        table.add_row(
            topic["queue"],
            f"{topic['stored_per_s']:,.1f}",
            f"{topic['settled_per_s']:,.1f}",
            # Nobody asks for them.
            Text(f"{topic['pending']:,}", "" if reading or not topic["pending"] else "bold red"),
            f"{topic['in_flight']:,}",
            Text(f"{topic['held']:,}", "yellow" if topic["held"] else ""),
            Text(f"{topic['dead']:,}", "red" if topic["dead"] else ""),
            *((_poisoned(topic),) if poisonable else ()),
            f"{topic['redelivered']:,}",
            f"{topic['pulls']:,}",
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


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True, overflow="ellipsis", max_width=44)
    for name in numbers:
        _numbers(table, name)
    return table


def _numbers(table: Table, name: str) -> None:
    table.add_column(name, justify="right", no_wrap=True, min_width=len(name))


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
    columns = Table.grid(padding=(0, 3, 0, 0))
    columns.add_row(
        Text("\n").join(_tree(process["tree"], marks)),
        Group(_latencies(process["topics"]), *_scaling(process["scaling"])),
    )
    return Panel(
        Group(
            Text("   ".join(facts), style="" if connection["connected"] else "bold red"), columns
        ),
        title=f"{process['target']}  pid {process['pid']} on {process['host']}",
        title_align="left",
        border_style="blue" if connection["connected"] else "red",
    )


def _latencies(topics: Sequence[Mapping[str, Any]]) -> RenderableType:
    if not topics:
        return Text("no consumers yet", style="dim")
    table = _table(
        "consumers of", "n", "busy", "/s", "handler p50", "p95", "p99", "wait p50", "p99"
    )
    for topic in topics:
        handler, waited = topic["latency"]["handler"], topic["latency"]["waited"]
        table.add_row(
            topic["queue"],
            str(topic["consumers"]),
            str(topic["busy"]),
            f"{topic.get('attempts_per_s', 0.0):,.0f}",
            *(_time(handler, share) for share in ("p50", "p95", "p99")),
            *(_time(waited, share) for share in ("p50", "p99")),
        )
    return table


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
