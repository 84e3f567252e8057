"""What only the end of a history shows. Part of `Checker`."""

from __future__ import annotations

import math

from ._check_letters import LetterChecks
from ._check_order import OrderChecks
from ._check_state import MessageState, TopicState
from ._rules import HistoryRules


class EndChecks(LetterChecks, OrderChecks):
    """`finish`, and what it asks."""

    def __init__(self) -> None:
        super().__init__()
        self._topics: dict[str, TopicState] = {}

    def finish(self) -> None:
        """The history is complete, with everything that is still stored (`remaining`)."""
        for topic in self._topics.values():
            rules = topic.rules
            failed = {} if rules.dead_letters else self._failed_keys(topic)
            for id_, message in topic.messages.items():
                said = message.published
                if said is None:
                    self._of_somebody(id_, topic, message)
                    continue
                gone = not rules.dead_letters and (
                    said.detail.startswith("raw")  # it may be what no handler can be given
                    or self._given_up(message, rules)
                    or message.sequence > failed.get(message.key, math.inf)
                )
                if not (message.acked or message.dead or message.remaining or gone) and (
                    "L" in topic.only
                ):
                    raise self._breach(
                        "L",
                        said,
                        f"{id_} is lost: its publisher was told that it is stored, but it was "
                        "never acknowledged by a handler, is no dead letter, and is not stored",
                        end=True,
                    )
                if rules.quiescent and message.remaining and "L" in topic.only:
                    raise self._breach(
                        "L",
                        said,
                        f"{id_} is still stored, although nothing was in its way any more",
                        end=True,
                    )
                if not gone:
                    self._not_skipped(said, id_, topic, message)

    def _given_up(self, message: MessageState, rules: HistoryRules) -> bool:
        """Where there are no dead letters, a message may be gone when it has failed for good."""
        if message.final or message.unended:
            return True
        return rules.suspects and self._may_have_killed(message, rules)

    def _failed_keys(self, topic: TopicState) -> dict[str | None, int]:
        """From which message on a key may have been poisoned: what is behind it is discarded."""
        if not topic.rules.fail_all:
            return {}
        found: dict[str | None, int] = {}
        for message in topic.messages.values():
            if not message.acked and self._given_up(message, topic.rules):
                found[message.key] = min(found.get(message.key, message.sequence), message.sequence)
        for name, key in topic.keys.items():
            if key.ever_poisoned:
                found[name] = min(found.get(name, key.first_poisoned), key.first_poisoned)
        return found

    def _of_somebody(self, id_: str, topic: TopicState, message: MessageState) -> None:
        first = message.first
        if first is None or message.doubtful or not topic.rules.publishes or "L" not in topic.only:
            return
        # A repeat whose answer came after the first of the two was handled: it speaks for both.
        last = topic.messages[first.id]
        if last.published is None and not last.doubtful:
            said = f"{id_} was handled, and nobody has published it"
            raise self._breach("L", first, said, end=True)
