"""Which errors are a crash, and which must go through."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from shove_actors.actors import Crashed, Killed, Returned, Stopped
from shove_actors.actors._exit import describe, split_error

from .kit import leaves

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup, ExceptionGroup

_leaf = st.sampled_from([ValueError, OSError, KeyboardInterrupt, SystemExit]).map(lambda t: t())
_errors = st.recursive(
    _leaf,
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(
        lambda parts: BaseExceptionGroup("group", parts)
    ),
    max_leaves=8,
)


@given(error=_errors)
def test_split_loses_nothing(error: BaseException) -> None:
    ordinary, rest = split_error(error)
    found = {id(e) for part in (ordinary, rest) if part is not None for e in leaves(part)}
    assert found == {id(e) for e in leaves(error)}
    if ordinary is not None:
        assert all(isinstance(e, Exception) for e in leaves(ordinary))
    assert (rest is None) is all(isinstance(e, Exception) for e in leaves(error))


def test_a_group_of_ordinary_errors_is_itself() -> None:
    group = ExceptionGroup("g", [ValueError(), OSError()])
    assert split_error(group) == (group, None)


def test_descriptions_name_types_not_texts() -> None:
    assert describe(Crashed(error=ValueError("payload"))) == "crashed with ValueError"
    assert len({describe(e) for e in (Returned(), Stopped(), Killed())}) == 3
