"""The benchmark of the actors: `python run.py [--out FOLDER] [--seconds N] [--cases a,b]`.

Runs every case in a process of its own (see `cases.py`), prints the tables and a verdict for each
goal, and writes `actors.json` and `actors.md` to the folder. Exit code: 0 when every goal is
reached, 1 when one is missed, 2 when a case failed or had no time to measure a goal.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
# Of the whole time, in parts; what a case leaves over goes to the ones after it.
SHARES = {"tell": 35, "ask": 12, "storm": 8, "idle": 6, "static": 14, "crowds": 25}
PEERS = ("trio", "shove", "pykka", "triotp")
TITLES = {"trio": "bare Trio", "shove": "shove_actors", "pykka": "pykka", "triotp": "triotp"}

TELL_RATIO = 1.3
IDLE_KIB = 12.0
STOP_S = 1.0
# Cost per actor may grow by this much from the smallest to the largest crowd. Caches and the
# garbage collector make it grow a little; anything quadratic makes it grow with the crowd, by 30.
GROWTH = 2.5


@dataclass(frozen=True)
class Verdict:
    goal: str
    measured: str
    reached: bool | None
    """None: the time was up before it could be told."""

    @property
    def word(self) -> str:
        return {True: "reached", False: "MISSED", None: "not measured"}[self.reached]


def run_case(name: str, seconds: float, *args: str) -> dict[str, Any]:
    """A case may finish the round in which its time is up; far beyond that it is a failure."""
    done = subprocess.run(
        [sys.executable, str(HERE / "cases.py"), name, f"{seconds:.0f}", *args],
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        cwd=HERE,
    )
    if done.returncode:
        raise RuntimeError(f"case {name} {' '.join(args)} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def run_all(cases: list[str], seconds: float) -> dict[str, Any]:
    end = time.monotonic() + seconds
    results: dict[str, Any] = {"versions": run_case("versions", 20), "failed": []}
    left = sum(SHARES[name] for name in cases)
    for name in cases:
        share = max(5.0, (end - time.monotonic()) * SHARES[name] / left)
        left -= SHARES[name]
        print(f"{name} (up to {share:.0f} s) ...", file=sys.stderr, flush=True)
        try:
            if name == "idle":
                results[name] = {peer: run_case(name, share / 4, peer) for peer in PEERS}
            else:
                results[name] = run_case(name, share)
        except (RuntimeError, subprocess.TimeoutExpired) as exc:
            # One case must not cost the results of the others.
            print(exc, file=sys.stderr)
            results["failed"].append(name)
    return results


def judge(results: dict[str, Any]) -> list[Verdict]:
    verdicts = []
    if "tell" in results:
        ours = results["tell"]["peers"]["shove"]
        ratio = ours["cpu_ratio"]
        measured = f"{ratio:.2f} x, {ours['rounds']} rounds"
        goal = f"tell: at most {TELL_RATIO} x the CPU of a bare memory channel"
        verdicts.append(Verdict(goal, measured, ratio <= TELL_RATIO))
    if "idle" in results:
        kib = results["idle"]["shove"]["kib"]
        verdicts.append(
            Verdict(f"idle actor: under {IDLE_KIB:g} KiB", f"{kib:.1f} KiB", kib < IDLE_KIB)
        )
    if "crowds" in results:
        sizes = results["crowds"]["sizes"]
        goal = f"10,000 actors stopped in under {STOP_S:g} s of CPU"
        stops = {size["count"]: size["stop"]["shove"]["cpu_us"] for size in sizes}
        if 10_000 in stops:
            cpu = stops[10_000] * 10_000 / 1e6
            verdicts.append(Verdict(goal, f"{cpu:.2f} s", cpu < STOP_S))
        else:
            verdicts.append(Verdict(goal, "-", None))
        for what in ("spawn", "stop"):
            costs = [size[what]["shove"]["cpu_us"] for size in sizes]
            verdicts.append(growth(f"{what} of a pool", [s["count"] for s in sizes], costs))
        costs = [size["snapshot_cpu_us"] for size in sizes]
        verdicts.append(growth("snapshot", [s["count"] for s in sizes], costs))
    if "static" in results:
        trees, budgets = results["static"]["trees"], results["static"]["budgets"]
        for what in ("start", "stop"):
            costs = [tree[f"{what}_cpu_us"] for tree in trees]
            counts = [tree["count"] for tree in trees]
            verdicts.append(growth(f"{what} of a static tree", counts, costs))
        costs = [b["restart_cpu_us"] for b in budgets]
        counts = [b["count"] for b in budgets]
        verdicts.append(growth("restarts within a budget of as many", counts, costs))
    return verdicts


def growth(what: str, counts: list[int], costs: list[float]) -> Verdict:
    """The cost per actor of the largest against that of the smallest."""
    factor = costs[-1] / costs[0] if len(costs) > 1 else None
    steps = ", ".join(
        f"{count:,}: {cost:.1f} us" for count, cost in zip(counts, costs, strict=True)
    )
    goal = f"{what}: nothing quadratic (cost of each grows at most {GROWTH} x)"
    if factor is None:
        return Verdict(goal, steps or "-", None)
    return Verdict(goal, f"{factor:.2f} x ({steps})", factor <= GROWTH)


# ------------------------------------------------------------------------------------- tables


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def cell(entry: dict[str, float] | None) -> str:
    if entry is None:
        return "-"
    times = f"{entry['cpu_us']:.1f} / {entry['wall_us']:.1f} us"
    if "cpu_ratio" not in entry:
        return times
    return f"{times} ({entry['cpu_ratio']:.2f} / {entry['wall_ratio']:.2f})"


def tables(results: dict[str, Any], verdicts: list[Verdict]) -> str:
    peers = results["versions"]["peers"]
    head = ["", *(f"{TITLES[p]} {peers[p]}" for p in PEERS if p in peers)]
    names = [p for p in PEERS if p in peers]
    parts = [
        f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} CPUs, load {load()}.\n"
    ]
    rows = []
    for name, title in (("tell", "tell"), ("ask", "ask"), ("storm", "restart")):
        if name in results:
            one = results[name]
            rounds = one["peers"]["shove"]["rounds"]
            label = f"{title} ({rounds} x {one['count']:,})"
            rows.append([label, *(cell(one["peers"].get(p)) for p in names)])
    for size in results.get("crowds", {}).get("sizes", []):
        for what in ("spawn", "stop"):
            label = f"{what} each of {size['count']:,}"
            rows.append([label, *(cell(size[what].get(p)) for p in names)])
    if "idle" in results:
        kib = [results["idle"][p].get("kib") for p in names]
        rows.append(["idle actor", *("-" if k is None else f"{k:.1f} KiB" for k in kib)])
    parts.append("Each: CPU / wall time (ratio to bare Trio, median of the rounds).\n")
    parts.append(table(head, rows))
    absent = dict(results["versions"]["absent"])
    for peer, why in results.get("storm", {}).get("absent", {}).items():
        absent.setdefault(peer, f"restart: {why}")
    for size in results.get("crowds", {}).get("sizes", []):
        for peer, why in size["missing"].items():
            absent[f"{peer}, {size['count']:,} actors"] = why
    if absent:
        parts.append("\n".join(f"- {who}: {why}" for who, why in absent.items()) + "\n")
    parts.append(
        table(
            ["goal", "measured", "verdict"],
            [[v.goal, v.measured, v.word] for v in verdicts],
        )
    )
    return "\n".join(parts)


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench-results"))
    parser.add_argument("--seconds", type=float, default=220, help="aim for the whole run")
    parser.add_argument("--cases", default=",".join(SHARES))
    options = parser.parse_args()
    cases = [name for name in SHARES if name in options.cases.split(",")]
    if not cases:
        parser.error(f"--cases: choose from {', '.join(SHARES)}")
    begun = time.monotonic()
    results = run_all(cases, options.seconds)
    verdicts = judge(results)
    text = tables(results, verdicts)
    results["python"] = platform.python_version()
    results["machine"] = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    results["seconds"] = round(time.monotonic() - begun, 1)
    results["verdicts"] = [asdict(verdict) for verdict in verdicts]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "actors.json").write_text(json.dumps(results, indent=2), encoding="utf-8")
    (options.out / "actors.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"{results['seconds']:.0f} s; written to {options.out}/actors.json and actors.md")
    if any(verdict.reached is False for verdict in verdicts):
        return 1
    return 0 if not results["failed"] and all(verdict.reached for verdict in verdicts) else 2


if __name__ == "__main__":
    sys.exit(main())
