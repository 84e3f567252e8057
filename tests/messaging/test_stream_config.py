"""NatsStreamConfig: defaults and refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shove_actors._errors import TopologyError
from shove_actors.messaging import NatsStreamConfig, Retention, Storage


def test_defaults() -> None:
    config = NatsStreamConfig()
    assert config.retention is Retention.WORK_QUEUE
    assert config.storage is Storage.FILE
    assert config.num_replicas == 1
    assert config.max_age is config.max_bytes is config.max_messages is None
    assert config.duplicate_window_s == 120.0


def test_the_duplicate_window_never_exceeds_the_age() -> None:
    """The server refuses a window beyond max_age, with words that name neither setting."""
    assert NatsStreamConfig(max_age=30).duplicate_window_s == 30
    assert NatsStreamConfig(max_age=600).duplicate_window_s == 120.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_age", 0),
        ("max_age", -1),
        ("max_age", 0.05),
        ("max_age", math.nan),
        ("max_age", math.inf),
        ("max_age", 1e12),
        ("max_age", True),
        ("max_age", "600"),
        ("max_bytes", 0),
        ("max_bytes", -1),
        ("max_bytes", 1.5),
        ("max_bytes", 2**63),
        ("max_messages", 0),
        ("max_messages", True),
        ("num_replicas", 0),
        ("num_replicas", 6),
        ("num_replicas", None),
        ("retention", "limits"),
        ("storage", "file"),
    ],
)
def test_refusals_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(TopologyError, match=field):
        NatsStreamConfig(**{field: value})


def test_it_is_keyword_only_and_frozen() -> None:
    with pytest.raises(TypeError):
        NatsStreamConfig(Retention.LIMITS)  # type: ignore[misc]
    with pytest.raises(AttributeError):
        NatsStreamConfig().num_replicas = 3  # type: ignore[misc]
