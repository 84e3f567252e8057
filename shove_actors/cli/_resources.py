"""Processor time and memory of a process; None where the system does not say it as Linux does."""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Final

#: Seconds between two looks at the memory.
LOOK_S: Final = 0.1


def cpu_seconds(pid: int | None = None) -> float | None:
    """Processor time that a process (None: this one) has used so far."""
    if pid is None:
        return time.process_time()
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            # The name of the program may hold blanks and brackets: what follows the last one.
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def resident_bytes(pid: int | None = None) -> int | None:
    """Memory of a process (None: this one) now."""
    try:
        with open(f"/proc/{pid if pid is not None else 'self'}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        if pid is not None:
            return None
    # The most it ever had; better than nothing.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
