"""Writing to standard output, whoever reads it and whatever characters that has.

Imports next to nothing: what completes a word in a shell loads it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TextIO

from shove_actors._errors import ShoveError


class Interrupted(ShoveError):
    """SIGINT or SIGTERM ended the run before it was done."""


class OutputClosed(ShoveError):
    """Whoever read the output has gone (`| head`). The run ends in order, and says nothing."""


def write_lines(out: TextIO | None, lines: Iterable[str]) -> None:
    """Writes and flushes. What `out` has no character for is escaped, never an error.

    Raises `OutputClosed` when nobody reads any more, or nobody ever did (`>&-`).
    """
    if out is None:
        raise OutputClosed("there is no standard output")
    text = "".join(f"{line}\n" for line in lines)
    if out.encoding:
        text = text.encode(out.encoding, "backslashreplace").decode(out.encoding)
    try:
        out.write(text)
        out.flush()
    except BrokenPipeError:
        raise OutputClosed("nobody reads the output any more") from None


def ascii_only(out: TextIO | None) -> bool:
    """Whether trees must be drawn without box characters there."""
    if out is None:
        return True
    try:
        "│├└─".encode(out.encoding or "utf-8")
    except UnicodeEncodeError:
        return True
    return False


def drop_output(out: TextIO) -> None:
    """What is still buffered for a reader that has gone goes nowhere.

    Otherwise the interpreter tries once more on its way out, and complains.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, out.fileno())
    os.close(nowhere)
