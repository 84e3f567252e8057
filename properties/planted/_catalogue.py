"""All defects, in the order of the table."""

from __future__ import annotations

from ._budgets import BUDGETS
from ._defect import Defect
from ._keys import KEYS
from ._lanes import LANES
from ._publishing import PUBLISHING
from ._settling import SETTLING
from ._supervision import SUPERVISION

DEFECTS: dict[str, Defect] = {
    defect.name: defect
    for defect in (*LANES, *SETTLING, *BUDGETS, *KEYS, *PUBLISHING, *SUPERVISION)
}
