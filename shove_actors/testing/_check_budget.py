"""The invariant B, and of L what the end shows. Part of `Checker`."""

from __future__ import annotations

from ._check_state import MessageState, TopicState
from ._history import Event
from ._rules import HistoryRules, HistoryViolation, Letter, Violation

#: A delay is compared with this much of it: clocks round.
_ALMOST = 0.999
#: Seconds for which what goes wrong may last.
_LASTS_S = 30.0
#: How much later than its delay a retry may come, and be due to it rather than to a lease.
_SOON_S = 1.0


class BudgetChecks:
    """Attempts, and the reasons for which messages are given up."""

    index: int
    #: Something has gone wrong by now, a process has ended otherwise than in order.
    _disturbed: bool
    #: A durable was deleted: the next one counts deliveries, and so retries in place, from one.
    _recounts: bool
    #: Faults and killed processes so far, and the time of the last one.
    _troubles: int
    _trouble_at: float
    #: When something happened last that may keep a note from being written; see `_not_noted`.
    _noteless_at: float
    #: When the server was restarted, and when a durable was deleted.
    _restarts: list[float]
    _deletions: list[float]

    def _budget(self, event: Event, topic: TopicState, message: MessageState) -> None:
        """Of a handler that is called, before the message knows of it."""
        attempt, most = event.attempt, topic.rules.max_retries
        if topic.rules.calm:
            self._needless(event, topic, message)
        if attempt == message.highest:
            return
        if attempt > most:
            raise self._breach(
                "B", event, f"{event.id} is tried again, as retry {attempt} of {most}"
            )
        if attempt > 0 and not message.failed >> (attempt - 1) & 1:
            raise self._breach(
                "B",
                event,
                f"{event.id} comes as retry {attempt}, but no attempt with retry count "
                f"{attempt - 1} has failed",
            )
        if attempt < message.highest and event.shard is not None and not self._recounts:
            raise self._breach(
                "B",
                event,
                f"{event.id} comes as retry {attempt}, but it had been retry {message.highest}",
            )

    def _needless(self, event: Event, topic: TopicState, message: MessageState) -> None:
        """Attempts that nothing in the history accounts for."""
        attempt, rules = event.attempt, topic.rules
        if event.shard is not None and not message.replayed:
            died = message.unended
            if died > rules.max_retries + 1 and died > self._most_deaths(message, rules):
                raise self._breach(
                    "B", event, f"{event.id} is tried again, after {died} processes died of it"
                )
        before = message.latest
        if before is None or message.deferred:
            return
        if self._disturbed:
            if before.attempt == attempt and message.failed >> attempt & 1:
                self._not_noted(event, rules, message)
            return
        if before.attempt == attempt:
            if message.failed >> attempt & 1:
                raise self._breach(
                    "B",
                    event,
                    f"{event.id} comes as retry {attempt} again, although that attempt has failed",
                )
            if before.sequence == event.sequence:
                raise self._breach(
                    "B",
                    event,
                    f"{event.id} is tried again, although nothing was wrong with its attempt "
                    "before, nor with anything else",
                )
        delays = rules.retry_delays
        if attempt == before.attempt + 1 and delays:
            delay = delays[min(attempt, len(delays)) - 1]
            waited = event.time - message.failed_at
            if waited < delay * _ALMOST:
                raise self._breach(
                    "B",
                    event,
                    f"{event.id} comes as retry {attempt} after {waited:.3f} s; the delay of that "
                    f"retry is {delay:g} s",
                )

    def _most_deaths(self, message: MessageState, rules: HistoryRules) -> int:
        """How many processes may have died of a message of a shard before it is given up.

        One per delivery that its budget allows, and one under suspicion. Another durable counts its
        deliveries from one, and a server that was killed may have forgotten the last.
        """
        since = message.first.time if message.first is not None else 0.0
        lives = 1 + sum(moment >= since for moment in self._deletions)
        forgotten = sum(moment >= since for moment in self._restarts)
        return (rules.max_retries + 2) * lives - 1 + forgotten

    def _not_noted(self, event: Event, rules: HistoryRules, message: MessageState) -> None:
        """On a shard, a failed attempt comes again under its number.

        It may if its note was not written, since its process was killed or cut off before: then it
        was not handed back either, and comes when its lease is over. One that comes after the delay
        of its retry was handed back; and as long as only processes were killed and settles were
        lost, a note was written by then.
        """
        delays = rules.retry_delays
        if event.shard is None or not delays or event.detail == "replay":
            return
        if message.failed_at - self._noteless_at < _LASTS_S:
            return
        waited = event.time - message.failed_at
        if waited < delays[min(event.attempt, len(delays) - 1)] + _SOON_S:
            raise self._breach(
                "B",
                event,
                f"{event.id} comes as retry {event.attempt} again, {waited:.3f} s after that "
                "attempt has failed: it was handed back before that was noted",
            )

    def _dead(self, event: Event, topic: TopicState, message: MessageState) -> None:
        reason = message.dead = event.detail or "dead"
        if event.key is not None:
            topic.key(event.key).letters.setdefault(event.sequence, event.id)
        if "B" not in topic.only:
            return
        if event.duplicate:
            raise self._breach("B", event, f"{event.id} has a second dead letter of the same copy")
        if message.replayed:
            return  # the story of another life
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
        if (
            reason == "sequence_failed"
            and topic.rules.calm
            and event.key is not None
            and not topic.key(event.key).ever_poisoned
        ):
            raise self._breach(
                "B",
                event,
                f"{event.id} is a dead letter because an earlier message of its key "
                f"{event.key!r} has failed; none has",
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
        return troubles < self._troubles or self._trouble_at > noted_at - _LASTS_S

    def _held(self, event: Event, topic: TopicState) -> None:
        if event.duplicate and "B" in topic.only:
            raise self._breach(
                "B", event, f"{event.detail} holds two copies of the same copy of {event.id}"
            )

    def _breach(
        self,
        rule: Letter,
        event: Event,
        sentence: str,
        *,
        end: bool = False,
        about: Event | None = None,
    ) -> HistoryViolation:
        return HistoryViolation(
            Violation(
                rule=rule,
                sentence=sentence,
                index=None if end else self.index,
                event=event,
                about=about if about is not None else event,
            )
        )
