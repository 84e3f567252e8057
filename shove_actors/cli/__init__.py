"""The command line: `shove-actors demo`, `shove-actors tree`, `shove-actors --version`."""

from __future__ import annotations

from ._app import main as main

__all__ = ["main"]
