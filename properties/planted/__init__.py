"""Planted bugs: whether the machines notice, when something is really wrong.

A property that never fails proves little unless it is known to fail. Here are defects, one at a
time, put into the real runtime for the length of a run; for each, the machine that should notice
must do so within the bounds of the `ci` profile. A defect that is not noticed means that a machine
lacks a rule, a fault or an observation.

    python -m properties.planted                          all of them, and a run without any
    python -m properties.planted --only mover-moves-early one of them; may be repeated
    python -m properties.planted --list                   what there is

How they are planted. `Edit` takes the source of one function, replaces a piece of it that must
occur exactly once, and puts the result in the function's place; production code knows nothing of
it. So a defect is what it would be as a line in a diff, and one whose line is gone fails loudly.
"""

from __future__ import annotations

from ._catalogue import DEFECTS as DEFECTS
from ._defect import Defect as Defect
from ._defect import Edit as Edit
from ._defect import planted as planted

__all__ = ["DEFECTS", "Defect", "Edit", "planted"]
