"""Credentials, and how to tell that they stay hidden."""

from __future__ import annotations

import pytest

from shove_actors._errors import ConfigError
from shove_actors.jetstream._config import NatsConfig


def refusal(config: NatsConfig) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        config.validate()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return caught.value
