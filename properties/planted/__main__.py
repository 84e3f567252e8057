"""`python -m properties.planted`: see the package."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from ._catalogue import DEFECTS
from ._defect import planted
from ._machines import FOLDER, MACHINES, run

PROFILES = ("dev", "ci", "deep")
CONTROL = "control"
#: Real seconds for one machine. A run that takes longer counts as not noticed.
PATIENCE_S = 600.0


def main(argv: Sequence[str] | None = None) -> int:
    """1 if a defect is not noticed, or the run without any finds something."""
    parser = argparse.ArgumentParser(prog="python -m properties.planted", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help=f"a defect, or {CONTROL!r}")
    parser.add_argument(
        "--machine", action="append", choices=MACHINES, help="only these; may be repeated"
    )
    parser.add_argument("--profile", choices=PROFILES, default="ci")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default 2)")
    parser.add_argument("--list", action="store_true", help="print the defects, and end")
    parser.add_argument("--markdown", action="store_true", help="the table as in the documentation")
    parser.add_argument("--run", nargs=2, metavar=("NAME", "MACHINE"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.run:
        name, machine = options.run
        return _run_here(name, machine, options.profile)
    if options.list:
        for defect in DEFECTS.values():
            print(f"{defect.name:<34} {defect.wrong}")
        return 0
    names: list[str] = options.only or [*DEFECTS, CONTROL]
    unknown = [name for name in names if name not in DEFECTS and name != CONTROL]
    if unknown:
        parser.error(f"no such defect: {', '.join(unknown)} (see --list)")
    tasks: list[tuple[str, tuple[str, ...]]] = []
    for name in names:
        if name == CONTROL:
            # One process each: they take long, since they go on to the end.
            tasks += [(CONTROL, (machine,)) for machine in options.machine or MACHINES]
        else:
            tasks.append((name, _machines_for(name, options.machine)))
    return _run_all(tasks, options.profile, options.jobs, options.markdown)


def _machines_for(name: str, wanted: Sequence[str] | None) -> tuple[str, ...]:
    machines = DEFECTS[name].machines
    if not wanted:
        return machines
    return tuple(machine for machine in machines if machine in wanted) or tuple(wanted)


def _run_here(name: str, machine: str, profile: str) -> int:
    """In a process of its own: nothing of a defect is left behind, whatever it does."""
    if name == CONTROL:
        noticed = run(machine, profile)
    else:
        with planted(DEFECTS[name]):
            noticed = run(machine, profile)
    print(json.dumps(None if noticed is None else asdict(noticed)))
    return 0


def _run_all(
    tasks: Sequence[tuple[str, tuple[str, ...]]], profile: str, jobs: int, markdown: bool
) -> int:
    began = time.perf_counter()
    bad: list[str] = []
    line = (
        "| `{}` | {} | {} | {} | {} | {} |" if markdown else "{:<34} {:<11} {:<9} {:>8} {:>6} {:>8}"
    )
    head = ("defect", "machine", "noticed", "examples", "steps", "seconds")
    print(line.replace("`", "").format(*head), flush=True)
    if markdown:
        print("|---|---|---|---|---|---|")
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        results = pool.map(lambda task: _first_notice(task[0], task[1], profile), tasks)
        for (name, machines), (machine, found) in zip(tasks, results, strict=True):
            if "crash" in found:
                row = (name, machine, "-", "-", "-", "-")
                fine, said = False, str(found["crash"])
            elif found:
                by = str(found["by"])
                row = (
                    name,
                    machine,
                    by,
                    str(found["examples"]),
                    str(found["steps"]),
                    f"{found['seconds']:.1f}",
                )
                fine = name != CONTROL and by in _expected(name)
                said = str(found["said"])
            else:
                row = (name, ", ".join(machines), "nobody", "-", "-", "-")
                fine, said = name == CONTROL, "not noticed"
            print(line.format(*row), flush=True)
            if not fine:
                bad.append(name)
                print("\n".join(f"    {each}" for each in said.splitlines()[:24]), flush=True)
    print(f"{len(tasks)} runs in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    if bad:
        print(f"not as it should be: {', '.join(bad)}", file=sys.stderr)
    return 1 if bad else 0


def _expected(name: str) -> tuple[str, ...]:
    by = DEFECTS[name].by
    return (*by, "property") if by.isupper() else (by,)


def _first_notice(
    name: str, machines: Sequence[str], profile: str
) -> tuple[str, dict[str, object]]:
    """The first of these machines that notices, and what; empty if none does."""
    for machine in machines:
        found = _in_process(name, machine, profile)
        if found:
            return machine, found
    return machines[-1], {}


def _in_process(name: str, machine: str, profile: str) -> dict[str, object]:
    command = [sys.executable, "-m", "properties.planted", "--profile", profile, "--run"]
    # The order of sets of strings is part of what has to repeat.
    environment = {**os.environ, "PYTHONHASHSEED": "0", "HYPOTHESIS_PROFILE": profile}
    try:
        done = subprocess.run(
            [*command, name, machine],
            cwd=FOLDER.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return {"crash": f"not over after {PATIENCE_S:g} s"}
    if done.returncode:
        return {"crash": "\n".join(done.stderr.splitlines()[-24:])}
    found: dict[str, object] | None = json.loads(done.stdout.splitlines()[-1])
    return found or {}


if __name__ == "__main__":
    raise SystemExit(main())
