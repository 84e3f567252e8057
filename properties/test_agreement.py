"""The pure model, the memory backend and NATS agree about every program without bad luck."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from agreement import Model, Publish, Release, Start, Step, Stop, difference, on_memory, on_nats
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shove_actors import SequenceFailure

# Waits for real leases and elections; `pytest -m slow` (CI does).
pytestmark = pytest.mark.slow

EXAMPLES = {"dev": 4, "ci": 30, "deep": 1000}[os.environ.get("HYPOTHESIS_PROFILE", "dev")]
POLICIES = [None, SequenceFailure.SKIP, SequenceFailure.FAIL_ALL]
KEYS = ("a", "b", "c")


@st.composite
def programs(draw: st.DrawFn, policy: SequenceFailure | None) -> list[Step]:
    answers = st.lists(
        st.sampled_from(["reject", "retry", "raise", "defer", "ack"]), max_size=4
    ).map(tuple)
    kinds = ["publish", "publish", "publish", "again", "start", "stop"]
    if policy is SequenceFailure.FAIL_ALL:
        kinds += ["release", "release"]
    program: list[Step] = []
    published: list[Publish] = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=25)):
        if kind == "publish":
            key = draw(st.sampled_from(KEYS))
            published.append(Publish(f"m{len(published)}", key, draw(answers)))
            program.append(published[-1])
        elif kind == "again":
            if published:
                program.append(draw(st.sampled_from(published)))
        elif kind == "release":
            program.append(Release(draw(st.sampled_from(KEYS)), draw(st.booleans())))
        else:
            program.append(Start() if kind == "start" else Stop())
    return program


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("shove_actors")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


_SETTINGS = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("policy", POLICIES)
def test_model_and_memory_agree(policy: SequenceFailure | None) -> None:
    @settings(_SETTINGS, max_examples=EXAMPLES * 3)
    @given(program=programs(policy))
    def agree(program: list[Step]) -> None:
        expected = Model(policy).run(program)
        assert not (found := difference(program, expected, on_memory(policy, program), "memory")), (
            found
        )

    agree()


@pytest.mark.parametrize("policy", POLICIES)
def test_all_three_agree(policy: SequenceFailure | None, nats_server: Any) -> None:
    @settings(_SETTINGS)
    @given(program=programs(policy))
    def agree(program: list[Step]) -> None:
        expected = Model(policy).run(program)
        for who, seen in (
            ("memory", on_memory(policy, program)),
            ("NATS", on_nats(policy, program, nats_server.url)),
        ):
            found = difference(program, expected, seen, who)
            assert not found, found

    agree()
