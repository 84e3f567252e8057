"""How often a message is tried, and what a handler's answer means."""

from __future__ import annotations

from shove_actors.messaging import _retry, _routing
from shove_actors.runtime._handler_clock import HandlerClock
from shove_actors.runtime._judge import Judge
from shove_actors.runtime._replay_lane import ReplayLane
from shove_actors.runtime._worker import Worker

from ._defect import Defect, edit

_BUDGET = "if retries >= limits.max_retries:"

BUDGETS = (
    Defect(
        name="one-retry-too-many",
        wrong="A message is retried once more than max_retries says.",
        by="B",
        machines=("skip", "plain", "routing"),
        plants=(edit(_routing, "route", (_BUDGET, "if retries > limits.max_retries:")),),
    ),
    Defect(
        name="one-retry-too-few",
        wrong="A message is given up one retry before max_retries.",
        by="B",
        machines=("plain", "skip", "routing"),
        plants=(edit(_routing, "route", (_BUDGET, "if retries + 1 >= limits.max_retries:")),),
    ),
    Defect(
        name="retry-not-counted-in-copies",
        wrong="The copy made for a retry has the retry count of the attempt before.",
        by="B",
        machines=("plain", "routing"),
        plants=(edit(_routing, "route", ("number = retries + 1", "number = retries")),),
    ),
    Defect(
        name="retry-not-counted-in-place",
        wrong="A failed attempt on a shard is not noted.",
        by="B",
        machines=("skip", "fail_all"),
        plants=(
            edit(
                Worker,
                "_settle",
                ("failed = self._attempts.failed + 1", "failed = self._attempts.failed"),
            ),
        ),
    ),
    Defect(
        name="failure-noted-after-the-nak",
        wrong="A failed attempt is noted after the message was handed back.",
        by="B test",
        machines=("skip", "test"),
        tests=(
            "tests/testing/test_simulated_harm.py"
            "::test_an_attempt_is_noted_before_its_message_is_handed_back",
        ),
        plants=(
            edit(
                Worker,
                "_settle",
                (
                    "        await self._note(delivery, replace(self._attempts, failed=failed, "
                    "started=False))\n",
                    "",
                ),
                (
                    "    held = await job.settler.carry_out(delivery, verdict, retry_count)\n",
                    "    held = await job.settler.carry_out(delivery, verdict, retry_count)\n"
                    "    if isinstance(verdict, Nak) and verdict.counted:\n"
                    "        await self._note(delivery, replace(self._attempts, failed=failed))\n",
                ),
            ),
        ),
    ),
    Defect(
        name="redelivery-counted-as-retry",
        wrong="Every redelivery costs a retry, also one after a crash or a drain.",
        by="B",
        machines=("skip", "fail_all"),
        plants=(
            edit(
                Judge,
                "_facts",
                ("num_delivered=1 + attempts.failed", "num_delivered=delivery.num_delivered"),
            ),
        ),
    ),
    Defect(
        name="redelivery-convicts",
        wrong="A message delivered more often than its budget is given up without a trial.",
        by="B",
        machines=("skip", "plain"),
        plants=(
            edit(
                Worker,
                "_inspect",
                ("if verdict is None or self._attempts.started:", "if True:"),
            ),
        ),
    ),
    Defect(
        name="suspect-note-not-written",
        wrong="It is not noted that a suspect's handler starts, so it kills for ever.",
        by="B test",
        machines=("skip", "test"),
        tests=("tests/testing/test_simulated_harm.py::test_a_message_that_kills_is_given_up",),
        plants=(
            edit(Worker, "_inspect", ("await ledger.write(delivery, self._attempts)", "pass")),
        ),
    ),
    Defect(
        name="suspect-note-outlives-its-attempt",
        wrong="A suspect that has come to an end counts as started: a lost settle convicts it.",
        by="B test",
        machines=("plain", "test"),
        tests=(
            "tests/testing/test_simulated_ends.py"
            "::test_a_suspect_whose_acknowledgement_is_lost_has_killed_nobody",
        ),
        plants=(
            edit(
                Worker,
                "_settle",
                ("        await self._unmark()\n    held", "        self._cleared()\n    held"),
            ),
        ),
    ),
    Defect(
        name="wrong-hold-index",
        wrong="Every retry waits in the first hold queue.",
        by="B",
        machines=("plain", "skip"),
        plants=(
            edit(
                _retry,
                "hold_for_retry",
                ("topology.holds[min(retry_count, len(topology.holds) - 1)]", "topology.holds[0]"),
            ),
        ),
    ),
    Defect(
        name="timeout-counts-as-ack",
        wrong="A handler that has had its time is taken to have acknowledged.",
        by="L",
        machines=("plain", "skip"),
        plants=(edit(Judge, "timed_out", ("route(Outcome.RETRY,", "route(Outcome.ACK,")),),
    ),
    Defect(
        name="exception-counts-as-reject",
        wrong="A handler that raises has its message given up at once.",
        by="B",
        machines=("plain", "skip"),
        plants=(
            edit(
                Judge,
                "raised",
                ("delivery, Outcome.RETRY, attempts", "delivery, Outcome.REJECT, attempts"),
            ),
        ),
    ),
    Defect(
        name="defer-is-acked-on-a-shard",
        wrong="DEFER on a sequenced topic acknowledges the message.",
        by="L",
        machines=("skip", "fail_all", "routing"),
        plants=(
            edit(
                _routing,
                "route",
                (
                    "    retries = effective_retry_count(facts, topology)\n",
                    "    if deferred and topology.sequenced:\n"
                    "        return _ACK\n"
                    "    retries = effective_retry_count(facts, topology)\n",
                ),
            ),
        ),
    ),
    Defect(
        name="defer-counts-as-retry",
        wrong="DEFER on a plain topic uses up the retry budget.",
        by="B",
        machines=("plain", "routing"),
        plants=(edit(_routing, "route", ("if deferred and not topology.sequenced:", "if False:")),),
    ),
    Defect(
        name="missing-audit-counts-as-retry",
        wrong="Finished work whose audit record could not be written uses up the retry budget.",
        by="property",
        machines=("routing",),
        plants=(edit(_routing, "route", ("if isinstance(outcome, Unaudited):", "if False:")),),
    ),
    Defect(
        name="crash-budget-ignores-retries",
        wrong="On a shard, a message's redeliveries are counted apart from its retries.",
        by="property",
        machines=("routing",),
        plants=(edit(_routing, "before_handling", ("if retries_by_nak(topology):", "if False:")),),
    ),
    Defect(
        name="no-handler-timeout",
        wrong="A handler may take as long as it likes.",
        by="B end",
        machines=("plain", "skip"),
        plants=(edit(HandlerClock, "begin", ("if self.timeout_s is None:", "if True:")),),
    ),
    Defect(
        name="replay-charges-every-letter",
        wrong="Each dead letter answers for all processes killed while its key was replayed.",
        by="test",
        machines=("test",),
        tests=(
            "tests/runtime/test_replay_trouble.py"
            "::test_a_letter_does_not_answer_for_those_before_it",
        ),
        plants=(edit(ReplayLane, "_begin", ("if now == 1:", "if True:")),),
    ),
)
