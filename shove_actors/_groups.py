"""Nurseries wrap what they raise; callers are promised the exception itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup


@contextmanager
def unwrapped(layers: int) -> Iterator[None]:
    """A group of one exception leaves the block as that exception, through `layers` groups.

    `layers` is the number of nurseries in the block: a group that the user raised stays a group.
    The exception keeps its own context, so that no traceback tells of our nurseries.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        for _ in range(layers):
            if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
        if error is group:
            raise
        context = error.__context__
        try:
            raise error
        finally:
            error.__context__ = context
