"""What a publisher is told, and in which order it sends."""

from __future__ import annotations

from shove_actors.runtime._key_order import KeyOrder
from shove_actors.runtime._poison_settle import PoisonSettler
from shove_actors.runtime._publish_service import PublishService
from shove_actors.runtime._reshard import ShardFence

from ._defect import Defect, edit

PUBLISHING = (
    Defect(
        name="publish-repeated-with-a-new-id",
        wrong="A publish without an answer is repeated under another id.",
        by="L B",
        machines=("skip", "plain"),
        plants=(
            edit(
                PublishService,
                "_repeat",
                (
                    "self._again[post] = due",
                    "post.header_block = post.header_block.replace(\n"
                    '        b"\\r\\nNats-Msg-Id:", b"\\r\\nNats-Msg-Id:again-"\n'
                    "    )\n"
                    "    self._again[post] = due",
                ),
            ),
        ),
    ),
    Defect(
        name="stored-before-the-answer",
        wrong="A publisher is told that its message is stored when it was sent.",
        by="L O",
        machines=("plain", "skip"),
        plants=(
            edit(
                PublishService,
                "_post",
                (
                    "self.backend.post(batch)",
                    "self.backend.post(batch)\n"
                    "    for post in batch:\n"
                    '        self.done(post, Stored("", 0, False))',
                ),
            ),
        ),
    ),
    Defect(
        name="unknown-told-as-stored",
        wrong="A publisher that gives up without an answer says that the message is stored.",
        by="L",
        machines=("plain", "skip"),
        plants=(
            edit(
                PublishService,
                "_repeat",
                (
                    "self._again[post] = due",
                    'self._finish(post, PublishReceipt("", 0, False))',
                ),
            ),
        ),
    ),
    Defect(
        name="batch-reorders-a-key",
        wrong="Of the messages of a key that wait for their turn, the last one goes first.",
        by="O",
        machines=("skip", "fail_all"),
        plants=(edit(KeyOrder, "_over", ("behind.popleft()", "behind.pop()")),),
    ),
    Defect(
        name="two-of-a-key-under-way",
        wrong="A batch sends a message of a key before the one before it is stored.",
        by="O test",
        machines=("skip", "fail_all", "test"),
        tests=(
            "tests/runtime/test_key_order.py::test_one_message_of_a_key_is_under_way_at_a_time",
        ),
        plants=(
            edit(KeyOrder, "submit", ("if behind is not None:", "if False:")),
            edit(
                KeyOrder,
                "_over",
                ("del self._under_way[key]", "self._under_way.pop(key, None)"),
                ("self._waiting.pop(key):", "self._waiting.pop(key, ()):"),
                ("behind = self._waiting[key]", "behind = self._waiting.get(key)"),
                ("del self._waiting[key]", "self._waiting.pop(key, None)"),
            ),
        ),
    ),
    Defect(
        name="cancelled-goes-on",
        wrong="A batch that was cancelled goes on behind what is published next.",
        by="test",
        machines=("test",),
        tests=(
            "tests/runtime/test_key_order.py::"
            "test_nothing_of_what_was_cancelled_comes_behind_what_is_published_next",
        ),
        plants=(edit(KeyOrder, "give_up", ("self._given_up = True", "return")),),
    ),
    Defect(
        name="doubt-taken-back-first",
        wrong="What is published while the number of shards is looked up is not held.",
        by="test",
        machines=("test",),
        tests=(
            "tests/runtime/test_reshard.py::"
            "test_what_is_published_while_the_number_is_looked_up_waits_as_well",
        ),
        plants=(
            edit(
                ShardFence,
                "refusal",
                ("doubt = self._doubted.get(queue)", "doubt = self._doubted.pop(queue, None)"),
            ),
        ),
    ),
    Defect(
        name="letter-after-the-lease",
        wrong="A dead letter is written although the lease was lost while its key was poisoned.",
        by="test",
        machines=("test",),
        tests=(
            "tests/runtime/test_poison_by_others.py::"
            "test_who_loses_the_lease_while_it_poisons_writes_no_letter",
        ),
        plants=(edit(PoisonSettler, "_bury", ("if delivery.lost:", "if False:")),),
    ),
)
