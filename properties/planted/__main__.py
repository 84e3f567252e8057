"""`python -m properties.planted`: see the package."""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from ._catalogue import DEFECTS
from ._defect import planted
from ._machines import MACHINES, TESTS, Noticed, run, run_tests

PROFILES = ("dev", "ci", "deep")
CONTROL = "control"
#: Real seconds without any result: then something hangs.
PATIENCE_S = 1800.0

_HEAD = ("defect", "machine", "noticed", "examples", "steps", "seconds")
_PLAIN = "{:<34} {:<11} {:<9} {:>8} {:>6} {:>8}"
_MARKDOWN = "| `{}` | {} | {} | {} | {} | {} |"


class Task(NamedTuple):
    """A defect, or the control, and who is to be asked in turn."""

    name: str
    machines: tuple[str, ...]


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
    options = parser.parse_args(argv)
    if options.list:
        for defect in DEFECTS.values():
            print(f"{defect.name:<34} {defect.wrong}")
        return 0
    names: list[str] = options.only or [*DEFECTS, CONTROL]
    unknown = [name for name in names if name not in DEFECTS and name != CONTROL]
    if unknown:
        parser.error(f"no such defect: {', '.join(unknown)} (see --list)")
    tasks: list[Task] = []
    for name in names:
        if name == CONTROL:
            # One process each: they take long, since they go on to the end.
            tasks += [Task(CONTROL, (machine,)) for machine in options.machine or MACHINES]
        else:
            tasks.append(Task(name, _machines_for(name, options.machine)))
    return _run_all(tasks, options.profile, options.jobs, options.markdown)


def _machines_for(name: str, wanted: Sequence[str] | None) -> tuple[str, ...]:
    machines = DEFECTS[name].machines
    if not wanted:
        return machines
    return tuple(machine for machine in machines if machine in wanted) or tuple(wanted)


def _run_here(profile: str, task: Task) -> tuple[Task, str, Noticed | None]:
    """The first of these machines that notices. In a process of its own: nothing is left behind."""
    # A failure is told by what is returned, and Hypothesis prints it all the same.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for machine in task.machines:
            try:
                with contextlib.ExitStack() as stack:
                    if task.name != CONTROL:
                        stack.enter_context(planted(DEFECTS[task.name]))
                    noticed = _tested(task) if machine == TESTS else run(machine, profile)
            except Exception as exc:
                failed = "".join(traceback.format_exception(exc))
                return task, machine, Noticed("broken", failed, 0, 0, 0.0)
            if noticed is not None:
                return task, machine, noticed
    return task, ", ".join(task.machines), None


def _tested(task: Task) -> Noticed | None:
    """By its named tests, in a process that no machine has used: pytest would not start there."""
    if task.machines == (TESTS,):
        return run_tests(_tests_of(task.name))
    began = time.perf_counter()
    command = [sys.executable, "-m", "properties.planted", "--only", task.name, "--machine", TESTS]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE_S)
    said = ", ".join(_tests_of(task.name))
    return None if done.returncode else Noticed(TESTS, said, 1, 0, time.perf_counter() - began)


def _tests_of(name: str) -> list[str]:
    asked = DEFECTS.values() if name == CONTROL else [DEFECTS[name]]
    return sorted({test for defect in asked for test in defect.tests})


def _run_all(tasks: Sequence[Task], profile: str, jobs: int, markdown: bool) -> int:
    began = time.perf_counter()
    bad: list[str] = []
    line = _MARKDOWN if markdown else _PLAIN
    print(line.replace("`", "").format(*_HEAD), flush=True)
    if markdown:
        print("|---" * len(_HEAD) + "|")
    # Forked, so that the imports are paid for once; and a new process for each task.
    context = multiprocessing.get_context("fork")
    with context.Pool(max(1, jobs), maxtasksperchild=1) as pool:
        answers = pool.imap_unordered(partial(_run_here, profile), tasks)
        for _ in tasks:
            task, machine, found = answers.next(PATIENCE_S)
            said = found.said if found is not None else "not noticed"
            fine = _as_expected(task, found)
            print(line.format(task.name, machine, *_cells(found)), flush=True)
            if not fine:
                bad.append(task.name)
                print("\n".join(f"    {each}" for each in said.splitlines()[:24]), flush=True)
    print(f"{len(tasks)} runs in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    if bad:
        print(f"not as it should be: {', '.join(bad)}", file=sys.stderr)
    return 1 if bad else 0


def _cells(found: Noticed | None) -> tuple[str, ...]:
    if found is None:
        return "nobody", "-", "-", "-"
    return found.by, str(found.examples), str(found.steps), f"{found.seconds:.1f}"


def _as_expected(task: Task, found: Noticed | None) -> bool:
    if task.name == CONTROL or found is None:
        return task.name == CONTROL and found is None
    # What a property of pure functions says is as good as what a machine does.
    return found.by == "property" or found.by in DEFECTS[task.name].by.split()


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings is part of what has to repeat.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "properties.planted", *sys.argv[1:]])
    raise SystemExit(main())
