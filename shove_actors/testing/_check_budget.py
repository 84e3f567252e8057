"""The invariant B, as far as it is about attempts. Part of `Checker`."""

from __future__ import annotations

from ._check_breach import ALMOST, LASTS_S, SOON_S, CheckPart
from ._check_state import MessageState, TopicState
from ._history import Event
from ._rules import HistoryRules

#: How long after its time-out a handler that nobody has told to stop may still end: in seconds, and
#: as a share of the time-out.
_LATE_S, _LATE = 0.5, 0.02


class BudgetChecks(CheckPart):
    """How often a message is tried, and when."""

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
        if attempt > 0 and message.unheard_of and not topic.rules.publishes:
            message.failed = (1 << attempt) - 1  # from before the history
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
        if before is None:
            return
        if message.deferred:
            if not self._disturbed:
                self._deferred_enough(event, rules, message, before)
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
        if attempt == before.attempt + 1 and (message.asked or rules.retry_delays):
            delay = _delay(rules, message, attempt - 1)
            waited = event.time - message.failed_at
            if waited < delay * ALMOST:
                whose = "its handler asked for" if message.asked else "the delay of that retry is"
                raise self._breach(
                    "B",
                    event,
                    f"{event.id} comes as retry {attempt} after {waited:.3f} s; {whose} "
                    f"{delay:g} s",
                )

    def _deferred_enough(
        self, event: Event, rules: HistoryRules, message: MessageState, before: Event
    ) -> None:
        """What is put off waits as long as its handler says, or as in the first hold queue."""
        delays = rules.retry_delays
        if before.attempt != event.attempt or not (message.asked or delays):
            return
        delay, waited = message.asked or delays[0], event.time - message.deferred_at
        if waited < delay * ALMOST:
            raise self._breach(
                "B",
                event,
                f"{event.id} was put off for {delay:g} s, and comes again after {waited:.3f} s",
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
        of its retry, or at once, was handed back; and as long as only processes were killed and
        settles were lost, a note was written by then.
        """
        if event.shard is None or not rules.retry_delays or event.detail == "replay":
            return
        if message.failed_at - self._noteless_at < LASTS_S:
            return
        waited, delay = event.time - message.failed_at, _delay(rules, message, event.attempt)
        if waited < SOON_S or delay * ALMOST <= waited < delay + SOON_S:
            raise self._breach(
                "B",
                event,
                f"{event.id} comes as retry {event.attempt} again, {waited:.3f} s after that "
                "attempt has failed: it was handed back before that was noted",
            )

    def _in_time(self, event: Event, start: Event, topic: TopicState) -> None:
        """A handler has answered. After its time-out it must have been told to stop.

        One that shields itself, or blocks a thread, may answer even so.
        """
        limit = topic.rules.handler_timeout
        if limit is None or event.late or not topic.rules.calm or "B" not in topic.only:
            return
        took = event.time - start.time
        if took > limit + max(_LATE_S, limit * _LATE):
            raise self._breach(
                "B",
                event,
                f"the handler of {event.id} ended after {took:g} s, and nobody had told it to "
                f"stop; its time-out is {limit:g} s",
            )


def _delay(rules: HistoryRules, message: MessageState, failed: int) -> float:
    """Before the retry that follows the failed attempt with that retry count."""
    delays = rules.retry_delays
    return message.asked or delays[min(failed, len(delays) - 1)]
