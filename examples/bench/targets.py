"""The targets, and a verdict on a run of `run_all.py`.

    python targets.py bench-results/runs.json

For each case: the ratio of `shove_actors` to `natspy_asyncio` (the median of the ratios within a
round), the least that a release must reach, where we are going, and the verdict. For latency the
ratio is of p50 and lower is better.

Exit code: 0 when every case that was run reaches its `must`; 1 when one misses it, fails, or has
no result; 2 when there is nothing to judge.
"""

from __future__ import annotations

import json
import pathlib
import sys
from dataclasses import dataclass

import run_all

OURS = "shove_actors"
# A ratio from fewer pairs says little on a noisy machine; it is shown, and marked.
ROUNDS_FOR_A_VERDICT = 5


@dataclass(frozen=True)
class Target:
    """`must`: a release is refused beyond it. `goal`: where we are going."""

    must: float
    goal: float
    lower_is_better: bool = False

    def reaches(self, ratio: float, bound: float) -> bool:
        return ratio <= bound if self.lower_is_better else ratio >= bound


TARGETS: dict[str, Target] = {
    "publish 256": Target(1.3, 2.3),
    "publish 1000": Target(1.3, 2.3),
    "publish-sync": Target(0.6, 0.95),
    "consume 1w x 1": Target(0.6, 1.1),
    "consume 8w x 1": Target(0.6, 1.3),
    "consume 32w x 1": Target(0.6, 1.5),
    "consume 1w x 20": Target(0.8, 1.6),
    "consume 8w x 20": Target(1.2, 1.9),
    "consume 32w x 20": Target(1.2, 1.9),
    "consume 1w x 200": Target(1.2, 2.2),
    "consume 8w x 200": Target(1.2, 2.2),
    "consume 32w x 200": Target(1.2, 2.2),
    "fast 1w x 1": Target(0.95, 1.1),
    "fast 1w x 20": Target(1.2, 1.4),
    "fast 8w x 20": Target(1.2, 1.8),
    "fast 32w x 40": Target(1.0, 1.5),
    "sequenced 8": Target(0.75, 1.4),
    "sequenced 64": Target(1.1, 1.9),
    "latency prefetch 1": Target(1.6, 1.2, lower_is_better=True),
    "latency prefetch 20": Target(1.6, 1.2, lower_is_better=True),
}


@dataclass(frozen=True)
class Row:
    case: str
    target: Target
    ratio: float | None
    pairs: int
    why: str = ""

    @property
    def missed(self) -> bool:
        return self.ratio is None or not self.target.reaches(self.ratio, self.target.must)

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return f"MISSED: {self.why}"
        if self.missed:
            word = "MISSED"
        elif self.target.reaches(self.ratio, self.target.goal):
            word = "goal"
        else:
            word = "ok"
        few = f"; only {self.pairs} of {ROUNDS_FOR_A_VERDICT} rounds"
        return word + (few if self.pairs < ROUNDS_FOR_A_VERDICT else "")


def judge(runs: list[dict]) -> list[Row]:
    """One row per case in which our script was run, in the order of TARGETS."""
    table = run_all.summarise(runs)
    rows = []
    for case, target in TARGETS.items():
        cell = table.get(case, {}).get(OURS)
        if cell is None:
            continue
        ratio, why = cell.get("ratio"), ""
        if cell["errors"]:
            # One failed round out of five is a failure of ours, whatever the other rounds say.
            last_line = cell["errors"][0].strip().splitlines()[-1]
            ratio, why = None, f"{len(cell['errors'])} failed: {last_line}"
        elif cell["na"]:
            ratio, why = None, f"not applicable: {cell['na']}"
        elif ratio is None:
            why = f"no result of {run_all.BASELINE} to compare with"
        rows.append(Row(case, target, ratio, pairs(runs, case), why))
    return rows


def pairs(runs: list[dict], case: str) -> int:
    """Rounds in which both scripts have a result."""

    def rounds(peer: str) -> set[int]:
        return {
            r["round"]
            for r in runs
            if r["case"] == case and r["peer"] == peer and run_all.value(r, case) is not None
        }

    return len(rounds(OURS) & rounds(run_all.BASELINE))


def render(rows: list[Row]) -> str:
    head = f"| {'case':20} | {'ratio':>6} | {'must':>6} | {'goal':>6} | verdict |"
    out = [head, f"|{'-' * 22}|{'-' * 7}:|{'-' * 7}:|{'-' * 7}:|---|"]
    for row in rows:
        sign = "<=" if row.target.lower_is_better else ">="
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        out.append(
            f"| {row.case:20} | {ratio:>6} | {sign + format(row.target.must, 'g'):>6} "
            f"| {sign + format(row.target.goal, 'g'):>6} | {row.verdict} |"
        )
    not_run = [case for case in TARGETS if case not in {row.case for row in rows}]
    if not_run:
        out += ["", "Not run: " + ", ".join(not_run)]
    missed = sum(row.missed for row in rows)
    out += ["", f"{len(rows)} cases judged, {missed} below their must."]
    return "\n".join(out)


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: targets.py RUNS.JSON", file=sys.stderr)
        return 2
    run_all.PEERS.setdefault(OURS, 1)  # run_all knows our script only from its command line
    rows = judge(json.loads(pathlib.Path(argv[0]).read_text())["runs"])
    if not rows:
        print(f"{argv[0]} holds no run of {OURS}", file=sys.stderr)
        return 2
    print(render(rows))
    return 1 if any(row.missed for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
