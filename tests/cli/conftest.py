from __future__ import annotations

import pytest

from .kit import Cli


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in ("NATS_URL", "NATS_CREDS", "NATS_CA", "_SHOVE_ACTORS_COMPLETE"):
        monkeypatch.delenv(name, raising=False)
    return Cli(capsys)
