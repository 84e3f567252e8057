"""Who can notice a defect: a name, and how to run it within the bounds of a profile.

What runs are the machines and properties of this folder as they are, derandomized and without
shrinking: the first failure ends it.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import HypothesisException
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

FOLDER = Path(__file__).resolve().parent.parent

#: What notices where no machine can.
TESTS = "test"
#: Machine classes and properties by the name that defects use.
MACHINES: dict[str, tuple[str, str]] = {
    "plain": ("test_lane_machine", "PlainMachine"),
    "serial": ("test_lane_machine", "SerialMachine"),
    "skip": ("test_lane_machine", "SkipMachine"),
    "fail_all": ("test_lane_machine", "FailAllMachine"),
    "keyed": ("test_lane_machine", "KeyedMachine"),
    "plan": ("test_supervisor_machine", "PlanAlone"),
    "supervisor": ("test_supervisor_machine", "PlanAndTrio"),
    "routing": ("test_routing_table", ""),
    "autoscaler": ("test_autoscaler", ""),
    # Named tests of the defect; see `run_tests`.
    TESTS: ("", ""),
}
#: A property costs a few milliseconds per example.
_PROPERTY_EXAMPLES = {"dev": 100, "ci": 1000, "deep": 5000}
#: A batch costs real time in proportion to its size, and finds little more.
_BATCH = {"dev": 200, "ci": 100, "deep": 1500}


@dataclass
class Noticed:
    """By which invariant, what it said, and how long that took."""

    by: str
    said: str
    examples: int
    steps: int
    seconds: float


class _Found(BaseException):
    """Ends the run of a machine at its first failure, past Hypothesis."""

    def __init__(self, noticed: Noticed) -> None:
        super().__init__()
        self.noticed = noticed


class _Count:
    def __init__(self) -> None:
        self.examples = 0
        self.steps = 0
        self.began = time.perf_counter()

    def noticed(self, error: BaseException) -> Noticed:
        said = str(error) or type(error).__name__
        return Noticed(
            invariant_of(error), said, self.examples, self.steps, time.perf_counter() - self.began
        )


def invariant_of(error: BaseException) -> str:
    """The letter that a violation begins with; else what kind of error it is."""
    match = re.match(r"\(([A-Z])\) ", str(error))
    if match is not None:
        return match[1]
    return "end" if isinstance(error, AssertionError) else type(error).__name__


def run(name: str, profile: str) -> Noticed | None:
    """None: it is content. To be called once per process."""
    os.environ["HYPOTHESIS_PROFILE"] = profile
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    title, found = MACHINES[name]
    module = importlib.import_module(title)
    count = _Count()
    if not found:
        return _run_properties(module, profile, count)
    machine = getattr(module, found)
    bounds = machine.TestCase.settings
    examples, steps = bounds.max_examples, bounds.stateful_step_count
    if title != "test_lane_machine":
        examples, steps = _PROPERTY_EXAMPLES[profile], 50
    return _run_machine(machine, examples, steps, profile, count)


def run_tests(names: Sequence[str]) -> Noticed | None:
    """Tests of `tests/` by their node ids, in this process. None: all of them pass."""
    count = _Count()
    count.examples = len(names)
    root = FOLDER.parent
    # Asserts as they are: what they are made of is imported already.
    options = ("-o", "addopts=", "--assert=plain", "-qx", "-p", "no:cacheprovider")
    code = pytest.main([*options, f"--rootdir={root}", *(str(root / name) for name in names)])
    if code == pytest.ExitCode.OK:
        return None
    if code != pytest.ExitCode.TESTS_FAILED:
        raise RuntimeError(f"pytest ended with {code!r} for {', '.join(names)}")
    return Noticed(TESTS, ", ".join(names), count.examples, 0, time.perf_counter() - count.began)


def _settings(examples: int, steps: int = 50) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )


def _run_machine(
    machine: type[RuleBasedStateMachine], examples: int, steps: int, profile: str, count: _Count
) -> Noticed | None:
    class Watched(machine):  # type: ignore[valid-type,misc]
        if hasattr(machine, "batch"):
            batch = _BATCH[profile]

        def __init__(self) -> None:
            super().__init__()
            count.examples += 1
            count.steps = 0

        def check_invariants(self, *args: Any, **kwargs: Any) -> None:
            count.steps += 1
            super().check_invariants(*args, **kwargs)

        def teardown(self) -> None:
            # Hypothesis calls this whatever has happened; what has is on its way out.
            error = sys.exc_info()[1]
            try:
                super().teardown()
            except Exception as late:
                error = error if isinstance(error, Exception) else late
            if isinstance(error, Exception) and not isinstance(error, HypothesisException):
                raise _Found(count.noticed(_first(error)))

    try:
        run_state_machine_as_test(Watched, settings=_settings(examples, steps))
    except _Found as found:
        return found.noticed
    return None


def _first(error: BaseException) -> BaseException:
    """Of a group (Hypothesis adds its own to it) the failure that counts."""
    inner = getattr(error, "exceptions", None)
    return _first(inner[0]) if inner else error


def _run_properties(module: Any, profile: str, count: _Count) -> Noticed | None:
    for test in _properties(module):
        inner = test.hypothesis.inner_test

        def counted(*args: Any, inner: Callable[..., Any] = inner, **kwargs: Any) -> Any:
            count.examples += 1
            return inner(*args, **kwargs)

        test.hypothesis.inner_test = counted
        try:
            _settings(_PROPERTY_EXAMPLES[profile])(test)()
        except Exception as error:
            found = count.noticed(_first(error))
            found.by, found.said = "property", test.__name__
            return found
    return None


def _properties(module: Any) -> Iterator[Any]:
    for name, value in vars(module).items():
        if name.startswith("test_") and hasattr(value, "hypothesis"):
            yield value
