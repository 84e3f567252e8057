"""Key-value buckets and object stores on an old server: the acceptance checks that make sense.

Not among them: life spans of single keys, markers, sources (2.10, 2.11); what is tried all the same
says which version it needs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shove_actors._errors import FeatureUnavailable, MarkerTtlNotSupported
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import connect
from tests.jetstream.kit import fast
from tests.jetstream.test_c_kv import (  # noqa: F401
    test_c27_an_older_bucket_is_brought_up_to_date,
    test_c27_compare_and_set,
    test_c27_deleted_keys_are_removed,
    test_c27_values,
    test_c27_wrong_keys_and_values,
)
from tests.jetstream.test_c_kv_lost import (  # noqa: F401
    test_c29_a_bucket_that_is_deleted,
    test_c29_a_consumer_that_is_deleted,
    test_c29_a_restart_of_the_server,
    test_c29_new_ones_are_not_lost_by_a_restart,
)
from tests.jetstream.test_c_kv_watch import (  # noqa: F401
    test_c28_a_slow_reader_gets_everything,
    test_c28_a_watcher_is_a_receive_channel,
    test_c28_cancelled_reads_lose_nothing,
    test_c28_entries_count_down,
    test_c28_nothing_is_left_behind,
    test_c28_options,
    test_c28_the_initial_state_at_once,
    test_c28_watch,
)
from tests.jetstream.test_c_objects import (  # noqa: F401
    test_c30_deleting,
    test_c30_descriptions,
    test_c30_links,
    test_c30_overwriting_removes_the_old_chunks,
    test_c30_round_trip,
    test_c30_sealed,
    test_c30_two_writers_leave_one_object,
)
from tests.jetstream.test_c_objects_lost import (  # noqa: F401
    test_c30_a_reader_that_leaves_early,
    test_c30_a_restart_while_reading,
    test_c30_an_interrupted_put_leaves_nothing,
    test_c30_missing_chunks_are_an_error,
)
from tests.jetstream.test_c_objects_watch import (  # noqa: F401
    test_c31_a_restart_of_the_server,
    test_c31_options,
    test_c31_watch,
)

Fresh = Callable[[], str]


async def test_several_patterns_need_a_newer_one(server: ServerProcess, fresh_queue: Fresh) -> None:
    """It would deliver everything, without a word."""
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue())
        for key in ("a", "b", "c"):
            await kv.put(key, b"")
        with pytest.raises(FeatureUnavailable, match=r"2\.10"):
            await kv.keys("a", "b")
        assert await kv.keys("a") == ["a"]


async def test_markers_with_a_life_span_need_a_newer_one(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url)) as js:
        with pytest.raises(MarkerTtlNotSupported, match=r"2\.11"):
            await js.create_kv(bucket=fresh_queue(), limit_marker_ttl=5.0)
