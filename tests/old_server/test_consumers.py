"""The client's consumers on an old server: the tests of the present one that make sense there.

Not here: what nats-server 2.9 does not know (`action`, several filters, pausing, reset, priority
groups, a reason for `term`, metadata), and that a request to a consumer that does not exist is
answered at once: there, only its missing heartbeats tell.
"""

from __future__ import annotations

from tests.jetstream.test_c_cancelling import (
    test_c33_a_cancel_every_half_millisecond as test_c33_a_cancel_every_half_millisecond,
)
from tests.jetstream.test_c_fetch import (
    test_a_lost_connection_ends_a_fetch as test_a_lost_connection_ends_a_fetch,
)
from tests.jetstream.test_c_fetch import (
    test_c10_full_batch_is_over_at_once as test_c10_full_batch_is_over_at_once,
)
from tests.jetstream.test_c_fetch import test_c10_short_batch as test_c10_short_batch
from tests.jetstream.test_c_fetch import test_c11_bytes as test_c11_bytes
from tests.jetstream.test_c_fetch import test_c11_no_wait as test_c11_no_wait
from tests.jetstream.test_c_fetch import test_c12_deleted_meanwhile as test_c12_deleted_meanwhile
from tests.jetstream.test_c_fetch import test_c13_heartbeat as test_c13_heartbeat
from tests.jetstream.test_c_messages import test_bytes as test_bytes
from tests.jetstream.test_c_messages import test_c14_pipelining as test_c14_pipelining
from tests.jetstream.test_c_messages import test_c15_restart as test_c15_restart
from tests.jetstream.test_c_messages import test_c16_missed_heartbeats as test_c16_missed_heartbeats
from tests.jetstream.test_c_messages import test_c17_closed_connection as test_c17_closed_connection
from tests.jetstream.test_c_messages import (
    test_c17_deleted_while_reading as test_c17_deleted_while_reading,
)
from tests.jetstream.test_c_messages import test_c18_drain as test_c18_drain
from tests.jetstream.test_c_messages import test_c18_stop as test_c18_stop
from tests.jetstream.test_c_messages import test_c18_stop_after as test_c18_stop_after
from tests.jetstream.test_c_messages import test_c19_sharing as test_c19_sharing
from tests.jetstream.test_c_ordered import test_c22_consume as test_c22_consume
from tests.jetstream.test_c_ordered import (
    test_c22_deleted_and_restarted as test_c22_deleted_and_restarted,
)
from tests.jetstream.test_c_push import test_c20_a_group_shares as test_c20_a_group_shares
from tests.jetstream.test_c_push import test_c20_flow_control as test_c20_flow_control
from tests.jetstream.test_c_settling import test_c23_in_progress as test_c23_in_progress
from tests.jetstream.test_c_settling import test_c23_nak_with_a_delay as test_c23_nak_with_a_delay
from tests.jetstream.test_c_settling import test_c23_once as test_c23_once
