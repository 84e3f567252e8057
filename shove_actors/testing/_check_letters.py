"""What a message is given up for (B), and whether it is still what was published (L)."""

from __future__ import annotations

from shove_actors.messaging import DUPLICATE_WINDOW_S, DeathReason

from ._check_breach import LASTS_S, SOON_S, CheckPart
from ._check_state import KeyState, MessageState, TopicState
from ._history import Event
from ._rules import HistoryRules, HistoryViolation

_REASONS = frozenset(reason.value for reason in DeathReason)
#: What is wrong with a message itself: it is so from the beginning, or never.
FROM_BIRTH = {
    "undecodable": "it does not decode",
    "oversize": "it is too large",
    "foreign_header": "it has headers of another hand",
}


class LetterChecks(CheckPart):
    """Dead letters, payloads, and what is stored twice."""

    def _dead(self, event: Event, topic: TopicState, message: MessageState) -> None:
        past = message.unheard_of and not topic.rules.publishes
        reason = message.dead = event.detail or "dead"
        message.died, message.replay_acked = event, False
        self._same_payload(event, topic, message)
        if event.key is not None:
            topic.key(event.key).letters.setdefault(event.sequence, event.id)
        if "B" not in topic.only:
            return
        if event.duplicate:
            raise self._breach("B", event, f"{event.id} has a second dead letter of the same copy")
        if event.detail and reason not in _REASONS:
            raise self._breach(
                "B", event, f"{event.id} is a dead letter for a reason that there is not: {reason}"
            )
        if reason in FROM_BIRTH:
            self._flawed(event, event, message)
        if message.replayed or past:
            return  # the story of another life, or of one before the history
        if not event.letter:
            # One that says which it is may be told of again, by an inventory; and who tells of it
            # knows when each was stored, so whether the server had forgotten the one before.
            if event.sequence in message.buried:
                raise self._breach(
                    "B", event, f"{event.id} has a second dead letter of the same copy"
                )
            message.buried += (event.sequence,)
        most = topic.rules.max_retries
        if reason == "max_retries_exceeded" and message.failed != (1 << most + 1) - 1:
            failures = bin(message.failed).count("1")
            raise self._breach(
                "B",
                event,
                f"{event.id} is a dead letter because its {most} retries are used up, after "
                f"{failures} failed {'attempt' if failures == 1 else 'attempts'}",
            )
        if reason == "rejected" and not message.refused:
            raise self._breach(
                "B", event, f"{event.id} is a dead letter because it was rejected; nobody did that"
            )
        if reason == "crashed" and not self._may_have_killed(message, topic.rules):
            raise self._breach(
                "B",
                event,
                f"{event.id} is a dead letter because it kills its process; none was killed by it",
            )
        if reason == "sequence_failed" and event.key is not None and not event.found:
            self._failed_before(event, topic.rules, topic.key(event.key), message)

    def _flawed(self, letter: Event, event: Event, message: MessageState) -> None:
        """Who publishes through the topic publishes nothing that does not decode, nor headers that
        are not his; and of what was handled once none of it can be true. `event`: that shows it.
        """
        flaw, first, said = letter.detail, message.first, message.published
        if first is not None and (letter.key is None or first.sequence == letter.sequence):
            why = "it has been handled"
        elif said is None or said.detail.startswith("raw"):
            return
        elif flaw != "oversize" and said.sequence == letter.sequence:
            why = f"{said.process} has published it through its topic"
        else:
            return
        raise self._breach(
            "B",
            event,
            f"{letter.id} is a dead letter because {FROM_BIRTH[flaw]}, although {why}",
        )

    def _failed_before(
        self, event: Event, rules: HistoryRules, key: KeyState, message: MessageState
    ) -> None:
        """An earlier message of its key has failed, and the key is not released since.

        What was stored before the release may have been looked up before it.
        """
        if rules.calm and not key.ever_poisoned:
            raise self._breach(
                "B",
                event,
                f"{event.id} is a dead letter because an earlier message of its key "
                f"{event.key!r} has failed; none has",
            )
        released, said = key.released, message.published
        if released is None or key.poisoned is not None:
            return
        if released.last:
            later = event.sequence > released.last
        else:
            # Nobody has noted what was stored by then. Its publisher has heard of it later.
            later = (
                rules.calm
                and not self._disturbed
                and said is not None
                and said.sequence == event.sequence
                and said.time >= released.time + SOON_S
            )
        if later:
            raise self._breach(
                "B",
                event,
                f"{event.id} is a dead letter because an earlier message of its key "
                f"{event.key!r} has failed; the key had been released before it was published",
            )

    def _may_have_killed(self, message: MessageState, rules: HistoryRules) -> bool:
        """Whether some process was killed while it tried this message, as far as one can know.

        That begins with the note that its handler is about to be called, and ends when the note is
        taken away, or the message settled. Who comes next and finds the note cannot tell whether
        the handler had begun, nor a process that was killed from one that was cut off.
        """
        if message.unended:
            return True
        if not rules.suspects:
            return self._troubles > 0
        if message.suspected is None:
            return False
        noted_at, troubles = message.suspected
        return troubles < self._troubles or self._trouble_at > noted_at - LASTS_S

    def _held(self, event: Event, topic: TopicState, message: MessageState) -> None:
        if event.duplicate and "B" in topic.only:
            raise self._breach(
                "B", event, f"{event.detail} holds two copies of the same copy of {event.id}"
            )
        self._same_payload(event, topic, message)

    # ----------------------------------------------------------------------- payloads

    def _same_payload(self, event: Event, topic: TopicState, message: MessageState) -> None:
        """Of what its publishers have told of, and no other message."""
        digest = event.digest
        if not digest:
            return
        known = message.digests
        if not known:
            message.seen = event
        elif digest not in known and "" not in known and "L" in topic.only:
            if event.key is not None and not _same_copy(event, message.published):
                return
            raise self._changed(event, event)

    def _sent(self, event: Event, topic: TopicState, message: MessageState) -> None:
        """A publisher says what it has published, or may have."""
        if event.digest not in message.digests:
            message.digests += (event.digest,)
        seen = message.seen
        if seen is None or not _same_copy(seen, event):
            return
        message.seen = None
        if seen.digest not in message.digests and "" not in message.digests and "L" in topic.only:
            raise self._changed(seen, event)

    def _changed(self, seen: Event, event: Event) -> HistoryViolation:
        what = {"started": "to its handler", "dead": "among the dead letters"}.get(seen.kind)
        return self._breach(
            "L",
            event,
            f"{seen.id} arrived changed {what or 'in its stream'}: that is not the payload that "
            "was published",
        )

    def _stored_once(self, event: Event, topic: TopicState, message: MessageState) -> None:
        """Within the duplicate window the server knows an id. Not what it has forgotten by being
        restarted, and who is told late of what is stored can say little of when that was.
        """
        before = message.published
        if (
            before is not None
            and before.sequence != event.sequence
            and topic.rules.calm
            and self._trouble_at < before.time - 2 * LASTS_S
            and event.time - before.time < DUPLICATE_WINDOW_S - LASTS_S
            and "B" in topic.only
        ):
            raise self._breach(
                "B",
                event,
                f"{event.id} is stored twice, as {before.sequence} and as {event.sequence}, within "
                f"{event.time - before.time:g} s; an id is known for {DUPLICATE_WINDOW_S:g} s",
            )


def _same_copy(event: Event, said: Event | None) -> bool:
    return said is None or not said.sequence or said.sequence == event.sequence
