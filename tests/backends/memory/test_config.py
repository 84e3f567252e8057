"""MemoryConfig: validation, and the server it keeps."""

from __future__ import annotations

import pytest

from shove_actors._errors import ConfigError
from shove_actors.backends.memory import MemoryConfig, MemoryServer


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("max_payload", 0),
        ("ack_timeout", 0.0),
        ("ack_timeout", float("inf")),
        ("ack_timeout", float("nan")),
    ],
)
def test_refusals_name_the_field(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        MemoryConfig(**{field: value})  # type: ignore[arg-type]


def test_a_shared_server_is_kept() -> None:
    server = MemoryServer()
    assert MemoryConfig(server=server).server is server


def test_without_a_server_it_makes_its_own() -> None:
    one, other = MemoryConfig(max_payload=5_000_000), MemoryConfig()
    assert one.server is one.server
    assert one.server is not other.server
    assert one.server.max_payload == 5_000_000
    assert one.create_backend().max_payload == 5_000_000


def test_frozen() -> None:
    with pytest.raises(AttributeError):
        MemoryConfig().name = "x"  # type: ignore[misc]
