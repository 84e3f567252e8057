"""Carrying out what was decided: copies, hold queues, dead letters."""

from __future__ import annotations

from shove_actors.messaging import _ids
from shove_actors.runtime._hold_mover import HoldMover
from shove_actors.runtime._settle import Settler
from shove_actors.runtime._worker import Worker

from ._defect import Defect, edit

SETTLING = (
    Defect(
        name="ack-before-copy",
        wrong="The original is acknowledged before its copy is stored.",
        by="L test",
        machines=("plain", "skip", "test"),
        tests=(
            "tests/cases/test_f_dead_letters.py"
            "::test_pc078_original_stays_until_its_dead_letter_is_safe",
        ),
        plants=(
            edit(
                Settler,
                "carry_out",
                (
                    "        moved = await self._move(delivery, verdict, retry_count)\n",
                    "        delivery.lane.ack(delivery)\n"
                    "        moved = await self._move(delivery, verdict, retry_count)\n",
                ),
                ("        verdict = moved\n", "        return True\n"),
            ),
        ),
    ),
    Defect(
        name="nak-turned-into-ack",
        wrong="A retry in place acknowledges the message.",
        by="L",
        machines=("skip", "fail_all"),
        plants=(
            edit(
                Settler,
                "carry_out",
                (
                    "delivery.lane.nak(delivery, verdict.delay_s)",
                    "delivery.lane.ack(delivery)",
                ),
            ),
        ),
    ),
    Defect(
        name="nak-without-delay",
        wrong="A retry in place comes back at once.",
        by="B",
        machines=("skip", "fail_all"),
        plants=(
            edit(
                Settler,
                "carry_out",
                ("delivery.lane.nak(delivery, verdict.delay_s)", "delivery.lane.nak(delivery)"),
            ),
        ),
    ),
    Defect(
        name="interrupted-is-acked",
        wrong="A message whose lease is lost during its handler is acknowledged.",
        by="L I",
        machines=("skip", "plain"),
        plants=(
            edit(
                Worker,
                "_interrupted",
                (
                    "self._lane.forget(delivery)",
                    "delivery.lost = False\n        self._lane.ack(delivery)",
                ),
            ),
        ),
    ),
    Defect(
        name="hop-id-not-deterministic",
        wrong="Repeating a hop stores a second copy, since its id is another one each time.",
        by="B",
        machines=("plain", "routing"),
        plants=(
            edit(
                Settler,
                "_hop",
                ("msg_id=verdict.msg_id", "msg_id=verdict.msg_id + str(trio.current_time())"),
            ),
        ),
    ),
    Defect(
        name="retry-id-without-origin",
        wrong="The id of a hop does not name the stored copy, so another copy's swallows it.",
        by="L",
        machines=("plain", "routing"),
        plants=(edit(_ids, "retry_id", ("@{origin}-r", "-r")),),
    ),
    Defect(
        name="mover-moves-early",
        wrong="Held messages return to their queue before they are due.",
        by="B L",
        machines=("plain",),
        plants=(edit(HoldMover, "_move", ("if remaining > DUE_SLACK_NS:", "if False:")),),
    ),
    Defect(
        name="mover-acks-before-republish",
        wrong="The held copy is acknowledged before the message is back in its queue.",
        by="L",
        machines=("plain",),
        plants=(
            edit(
                HoldMover,
                "_move",
                ("waiter = Waiter()\n", "waiter = Waiter()\n        lane.ack(delivery)\n"),
                ("self.moved += 1\n            lane.ack(delivery)", "self.moved += 1"),
            ),
        ),
    ),
    Defect(
        name="mover-loses-headers",
        wrong="A message returns from a hold queue without the headers that it had.",
        by="L B",
        machines=("plain",),
        plants=(edit(HoldMover, "_header_block", ("headers = delivery.headers", "headers = {}")),),
    ),
    Defect(
        name="mover-loses-the-count",
        wrong="A message returns from a hold queue with its retries forgotten.",
        by="B",
        machines=("plain",),
        plants=(
            edit(
                HoldMover,
                "_header_block",
                ("retry_count=_counter(headers, RETRY_COUNT)", "retry_count=0"),
            ),
        ),
    ),
    Defect(
        name="mover-republishes-without-id",
        wrong="What a mover repeats after a crash is stored a second time.",
        by="B",
        machines=("plain",),
        plants=(
            edit(
                HoldMover,
                "_header_block",
                (
                    "msg_id=return_id(message_id, origin)",
                    "msg_id=return_id(message_id, origin) + str(trio.current_time())",
                ),
            ),
        ),
    ),
    Defect(
        name="dead-letter-not-stored",
        wrong="What has failed for good is acknowledged and stored nowhere.",
        by="L",
        machines=("plain", "skip"),
        plants=(edit(Settler, "_bury", ("dlq = self.topology.dlq", "return\n    dlq = None")),),
    ),
    Defect(
        name="dead-letter-stored-twice",
        wrong="A dead letter has another id each time it is stored.",
        by="B",
        machines=("fail_all", "skip"),
        plants=(
            edit(
                Settler,
                "_dead",
                (
                    "msg_id=dead_id(message_id, origin)",
                    "msg_id=dead_id(message_id, origin) + str(trio.current_time())",
                ),
            ),
        ),
    ),
    Defect(
        name="hop-spoils-payload",
        wrong="What is stored in a hold queue is not the payload that was published.",
        by="L B",
        machines=("plain", "serial"),
        plants=(
            edit(
                Settler,
                "_hop",
                ("publish(where, delivery.payload,", "publish(where, delivery.payload + b'}',"),
            ),
        ),
    ),
    Defect(
        name="letter-spoils-payload",
        wrong="A dead letter lacks the last byte of its payload.",
        by="L",
        machines=("fail_all", "plain"),
        plants=(
            edit(
                Settler,
                "_bury",
                (
                    "await self.publisher.publish(dlq, delivery.payload, block, watch)",
                    "await self.publisher.publish(dlq, delivery.payload[:-1], block, watch)",
                ),
            ),
        ),
    ),
    Defect(
        name="redelivery-is-undecodable",
        wrong="A message that is delivered again is decoded without its first byte.",
        by="B L",
        machines=("skip", "plain"),
        plants=(
            edit(
                Worker,
                "_take_until_slow",
                (
                    "message = decode(payload)",
                    "message = decode(payload if delivery.num_delivered < 2 else payload[1:])",
                ),
            ),
        ),
    ),
    Defect(
        name="stuck-is-acked",
        wrong="What cannot be stored elsewhere is acknowledged instead of waiting.",
        by="L",
        machines=("fail_all", "plain"),
        plants=(
            edit(
                Settler,
                "stay",
                ("delivery.lane.nak(delivery, pause)", "delivery.lane.ack(delivery)"),
            ),
        ),
    ),
    Defect(
        name="defer-returns-at-once",
        wrong="A message that was put off is back in its queue at once.",
        by="B test",
        machines=("plain", "test"),
        tests=(
            "tests/testing/test_simulated_ends.py"
            "::test_what_is_put_off_comes_after_the_delay_of_the_first_hold_queue",
        ),
        plants=(
            edit(
                HoldMover,
                "due_in_ns",
                (
                    "    delay_ns = round(",
                    "    if delivery.headers.get('Shove-Defer-Count', '0') != '0':\n"
                    "        return 0\n"
                    "    delay_ns = round(",
                ),
            ),
        ),
    ),
)
