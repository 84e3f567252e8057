"""What `keyed` is given."""

from __future__ import annotations

import pytest

from shove_actors import TopologyError
from shove_actors.messaging import SequenceFailure, TopologyBuilder


def test_none_is_not_a_way_to_leave_it_out() -> None:
    builder = TopologyBuilder("q").sequenced(SequenceFailure.SKIP).hold_queue(1).dlq()
    with pytest.raises(TopologyError, match=r"keyed\(None\) on 'q': give a whole number"):
        builder.keyed(None).build()  # type: ignore[arg-type]
    assert builder.keyed(None).keyed(8).build().keyed == 8  # type: ignore[arg-type]
    assert builder.build().keyed is None
