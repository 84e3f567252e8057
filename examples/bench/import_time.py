"""How long `import shove_actors` takes, beside what it stands on: `import trio, nats`.

    python examples/bench/import_time.py [--rounds 15] [--json]

Each import runs in a process of its own, in turns, so that a busy machine disturbs all alike. Times
are of the processor (user and system), without those of an empty interpreter. The target is the
ratio of the package itself: below 1.3, by the minimum and by the median; otherwise the exit code
is 1. The last line is what a program pays that opens a broker: everything below it as well.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys

TARGET = 1.3
BASE = "import trio, nats"
FACE = "import shove_actors"
USED = "from shove_actors import NatsConfig, Outcome, Topic, TopologyBuilder, open_broker"
EMPTY = "pass"


def cost(program: str) -> float:
    """Processor seconds of one interpreter that runs `program`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Bytecode is written: a package that is installed has it.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", program], check=True, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    programs = (EMPTY, BASE, FACE, USED)
    for program in programs:
        cost(program)  # writes the bytecode, and fetches the files
    times: dict[str, list[float]] = {program: [] for program in programs}
    for _ in range(options.rounds):
        for program in programs:
            times[program].append(cost(program))
    rows = []
    for program in programs[1:]:
        row: dict[str, object] = {"import": program}
        for name, of in (("min", min), ("median", statistics.median)):
            empty = of(times[EMPTY])
            own, base = of(times[program]) - empty, of(times[BASE]) - empty
            row[f"{name}_ms"] = round(own * 1000, 1)
            row[f"{name}_ratio"] = round(own / base, 2)
        rows.append(row)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print(f"{'min ms':>8} {'ratio':>6} {'median ms':>10} {'ratio':>6}")
        for row in rows:
            print(
                f"{row['min_ms']:>8} {row['min_ratio']:>6} {row['median_ms']:>10} "
                f"{row['median_ratio']:>6}  {row['import']}"
            )
    face = next(row for row in rows if row["import"] == FACE)
    met = all(float(str(face[f"{name}_ratio"])) < TARGET for name in ("min", "median"))
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
