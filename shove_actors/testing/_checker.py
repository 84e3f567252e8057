"""The invariants, checked event by event.

O  order per key      For one key, messages are handled in the order of their stream, each only
                      after every earlier one is settled; none is skipped.
I  one in flight      At most one handler runs per shard, over all processes, and on other topics
                      at most one per message.
L  nothing is lost    What its publisher was told to be stored has been acknowledged by a handler,
                      is a dead letter, or is still stored.
B  budget is exact    A retry follows a failed attempt, and nothing else, after its delay; never
                      more than `max_retries`; a message is given up only for the reason it is given
                      up for, and once; a copy is made once.
P  poisoned keys      Of a failed key (FAIL_ALL) nothing is handled until it is released; a replay
                      handles its dead letters in their order, and releases it after the last.
T  nothing outlives   A process that has ended or was killed calls no handler, and has none running
                      when it says that it has ended.

Each event is looked at once, with a dictionary look-up or two, and memory grows with the number of
messages. `check_history` is this over a list; a simulation feeds it as it goes.

What is settled. With `settled` events in the history, exactly what they say. Without (handlers
alone were recorded), a message counts as settled from the first attempt that ended in a final way:
less strict, since that settle may not have reached the server, and never wrong.

Every rule fires on a history written for it, and on no good one: `tests/testing/test_checker.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ._check_budget import BudgetChecks
from ._check_state import MessageState, TopicState
from ._given import check_kind
from ._history import Event
from ._rules import HistoryRules

_COUNTED = ("retry", "raised", "timed_out")
#: Faults during which the note about an attempt is stored before the attempt's message is handed
#: back, or neither is.
_NOTES_ARE_WRITTEN = ("Crash(", "LoseAck(", "LateAck(", "LosePuback(", "LatePuback(")


class Checker(BudgetChecks):
    """Feed it events; it raises `HistoryViolation` at the first that breaks an invariant.

    `rules`: for all topics, or by topic (then others are not checked).
    """

    def __init__(self, rules: HistoryRules | Mapping[str, HistoryRules] | None = None) -> None:
        given = rules if rules is not None else HistoryRules()
        what = "HistoryRules(...), or a dict of them by topic"
        check_kind(given, "rules", (HistoryRules, Mapping), what)
        if isinstance(given, Mapping):
            for topic, those in given.items():
                check_kind(those, f"rules of topic {topic!r}", HistoryRules, "HistoryRules(...)")
        self._default = given if isinstance(given, HistoryRules) else None
        self._topics = (
            {} if isinstance(given, HistoryRules) else {t: TopicState(r) for t, r in given.items()}
        )
        #: Running handlers of each process that is open: topic, id and sequence.
        self._open: dict[str, dict[tuple[str, str, int], Event]] = {}
        self._gone: dict[str, Event] = {}
        self._knows_settled = False
        self._troubles = 0
        self._trouble_at = -math.inf
        self._disturbed = self._recounts = False
        self._noteless_at = -math.inf
        self._restarts: list[float] = []
        self._deletions: list[float] = []
        #: Up to which message a server may have forgotten that it has delivered it.
        self._forgotten = 0.0
        self.index = -1
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
                message = self._next_copy(event, topic, message)
            self._started(event, topic, message)
        elif kind == "ended":
            if event.detail == "replay":
                message = self._copy(event, topic, message)
            self._ended(event, topic, message)
        elif kind == "published":
            if event.key is not None and not event.duplicate:
                message = self._next_copy(event, topic, message)
            self._published(event, topic, message)
        elif kind == "settled":
            self._knows_settled = True
            if message.sequence in (0, event.sequence):
                message.settled = True
        elif kind == "dead":
            if event.key is not None:
                message = self._copy(event, topic, message)
            self._dead(event, topic, message)
        elif kind == "remaining":
            message.remaining = True
        elif kind == "suspected":
            message.suspected = None if event.detail == "over" else (event.time, self._troubles)
        elif kind == "held":
            self._held(event, topic)

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
        if detail.startswith(("RestartServer(", "DeleteConsumer(")):
            deleted = detail.startswith("DeleteConsumer(")
            (self._deletions if deleted else self._restarts).append(event.time)
            self._forgotten = max(self._forgotten, event.sequence or math.inf)
            self._recounts |= deleted

    def _marked(self, event: Event, topic: TopicState) -> None:
        key = topic.key(event.key or "")
        if event.kind == "poisoned":
            key.poisoned, key.ever_poisoned = event, True
            return
        key.poisoned = None
        if key.last is not None:
            key.last.rejected = False
        if key.letters and topic.rules.replays and "P" in topic.only:
            sequence, id_ = min(key.letters.items())
            raise self._breach(
                "P",
                event,
                f"key {event.key!r} is released although its dead letter {id_} (message "
                f"{sequence}) has not been handled",
            )
        key.letters.clear()

    @staticmethod
    def _next_copy(event: Event, topic: TopicState, message: MessageState) -> MessageState:
        """A message of a sequenced topic that was handled under another sequence.

        Its publisher repeated it when the server had forgotten its id: after the duplicate window,
        or after a restart. That is another message.
        """
        if message.first is None or message.first.sequence == event.sequence:
            return message
        topic.messages[f"{event.id}@{message.sequence}"] = message
        again = topic.messages[event.id] = MessageState()
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
        if event.detail == "replay":
            self._replayed_in_order(event, topic)
            if attempt == 0 and (message.final or not message.replayed):
                message.begin_again()
        elif event.key is not None:
            self._in_order(event, topic, message)
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

    def _replayed_in_order(self, event: Event, topic: TopicState) -> None:
        letters = topic.key(event.key or "").letters
        first = min(letters, default=event.sequence)
        if first < event.sequence and "O" in topic.only:
            raise self._breach(
                "O",
                event,
                f"dead letter {event.id} of key {event.key!r} is replayed before {letters[first]}, "
                "which is a dead letter of an earlier message",
            )

    def _in_order(self, event: Event, topic: TopicState, message: MessageState) -> None:
        name = event.key or ""
        key = topic.key(name)
        poison = key.poisoned
        if poison is not None and event.sequence >= poison.sequence and "P" in topic.only:
            raise self._breach(
                "P", event, f"{event.id} is handled although its key {name!r} is poisoned"
            )
        last = key.last
        if last is message:
            return
        if last is not None:
            if event.sequence < last.sequence and "O" in topic.only:
                later = last.first.id if last.first is not None else "?"
                raise self._breach(
                    "O",
                    event,
                    f"{event.id} of key {name!r} is handled after {later}, which was stored later",
                )
            settled = last.settled if self._knows_settled else last.final or last.unended > 0
            if not (settled or last.dead) and "O" in topic.only:
                earlier = last.first.id if last.first is not None else "?"
                raise self._breach(
                    "O",
                    event,
                    f"{event.id} of key {name!r} is handled before {earlier}, which was stored "
                    "earlier, is settled",
                )
            if topic.rules.fail_all and last.rejected and "P" in topic.only:
                raise self._breach(
                    "P",
                    event,
                    f"{event.id} is handled although an earlier message of its key {name!r} has "
                    "failed for good",
                )
        key.last = message

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
        if outcome == "ack":
            message.acked = message.final = True
            message.rejected = False
            if start.detail == "replay":
                topic.key(start.key or "").letters.pop(start.sequence, None)
            return
        if outcome == "cancelled":
            limit = topic.rules.handler_timeout
            if limit is None or event.time - start.time < limit * 0.999:
                return
            outcome = "timed_out"
        if outcome == "defer":
            message.deferred = start.shard is None
            outcome = outcome if start.shard is None else "retry"
        if outcome in _COUNTED:
            message.failed |= 1 << attempt
            message.failed_at = event.time
            if attempt >= topic.rules.max_retries:
                message.final = message.rejected = True
        elif outcome == "reject":
            message.final = message.rejected = message.refused = True

    # ------------------------------------------------------------------------ messages

    def _published(self, event: Event, topic: TopicState, message: MessageState) -> None:
        if event.duplicate:
            return
        message.published = event
        message.sequence = event.sequence
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

    def _process_ends(self, process: str, event: Event) -> None:
        running = self._open.pop(process, None)
        if not running:
            return
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

    # ------------------------------------------------------------------------- the end

    def finish(self) -> None:
        """The history is complete, with everything that is still stored (`remaining`)."""
        for topic in self._topics.values():
            rules = topic.rules
            for id_, message in topic.messages.items():
                said = message.published
                if said is None:
                    continue
                gone = message.final and not rules.dead_letters
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
                self._not_skipped(said, id_, topic, message)

    def _not_skipped(self, said: Event, id_: str, topic: TopicState, message: MessageState) -> None:
        if message.key is None or message.first is not None or message.dead:
            return
        last = topic.keys[message.key].last
        if last is not None and last.sequence > message.sequence and "O" in topic.only:
            later = last.first.id if last.first is not None else "?"
            raise self._breach(
                "O",
                said,
                f"{id_} of key {message.key!r} was passed over: {later}, which was stored later, "
                "has been handled",
                end=True,
            )


def _who(other: str, process: str) -> str:
    return "the same process" if other == process else other
