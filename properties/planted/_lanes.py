"""Who has a message, for how long, and when it is given back."""

from __future__ import annotations

from shove_actors.backends import KeyedLane, margins
from shove_actors.backends.memory._backend import MemoryBackend
from shove_actors.backends.memory._durable import Durable
from shove_actors.backends.memory._lane import MemoryLane
from shove_actors.runtime import _lease
from shove_actors.runtime._group import ConsumerGroup
from shove_actors.runtime._lease import LeaseKeeper
from shove_actors.runtime._registration import Registration
from shove_actors.runtime._scaled_pool import ScaledPool
from shove_actors.runtime._worker import Worker

from ._defect import Defect, Swap, edit

_OWN_LEASE = "if delivery.lost or age > self._spec.ack_wait_s * LEASE_SHARE or not self._connected:"

LANES = (
    Defect(
        name="two-pending-on-a-shard",
        wrong="A shard's durable lets two messages out at a time.",
        by="O I",
        machines=("skip", "fail_all"),
        plants=(edit(Registration, "lane_specs", ("max_ack_pending=1,", "max_ack_pending=2,")),),
    ),
    Defect(
        name="prefetch-of-two-on-a-lane",
        wrong="A shard's lane prefetches a second message while the first is retried.",
        by="O I",
        machines=("skip", "fail_all"),
        plants=(
            edit(
                Registration,
                "lane_specs",
                ("credit=1,", "credit=2,"),
                ("max_ack_pending=1,", "max_ack_pending=2,"),
            ),
        ),
    ),
    Defect(
        name="wait-not-handed-on",
        wrong="Who takes a keyed shard over tries at once what was to wait.",
        by="B test",
        machines=("keyed", "test"),
        tests=(
            "tests/backends/keyed/test_memory_keyed_lane.py::test_keyed_lane[a_wait_is_handed_on]",
        ),
        plants=(edit(KeyedLane, "arrived", ("if sequence in own.tries:", "if False:")),),
    ),
    Defect(
        name="lease-not-renewed",
        wrong="The lease of a message in hand is never renewed.",
        by="B I",
        machines=("skip", "plain"),
        plants=(edit(LeaseKeeper, "tend", ("lane.renew(delivery)", "pass")),),
    ),
    Defect(
        name="renewal-taken-for-granted",
        wrong="A lease counts as renewed although nothing was sent.",
        by="I",
        machines=("skip", "plain"),
        plants=(edit(LeaseKeeper, "tend", ("lane.renew(delivery)", "delivery.leased_at = now")),),
    ),
    Defect(
        name="lease-margin-zero",
        wrong="A handler that lost its lease is cancelled when the lease ends, not before.",
        by="I test",
        machines=("skip", "test"),
        tests=(
            "tests/testing/test_simulated_harm.py"
            "::test_the_handler_of_a_silent_process_has_ended_before_the_next_begins",
        ),
        plants=(Swap(_lease, "CANCEL_SHARE", 1.0),),
    ),
    Defect(
        name="lost-lease-does-not-cancel",
        wrong="A handler goes on although its lease is lost.",
        by="I",
        machines=("skip", "plain"),
        plants=(edit(LeaseKeeper, "_lose", ("delivery.on_lost()", "pass")),),
    ),
    Defect(
        name="stale-settle",
        wrong="A delivery whose lease is lost is handed back, by sequence, under its new owner.",
        by="I test",
        machines=("plain", "test"),
        tests=(
            "tests/testing/test_simulated_harm.py"
            "::test_what_was_silent_hands_nothing_back_under_its_next_owner",
        ),
        plants=(
            edit(MemoryLane, "_release", (_OWN_LEASE, "if not self._connected:")),
            edit(
                Worker,
                "_interrupted",
                ("self._lane.forget(delivery)", "self._lane.nak(delivery)"),
            ),
        ),
    ),
    Defect(
        name="starts-what-is-lost",
        wrong="A handler is called for a delivery whose lease was lost while it waited.",
        by="I test",
        machines=("serial", "test"),
        tests=(
            "tests/testing/test_simulated_harm.py"
            "::test_what_waits_as_its_lease_is_lost_is_not_begun",
        ),
        plants=(
            edit(
                Worker,
                "_take_until_slow",
                ("if delivery.lost:\n", "if delivery.settled:\n"),
                (
                    "            if is_lost(delivery):\n"
                    "                return self._interrupted(delivery, None)\n"
                    "            if verdict",
                    "            if verdict",
                ),
            ),
        ),
    ),
    Defect(
        name="fence-left-out",
        wrong="What a killed server may have forgotten to have delivered is handled on.",
        by="I test",
        machines=("skip", "test"),
        tests=("tests/testing/test_simulation.py::test_the_simulation_finds_a_missing_fence",),
        plants=(
            edit(
                MemoryLane,
                "link_cut",
                ("self._fence.fence_young(self._held.values())", "pass"),
            ),
        ),
    ),
    Defect(
        name="stuck-settle-keeps-connection",
        wrong="A settle that nobody has read by the end of its lease is left on its way.",
        by="I O test",
        machines=("skip", "fail_all", "test"),
        tests=(
            "tests/testing/test_simulation.py"
            "::test_the_simulation_finds_a_settle_that_is_read_too_late",
        ),
        plants=(edit(MemoryLane, "_guard", ("backend.drop_connection()", "pass")),),
    ),
    Defect(
        name="stale-successor-is-handled",
        wrong="A second delivery of what is settled is handled; nobody asks whose it is.",
        by="O B I test",
        machines=("skip", "fail_all", "test"),
        tests=(
            "tests/backends/memory/test_lane.py"
            "::test_acknowledging_the_old_one_drops_its_successor",
        ),
        plants=(
            edit(
                Worker,
                "_is_ours",
                ("    accounted = ", "    return True\n    accounted = "),
            ),
            edit(
                MemoryLane,
                "_release",
                (
                    "delivery.successor = None\n"
                    "    if self._held.get(delivery.sequence) is delivery:\n"
                    "        del self._held[delivery.sequence]",
                    "successor, delivery.successor = delivery.successor, None\n"
                    "    if self._held.get(delivery.sequence) is delivery:\n"
                    "        del self._held[delivery.sequence]\n"
                    "        if successor is not None:\n"
                    "            self._held[successor.sequence] = successor\n"
                    "            self._buffer.push(successor)",
                ),
            ),
        ),
    ),
    Defect(
        name="lease-shortened-in-use",
        wrong="A process that asks for a shorter ack wait gets it, whoever is at work.",
        by="test",
        machines=("test",),
        tests=(
            "tests/backends/test_memory_conformance.py::"
            "test_conformance[a_shorter_lease_waits_for_those_who_are_at_work]",
        ),
        plants=(edit(Durable, "reconfigure", ("(self.pending or self._requests)", "False")),),
    ),
    Defect(
        name="reads-what-others-unwind-from",
        wrong="A shard is read at once after its server was killed.",
        by="I test",
        machines=("skip", "fail_all", "test"),
        tests=(
            "tests/testing/test_simulated_harm.py"
            "::test_a_killed_server_gives_nothing_away_that_somebody_unwinds_from",
        ),
        plants=(Swap(margins, "RESTART_GRACE_S", 0.0),),
    ),
    Defect(
        name="starts-where-others-unwind",
        wrong="A process that starts reads a shard at once after its server was killed.",
        by="I test",
        machines=("skip", "fail_all", "test"),
        tests=(
            "tests/testing/test_simulated_harm.py"
            "::test_a_process_that_starts_after_a_kill_lets_others_unwind_first",
        ),
        plants=(
            edit(
                MemoryBackend,
                "_durable",
                ("pause_s if durable.silent and used", "pause_s if new and used"),
            ),
        ),
    ),
    Defect(
        name="credit-ignored",
        wrong="A lane asks for more than its credit.",
        by="end test",
        machines=("plain", "serial", "test"),
        tests=(
            "tests/backends/test_memory_conformance.py::"
            "test_conformance[pc006_credit_is_never_exceeded]",
        ),
        plants=(
            edit(
                MemoryLane,
                "_refill",
                (
                    "missing = self._credit - len(self._held) - self._requested",
                    "missing = self._credit - self._requested",
                ),
            ),
            edit(
                MemoryLane,
                "_take",
                (
                    "self._closed or (held is None and len(self._held) >= self._credit)",
                    "self._closed",
                ),
            ),
        ),
    ),
    Defect(
        name="drain-keeps-what-waits",
        wrong="A drain does not give back the messages that no handler has seen.",
        by="end",
        machines=("serial", "plain"),
        plants=(edit(MemoryLane, "close", ("self.nak(delivery)", "pass")),),
    ),
    Defect(
        name="drain-settles-the-interrupted",
        wrong="A message whose handler is interrupted by a stop is acknowledged.",
        by="L",
        machines=("plain", "skip"),
        plants=(
            edit(Worker, "_give_back", ("self._lane.nak(delivery)", "self._lane.ack(delivery)")),
        ),
    ),
    Defect(
        name="handler-outlives-its-group",
        wrong="A stopped group does not wait for its handlers.",
        by="T end",
        machines=("plain", "skip"),
        plants=(
            edit(
                Registration,
                "_work",
                (
                    "nursery.start_soon(self._run, worker, trio.current_time())",
                    "trio.lowlevel.spawn_system_task(self._run, worker, trio.current_time())",
                ),
            ),
        ),
    ),
    Defect(
        name="scaling-down-interrupts",
        wrong="The autoscaler stops consumers in the middle of their handlers.",
        by="B test",
        machines=("serial", "test"),
        tests=(
            "tests/runtime/test_autoscaler.py::test_pc088_nobody_is_stopped_while_all_are_busy",
        ),
        plants=(
            edit(
                ScaledPool,
                "shrink",
                ("and not self._registration.is_busy(index)", ""),
                (
                    "    async with trio.open_nursery()",
                    "    for index, _ in idle:\n"
                    "        for worker in self._registration.consumers[index]:\n"
                    "            worker.kill()\n"
                    "    async with trio.open_nursery()",
                ),
            ),
        ),
    ),
    Defect(
        name="deleted-durable-made-anew-at-once",
        wrong="A shard's durable that was deleted is read again before its old handlers are over.",
        by="I test",
        machines=("skip", "fail_all", "test"),
        tests=(
            "tests/runtime/test_deleted_durable.py"
            "::test_no_second_handler_begins_before_the_first_has_ended",
        ),
        plants=(
            edit(
                MemoryLane,
                "durable_gone",
                ("self._hold_off(self._old_leases(), self.reopen)", "self.reopen()"),
            ),
        ),
    ),
    Defect(
        name="stopped-before-its-turn-times-out",
        wrong="A consumer that is stopped as a message arrives counts it as timed out.",
        by="B test",
        machines=("serial", "skip", "test"),
        tests=(
            "tests/testing/test_simulated_ends.py"
            "::test_a_stop_in_the_instant_in_which_a_message_arrives_costs_it_nothing",
        ),
        plants=(
            edit(
                Worker,
                "_take_until_slow",
                ("if scope.cancel_called and not delivery.lost:", "if False:"),
            ),
        ),
    ),
    Defect(
        name="drain-cancels",
        wrong="A group that drains cancels its handlers at once.",
        by="B",
        machines=("skip", "plain"),
        plants=(
            edit(
                ConsumerGroup,
                "_drain",
                (
                    "if drain_timeout <= 0:",
                    "if True:\n"
                    "        for registration in self._registrations:\n"
                    "            registration.kill()\n"
                    "    if drain_timeout <= 0:",
                ),
            ),
        ),
    ),
)
