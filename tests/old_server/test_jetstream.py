"""The JetStream client on an old server: the same checks, and what is said of what it lacks.

The tests are those of tests/jetstream; here their `server` is the old one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shove_actors._errors import FeatureUnavailable, ServerTooOld
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import PubMessage, StreamSource, SubjectTransform, connect
from tests.jetstream.kit import fast
from tests.jetstream.test_c_connection import (  # noqa: F401
    test_c02_events_as_an_iterator,
    test_c02_handlers,
    test_draining,
    test_the_first_connect_is_retried_on_request,
)
from tests.jetstream.test_c_context import (  # noqa: F401
    test_an_api_that_was_imported_from_another_account,
    test_hooks_see_every_api_request,
)
from tests.jetstream.test_c_legacy import (  # noqa: F401
    test_c32_a_callback_may_acknowledge_itself,
    test_c32_a_callback_that_raises,
    test_c32_an_existing_consumer_must_be_what_is_asked_for,
    test_c32_consumers,
    test_c32_drain_processes_what_was_sent,
    test_c32_durable_sync,
    test_c32_ephemeral_callback,
    test_c32_ordered,
    test_c32_publishing,
    test_c32_pull,
    test_c32_pull_and_a_lost_connection,
    test_c32_pull_from_an_existing_one,
    test_c32_queue,
    test_c32_streams,
    test_c32_what_existed_is_left,
    test_c32_where_it_starts,
    test_c32_which_stream_and_which_consumer,
)
from tests.jetstream.test_c_publish import (  # noqa: F401
    test_a_message_object,
    test_c24_a_stream_that_comes_in_time,
    test_c24_acknowledged,
    test_c24_expectations,
    test_c24_headers_of_the_caller_are_left_alone,
    test_c24_no_stream,
    test_c24_the_same_id_is_stored_once,
    test_no_answer_in_time,
    test_nothing_is_sent_for_what_is_wrong,
    test_somebody_else_answers,
    test_without_a_connection,
)
from tests.jetstream.test_c_publish_async import (  # noqa: F401
    test_a_stream_that_comes_in_time,
    test_c25_a_cancelled_call,
    test_c25_a_server_that_dies_with_one_in_flight,
    test_c25_all_are_stored,
    test_c25_room_is_found_by_those_who_wait,
    test_c25_stalled,
    test_c25_what_is_not_sent_uses_nothing_up,
    test_no_stream,
    test_refused_by_the_server,
    test_the_end_of_the_context,
    test_time_outs_of_acknowledgements,
)
from tests.jetstream.test_c_streams import (  # noqa: F401
    direct,
    test_c04_create_and_update,
    test_c04_create_or_update,
    test_c04_delete,
    test_c04_two_create_or_update_at_once,
    test_c05_a_list_is_also_a_channel,
    test_c05_lists_are_complete,
    test_c06_a_stream_that_forbids_deleting,
    test_c06_get_and_delete,
    test_c07_before_and_keep_exclude_each_other,
    test_c07_purge,
    test_info_with_details,
)

Fresh = Callable[[], str]


@pytest.mark.parametrize(
    "setting",
    [
        {"subject_transform": SubjectTransform(src=">", dest="x.>")},
        {"compression": "s2"},
        {"first_seq": 7},
        {"allow_msg_ttl": True},
        {"allow_atomic": True},
        {"allow_msg_schedules": True},
        {"allow_msg_counter": True},
        {
            "sources": (
                StreamSource(name="s", subject_transforms=(SubjectTransform(src="a", dest="b"),)),
            )
        },
    ],
    ids=lambda setting: next(iter(setting)),
)
async def test_what_an_old_server_leaves_out(
    server: ServerProcess, fresh_queue: Fresh, setting: dict[str, object]
) -> None:
    """It says nothing; the stream exists, without what it was made for."""
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        with pytest.raises(ServerTooOld, match=r"nats-server 2\.1"):
            await js.create_stream(name=name, **setting)  # type: ignore[arg-type]
        await js.stream(name)


async def test_a_batch_would_be_stored_one_by_one(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[name])
        for count in (1, 3):
            with pytest.raises(FeatureUnavailable, match=r"needs nats-server 2\.12"):
                await js.publish_batch([PubMessage(subject=name)] * count)
        assert (await stream.info()).messages == 0
