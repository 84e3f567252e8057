"""Keys: which lane they are in, and what happens to one that has failed."""

from __future__ import annotations

from shove_actors.messaging import _poison as _names
from shove_actors.runtime import _replay_lane
from shove_actors.runtime._gated import Gated
from shove_actors.runtime._poison import PoisonGate
from shove_actors.runtime._poison_settle import PoisonSettler
from shove_actors.runtime._publisher import Publisher
from shove_actors.runtime._replay import KeyGate

from ._defect import Defect, edit

KEYS = (
    Defect(
        name="hash-of-the-wrong-field",
        wrong="A message's lane is chosen by its id, not by its key.",
        by="O",
        machines=("skip", "fail_all"),
        plants=(
            edit(
                Publisher,
                "_prepare",
                ("topic.shard_of(key)", "topic.shard_of(message_id or key)"),
            ),
        ),
    ),
    Defect(
        name="poison-written-after-the-ack",
        wrong="A key is poisoned after its message was acknowledged.",
        by="P O",
        machines=("fail_all",),
        plants=(
            edit(
                PoisonSettler,
                "carry_out",
                (
                    "    return await super().carry_out(delivery, verdict, retry_count)",
                    "    held = await super().carry_out(delivery, verdict, retry_count)\n"
                    "    if held and isinstance(verdict, Dead):\n"
                    "        await self._gate.condemn(delivery, verdict, retry_count)\n"
                    "    return held",
                ),
            ),
            edit(
                PoisonSettler,
                "_bury",
                (
                    "    condemned, retry_count, key = "
                    "await self._gate.condemn(delivery, verdict, retry_count)\n",
                    "    condemned = verdict\n",
                ),
            ),
        ),
    ),
    Defect(
        name="poison-forgotten-at-restart",
        wrong="Poisoned keys are remembered by the process that poisoned them, and nowhere else.",
        by="P B",
        machines=("fail_all",),
        plants=(
            edit(
                PoisonGate,
                "condemn",
                (
                    "if await self.book.put(key, record, entry.revision):",
                    "if self.__dict__.setdefault('own', {}).setdefault(key, record):",
                ),
            ),
            edit(
                PoisonGate,
                "look_up",
                (
                    "record = (await self.book.find(key)).record",
                    "record = self.__dict__.setdefault('own', {}).get(key)",
                ),
            ),
        ),
    ),
    Defect(
        name="poison-check-skips-redeliveries",
        wrong="A redelivered message is handled without a look whether its key is poisoned.",
        by="P",
        machines=("fail_all",),
        plants=(
            edit(
                PoisonGate,
                "passes",
                (
                    "    if value is None or",
                    "    if delivery.num_delivered > 1 and CONTROL not in headers:\n"
                    "        return True\n"
                    "    if value is None or",
                ),
            ),
        ),
    ),
    Defect(
        name="clean-for-ever",
        # Two defences, of which each is enough in nearly every history: the tenure, and that
        # every mark is announced.
        wrong="A key that was clean once is never looked up again, whoever poisons it.",
        by="P test",
        machines=("fail_all", "test"),
        tests=(
            "tests/runtime/test_fail_all_processes.py::"
            "test_clean_is_forgotten_when_somebody_else_was_given_a_message",
        ),
        plants=(
            edit(
                PoisonGate,
                "passes",
                ("if self._clean.get(value) != tenure:", "if value not in self._clean:"),
            ),
            edit(PoisonGate, "_changed", ("self._clean.clear()", "pass")),
        ),
    ),
    Defect(
        name="sequence-failed-is-handled",
        wrong="Only the message that poisoned a key is kept from the handler.",
        by="P",
        machines=("fail_all",),
        plants=(
            edit(
                PoisonGate,
                "look_up",
                (
                    "if record is not None:",
                    "if record is not None and record.about(\n"
                    "        delivery.sequence, delivery.timestamp_ns\n"
                    "    ):",
                ),
            ),
        ),
    ),
    Defect(
        name="other-keys-are-poisoned-too",
        wrong="All keys share one record, so what poisons one poisons all.",
        by="B",
        machines=("fail_all",),
        plants=(
            edit(
                _names,
                "mark_name",
                (
                    "    if _SAFE.fullmatch(key) is not None and len(key) <= MAX_NAME:\n",
                    "    key = key[:1]\n"
                    "    if _SAFE.fullmatch(key) is not None and len(key) <= MAX_NAME:\n",
                ),
            ),
        ),
    ),
    Defect(
        name="released-before-the-replay",
        wrong="A key is released first, and its dead letters are handled then.",
        by="L O P",
        machines=("fail_all",),
        plants=(
            edit(
                KeyGate,
                "obey",
                (
                    "    letters = await self._letters(dlq, key, record)\n",
                    "    letters = await self._letters(dlq, key, record)\n"
                    "    await self.book.remove(key, entry.revision)\n",
                ),
            ),
        ),
    ),
    Defect(
        name="replay-in-reverse",
        wrong="Dead letters are replayed last first.",
        by="O",
        machines=("fail_all",),
        plants=(
            edit(
                _replay_lane,
                "in_order",
                ("yield from sorted(", "yield from reversed(sorted("),
                ("one.sequence))", "one.sequence)))"),
            ),
        ),
    ),
    Defect(
        name="replay-goes-on-after-a-failure",
        wrong="After a dead letter that fails again, the next one is handled.",
        by="O P",
        machines=("fail_all",),
        plants=(
            edit(
                _replay_lane.ReplayLane,
                "fail",
                (
                    "self.failure = Failure(self._letters[0], delivery, verdict, retry_count)",
                    "self._next()",
                ),
            ),
        ),
    ),
    Defect(
        name="control-message-acked-first",
        wrong="A release is acknowledged before the dead letters are handled.",
        by="O I P test",
        machines=("fail_all", "test"),
        tests=("tests/runtime/test_replay_trouble.py::test_a_crash_goes_on_with_what_is_left",),
        plants=(
            edit(
                Gated,
                "_obey",
                (
                    "            done = await gate.obey(",
                    "            self._lane.ack(control)\n            done = await gate.obey(",
                ),
                (
                    "        self._lane.ack(control)\n    elif",
                    "        pass\n    elif",
                ),
            ),
        ),
    ),
    Defect(
        name="control-obeyed-in-any-lane",
        wrong="A replay is done in whichever lane it is asked for, beside its key's own.",
        by="test",
        machines=("test",),
        tests=(
            "tests/runtime/test_replay_requests.py"
            "::test_a_request_in_another_lane_than_its_keys_is_dropped",
        ),
        plants=(
            edit(
                KeyGate,
                "obey",
                (
                    "if control.subject != topology.shard_subject(self.topic.shard_of(key)):",
                    "if False:",
                ),
            ),
        ),
    ),
    Defect(
        name="stale-control-replays",
        wrong="A replay that was asked for before the key was released and poisoned again is done.",
        by="test",
        machines=("test",),
        tests=(
            "tests/runtime/test_replay_requests.py"
            "::test_a_request_for_an_earlier_poisoning_is_dropped",
        ),
        plants=(
            edit(
                KeyGate, "obey", ("if entry.poisoning != control.headers[POISONING]:", "if False:")
            ),
        ),
    ),
    Defect(
        name="retries-of-another-message",
        wrong="A message of a poisoned key dies with the retry count of the one that poisoned it.",
        by="test",
        machines=("test",),
        tests=(
            "tests/testing/test_simulated_ends.py"
            "::test_a_later_message_of_a_poisoned_key_has_had_no_retries",
        ),
        plants=(
            edit(
                PoisonGate,
                "_verdict",
                ('"sequence", why), retry_count', '"sequence", why), record.retries'),
            ),
        ),
    ),
    Defect(
        name="replay-retry-at-once",
        wrong="A dead letter that is to be retried is handled again without its delay.",
        by="B",
        machines=("fail_all",),
        plants=(
            edit(
                _replay_lane.ReplayLane,
                "nak",
                ("self._due = trio.current_time() + (delay_s or 0.0)", "pass"),
            ),
        ),
    ),
    Defect(
        name="lookup-fails-open",
        wrong="When it cannot be found out whether a key is poisoned, its message is handled.",
        by="P",
        machines=("fail_all",),
        plants=(
            edit(
                Gated,
                "_look_up",
                (
                    "        await self._unmark()\n"
                    "        self._not_now(delivery, exc)\n"
                    "        return None",
                    "        return True",
                ),
            ),
        ),
    ),
    Defect(
        name="crash-does-not-poison",
        wrong="A message that kills its processes is given up, and its key goes on.",
        by="P",
        machines=("fail_all",),
        plants=(
            edit(
                PoisonGate,
                "condemn",
                (
                    "if CONTROL in headers:",
                    "if CONTROL in headers or verdict.reason is DeathReason.CRASHED:",
                ),
            ),
        ),
    ),
    Defect(
        name="poisoned-remembered",
        wrong="A process that has seen a poisoned key takes it for poisoned after its release.",
        by="B O",
        machines=("fail_all",),
        plants=(
            edit(
                PoisonGate,
                "look_up",
                (
                    "record = (await self.book.find(key)).record",
                    "bad = self.__dict__.setdefault('bad', {})\n"
                    "    record = bad.get(key) or (await self.book.find(key)).record\n"
                    "    if record is not None:\n"
                    "        bad[key] = record",
                ),
            ),
        ),
    ),
)
