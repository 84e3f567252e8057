"""The invariants, checked event by event.

O  order per key      For one key, messages are handled in the order of their stream, each only
                      after every earlier one is settled; none is skipped.
I  one in flight      At most one handler runs per shard, over all processes, and on other topics
                      at most one per message.
L  nothing is lost    What its publisher was told to be stored has been acknowledged by a handler,
                      is a dead letter, or is still stored; and it has not changed.
B  budget is exact    A retry follows a failed attempt, and nothing else, after its delay; never
                      more than `max_retries`; a message is given up only for the reason it is given
                      up for, and once; a copy is made once.
P  poisoned keys      Of a failed key (FAIL_ALL) nothing is handled until it is released, whether or
                      not it was marked; a replay handles its dead letters in their order, and
                      releases it after the last.
T  nothing outlives   A process that has ended or was killed calls no handler, and has none running
                      when it says that it has ended.

Each event is looked at once, with a dictionary look-up or two, and memory grows with the number of
messages. `check_history` is this over a list; a simulation feeds it as it goes.

What is settled. With `settled` events in the history, exactly what they say. Without (handlers
alone were recorded), a message counts as settled from the first attempt that ended in a final way:
less strict, since that settle may not have reached the server, and never wrong.

What has happened and what was found. An event that somebody noted when it happened is taken for its
moment; one of an inventory (`found`) is true then, but may be old.

The parts: `_check_budget.py` (attempts), `_check_letters.py` (dead letters, payloads),
`_check_order.py` (O and P), `_check_end.py`. Every rule fires on a history written for it, and on
no good one: `tests/testing/test_checker*.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ._check_budget import BudgetChecks
from ._check_end import EndChecks
from ._check_letters import FROM_BIRTH
from ._check_state import MessageState, TopicState
from ._given import check_kind
from ._history import Event
from ._rules import HistoryRules

_COUNTED = ("retry", "raised", "timed_out")
#: Faults during which the note about an attempt is stored before the attempt's message is handed
#: back, or neither is.
_NOTES_ARE_WRITTEN = ("Crash(", "LoseAck(", "LateAck(", "LosePuback(", "LatePuback(")


class Checker(BudgetChecks, EndChecks):
    """Feed it events; it raises `HistoryViolation` at the first that breaks an invariant.

    `rules`: for all topics, or by topic (then others are not checked).
    """

    def __init__(self, rules: HistoryRules | Mapping[str, HistoryRules] | None = None) -> None:
        super().__init__()
        given = rules if rules is not None else HistoryRules()
        what = "HistoryRules(...), or a dict of them by topic"
        check_kind(given, "rules", (HistoryRules, Mapping), what)
        if isinstance(given, Mapping):
            for topic, those in given.items():
                check_kind(those, f"rules of topic {topic!r}", HistoryRules, "HistoryRules(...)")
        self._default = given if isinstance(given, HistoryRules) else None
        self._topics.update(
            {} if isinstance(given, HistoryRules) else {t: TopicState(r) for t, r in given.items()}
        )
        #: Running handlers of each process that is open: topic, id and sequence.
        self._open: dict[str, dict[tuple[str, str, int], Event]] = {}
        self._gone: dict[str, Event] = {}
        #: Those of them that stand still, since their process does.
        self._still: set[tuple[str, str, str, int]] = set()
        self.started = 0

    def runs(self, process: str) -> bool:
        """Whether a handler of that process is running."""
        return bool(self._open.get(process))

    def feed(self, event: Event) -> None:
        """The next event."""
        self.index += 1
        kind = event.kind
        if kind == "opened":
            self._process_ends(event.process, event)
            self._gone.pop(event.process, None)
            self._open[event.process] = {}
            return
        if kind == "crashed":
            self._trouble(event)
            self._process_ends(event.process, event)
            self._gone[event.process] = event
            return
        if kind == "closed":
            self._closed(event)
            return
        if kind == "fault":
            self._fault(event)
            return
        topic = self._topics.get(event.topic)
        if topic is None:
            if self._default is None:
                return
            topic = self._topics[event.topic] = TopicState(self._default)
        if kind == "poisoned" or kind == "released":
            self._marked(event, topic)
            return
        message = topic.messages.get(event.id)
        if message is None:
            message = topic.messages[event.id] = MessageState()
        if kind == "started":
            if event.detail == "replay":
                message = self._copy(event, topic, message)
            elif event.shard is not None:
                message = self._next_copy(event, topic, self._copy(event, topic, message))
            self._started(event, topic, message)
        elif kind == "ended":
            self._ended(event, topic, self._copy(event, topic, message))
        elif kind == "published":
            if not event.duplicate:
                self._stored_once(event, topic, message)
                if event.key is not None:
                    message = self._next_copy(event, topic, message)
            self._published(event, topic, message)
        elif kind == "settled":
            self._knows_settled = True
            message = self._copy(event, topic, message)
            if message.sequence in (0, event.sequence):
                message.settled = True
        elif kind == "dead":
            if event.key is not None:
                message = self._copy(event, topic, message)
                self._key_dies(event, topic, message)
            self._dead(event, topic, message)
        elif kind == "remaining":
            message = self._copy(event, topic, message)
            message.remaining = True
            self._same_payload(event, topic, message)
        elif kind == "suspected":
            message = self._copy(event, topic, message)
            message.suspected = None if event.detail == "over" else (event.time, self._troubles)
        elif kind == "held":
            self._held(event, topic, message)
        elif kind == "unconfirmed":
            message.doubtful = True
            self._sent(event, topic, message)

    @staticmethod
    def _copy(event: Event, topic: TopicState, message: MessageState) -> MessageState:
        """The one of that sequence, which may not be the last one with this id."""
        if message.sequence in (0, event.sequence):
            return message
        return topic.messages.get(f"{event.id}@{event.sequence}", message)

    def _trouble(self, event: Event) -> None:
        self._disturbed = True
        self._troubles += 1
        self._trouble_at = event.time

    def _fault(self, event: Event) -> None:
        self._trouble(event)
        detail = event.detail
        if not detail.startswith(_NOTES_ARE_WRITTEN):
            self._noteless_at = event.time
        if detail == "stopped":
            self._stands_still(event.process)
        elif detail == "resharded":
            for name, topic in self._topics.items():
                if event.topic in ("", name):
                    for key in topic.keys.values():
                        key.shard = None
        if detail.startswith(("RestartServer(", "DeleteConsumer(")):
            deleted = detail.startswith("DeleteConsumer(")
            (self._deletions if deleted else self._restarts).append(event.time)
            self._forgotten = max(self._forgotten, event.sequence or math.inf)
            self._recounts |= deleted

    @staticmethod
    def _next_copy(event: Event, topic: TopicState, message: MessageState) -> MessageState:
        """A message of a sequenced topic that was handled under another sequence.

        Its publisher repeated it when the server had forgotten its id: after the duplicate window,
        or after a restart. That is another message.
        """
        if message.first is None or message.first.sequence == event.sequence:
            return message
        topic.messages[f"{event.id}@{message.sequence}"] = message
        publishes = topic.rules.publishes  # an operator, too
        if event.kind == "started" and message.rejected and not message.dead and not publishes:
            # Given up, and there again: its dead letter was published once more, and is none now.
            message.dead = "replayed"
        again = topic.messages[event.id] = MessageState()
        again.doubtful = message.doubtful or message.published is not None
        return again

    # ------------------------------------------------------------------------ handlers

    def _started(self, event: Event, topic: TopicState, message: MessageState) -> None:
        self.started += 1
        only = topic.only
        process = event.process
        running = self._open.get(process)
        if running is None:
            gone = self._gone.get(process)
            if gone is not None and "T" in only:
                end = "was killed" if gone.kind == "crashed" else "had ended"
                raise self._breach(
                    "T", event, f"{process} called a handler for {event.id} after it {end}"
                )
            running = self._open[process] = {}
        shard = event.shard
        if shard is None:
            # A copy at a time: what was repeated after its id had been forgotten is another one.
            copy = event.id, event.sequence
            other = topic.copies.get(copy)
            # A server that was restarted may deliver again what it has forgotten to have delivered.
            # A shard keeps that from being handled twice at a time; here nothing is promised then
            # of what was stored before.
            if other is not None and "I" in only and event.sequence > self._forgotten:
                raise self._breach(
                    "I",
                    event,
                    f"{process} handles {event.id} while {_who(other.process, process)} still does",
                )
            topic.copies[copy] = event
        else:
            lane = topic.lane(event)
            other = topic.lanes.get(lane)
            if other is not None and "I" in only:
                raise self._breach(
                    "I",
                    event,
                    f"two messages of {'key' if topic.rules.keyed else 'shard'} "
                    f"{event.key if topic.rules.keyed else shard} are in flight: {process} handles "
                    f"{event.id} while {_who(other.process, process)} still handles {other.id}",
                )
            topic.lanes[lane] = event
        attempt = event.attempt
        if event.key is not None and shard is not None:
            self._in_its_shard(event, topic)
        if event.detail == "replay":
            self._replayed_in_order(event, topic, message)
            if attempt == 0 and (message.final or not message.replayed):
                message.begin_again()
        elif event.key is not None:
            self._in_order(event, topic, message)
        if event.digest:
            self._same_payload(event, topic, message)
        if "B" in only and (attempt != message.highest or topic.rules.calm):
            self._budget(event, topic, message)
        if attempt > message.highest:
            message.highest = attempt
        message.latest, message.deferred = event, False
        if message.first is None:
            message.first = event
            message.key = event.key
            message.sequence = event.sequence
        running[event.topic, event.id, event.sequence] = event

    def _ended(self, event: Event, topic: TopicState, message: MessageState) -> None:
        running = self._open.get(event.process)
        copy = event.topic, event.id, event.sequence
        start = running.pop(copy, None) if running is not None else None
        if start is None:
            # What is left of a process that was killed: its word does not count.
            return
        topic.over(start)
        outcome = event.outcome
        attempt = start.attempt
        if self._still and (event.process, *copy) in self._still:
            self._still.remove((event.process, *copy))
            if message.latest is not start or message.dead:
                self._too_late(event, message, attempt)
                return
        elif outcome != "cancelled":
            self._in_time(event, start, topic)
        message.asked = event.after
        if outcome == "ack":
            message.acked = message.final = True
            message.rejected = False
            if start.detail == "replay":
                message.replay_acked = True
                topic.key(start.key or "").letters.pop(start.sequence, None)
            return
        if outcome == "cancelled":
            limit = topic.rules.handler_timeout
            if limit is None or event.time - start.time < limit * 0.999:
                return
            outcome = "timed_out"
        if outcome == "unaudited" or (outcome == "defer" and start.shard is None):
            message.deferred, message.deferred_at = True, event.time
        elif outcome == "defer":
            outcome = "retry"
        if outcome in _COUNTED:
            message.failed |= 1 << attempt
            message.failed_at = event.time
            if attempt >= topic.rules.max_retries:
                message.final = message.rejected = True
        elif outcome == "reject":
            message.final = message.rejected = message.refused = True

    @staticmethod
    def _too_late(event: Event, message: MessageState, attempt: int) -> None:
        """Its process stood still, and somebody else was given its message: whether what it says
        now has reached the server nobody knows.
        """
        if event.outcome == "ack":
            message.acked = True
        elif event.outcome in _COUNTED:
            message.failed |= 1 << attempt
            message.failed_at = event.time
        elif event.outcome == "reject":
            message.refused = True

    # ------------------------------------------------------------------------ messages

    def _published(self, event: Event, topic: TopicState, message: MessageState) -> None:
        if event.duplicate:
            message.doubtful = True
            return
        message.published = event
        message.sequence = event.sequence
        self._sent(event, topic, message)
        letter = message.died
        if letter is not None and letter.detail in FROM_BIRTH and "B" in topic.only:
            self._flawed(letter, event, message)
        name = event.key
        if name is None:
            return
        message.key = name
        key = topic.key(name)
        # Of two publishes that overlap nothing is promised; of one batch it is.
        batch, before = key.published
        if batch and batch == event.detail and event.sequence < before and "O" in topic.only:
            raise self._breach(
                "O",
                event,
                f"{event.id} of key {name!r} was published after the message {before} of its key, "
                f"but is stored before it, as {event.sequence}",
            )
        key.published = event.detail, event.sequence

    # ----------------------------------------------------------------------- processes

    def _stands_still(self, process: str) -> None:
        """SIGSTOP. What it had running ends for it when it goes on; for others it is over now."""
        for (name, id_, sequence), start in self._open.get(process, {}).items():
            self._topics[name].over(start)
            self._still.add((process, name, id_, sequence))

    def _process_ends(self, process: str, event: Event) -> None:
        running = self._open.pop(process, None)
        if not running:
            return
        if self._still:
            self._still = {copy for copy in self._still if copy[0] != process}
        for (name, id_, _), start in running.items():
            topic = self._topics[name]
            message = topic.messages[id_]
            message.unended += 1
            topic.over(start)

    def _closed(self, event: Event) -> None:
        running = self._open.pop(event.process, None)
        self._gone[event.process] = event
        if running:
            start = next(iter(running.values()))
            if "T" in self._topics[start.topic].only:
                raise self._breach(
                    "T",
                    event,
                    f"{event.process} has ended while its handler of {start.id} was still running",
                    about=start,
                )


def _who(other: str, process: str) -> str:
    return "the same process" if other == process else other
