"""`python -m shove_actors`; also the `shove-actors` command."""

from __future__ import annotations

import sys

from .cli import main as main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
