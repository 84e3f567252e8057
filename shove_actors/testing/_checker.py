"""The invariants, checked event by event.

O  order per key      For one key, messages are handled in the order of their stream, each only
                      after every earlier one is settled; none is skipped.
I  one in flight      At most one handler runs per shard, over all processes, and on other topics
                      at most one per message.
L  nothing is lost    What its publisher was told to be stored has been acknowledged by a handler,
                      is a dead letter, or is still stored.
B  budget is exact    A retry follows a failed attempt, and nothing else; never more than
                      `max_retries`; and a message is given up only for the reason it is given up
                      for.
P  poisoned keys      Of a failed key (FAIL_ALL) nothing later is handled until it is released.
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

from collections.abc import Mapping

from ._check_state import KeyState, MessageState, TopicState
from ._history import Event
from ._rules import HistoryRules, HistoryViolation, Letter, Violation

_COUNTED = ("retry", "raised", "timed_out")


class Checker:
    """Feed it events; it raises `HistoryViolation` at the first that breaks an invariant.

    `rules`: for all topics, or by topic (then others are not checked).
    """

    def __init__(self, rules: HistoryRules | Mapping[str, HistoryRules] | None = None) -> None:
        given = rules if rules is not None else HistoryRules()
        self._default = given if isinstance(given, HistoryRules) else None
        self._topics = (
            {} if isinstance(given, HistoryRules) else {t: TopicState(r) for t, r in given.items()}
        )
        #: Running handlers of each process that is open: topic, id and sequence.
        self._open: dict[str, dict[tuple[str, str, int], Event]] = {}
        self._gone: dict[str, Event] = {}
        self._knows_settled = False
        self._disturbed = False
        self.index = -1
        self.started = 0

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
            self._disturbed = True
            self._process_ends(event.process, event)
            self._gone[event.process] = event
            return
        if kind == "closed":
            self._closed(event)
            return
        if kind == "fault":
            self._disturbed = True
            return
        topic = self._topics.get(event.topic)
        if topic is None:
            if self._default is None:
                return
            topic = self._topics[event.topic] = TopicState(self._default)
        if kind == "poisoned" or kind == "released":
            key = topic.keys.get(event.key or "")
            if key is None:
                key = topic.keys[event.key or ""] = KeyState()
            key.poisoned = event if kind == "poisoned" else None
            if kind == "released" and key.last is not None:
                key.last.rejected = False
            return
        message = topic.messages.get(event.id)
        if message is None:
            message = topic.messages[event.id] = MessageState()
        if kind == "started":
            if event.shard is not None:
                message = self._next_copy(event, topic, message)
            self._started(event, topic, message)
        elif kind == "ended":
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
            self._dead(event, topic, message)
        elif kind == "remaining":
            message.remaining = True
        elif kind == "held":
            message.held = True

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
            if other is not None and "I" in only:
                raise self._breach(
                    "I",
                    event,
                    f"{process} handles {event.id} while {_who(other.process, process)} still does",
                )
            topic.copies[copy] = event
        else:
            other = topic.shards.get(shard)
            if other is not None and "I" in only:
                raise self._breach(
                    "I",
                    event,
                    f"two messages of shard {shard} are in flight: {process} handles {event.id} "
                    f"while {_who(other.process, process)} still handles {other.id}",
                )
            topic.shards[shard] = event
        if event.key is not None:
            self._in_order(event, topic, message)
        attempt = event.attempt
        if "B" in only:
            if attempt != message.highest:
                self._budget(event, topic, message)
            elif topic.rules.calm and not self._disturbed and message.failed >> attempt & 1:
                raise self._breach(
                    "B",
                    event,
                    f"{event.id} comes as retry {attempt} again, although that attempt has failed",
                )
        if attempt > message.highest:
            message.highest = attempt
        if message.first is None:
            message.first = event
            message.key = event.key
            message.sequence = event.sequence
        running[event.topic, event.id, event.sequence] = event

    def _in_order(self, event: Event, topic: TopicState, message: MessageState) -> None:
        name = event.key or ""
        key = topic.keys.get(name)
        if key is None:
            key = topic.keys[name] = KeyState()
        poison = key.poisoned
        if poison is not None and event.sequence > poison.sequence and "P" in topic.only:
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

    def _budget(self, event: Event, topic: TopicState, message: MessageState) -> None:
        attempt, most = event.attempt, topic.rules.max_retries
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
        if attempt < message.highest and event.shard is not None:
            raise self._breach(
                "B",
                event,
                f"{event.id} comes as retry {attempt}, but it had been retry {message.highest}",
            )

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
            return
        if outcome == "cancelled":
            limit = topic.rules.handler_timeout
            if limit is None or event.time - start.time < limit * 0.999:
                return
            outcome = "timed_out"
        if outcome == "defer" and start.shard is not None:
            outcome = "retry"
        if outcome in _COUNTED:
            message.failed |= 1 << attempt
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
        key = topic.keys.get(name)
        if key is None:
            key = topic.keys[name] = KeyState()
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

    def _dead(self, event: Event, topic: TopicState, message: MessageState) -> None:
        reason = message.dead = event.detail or "dead"
        if "B" not in topic.only:
            return
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
        if reason == "crashed" and not message.unended:
            raise self._breach(
                "B",
                event,
                f"{event.id} is a dead letter because it kills its process; none was killed by it",
            )

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


def _who(other: str, process: str) -> str:
    return "the same process" if other == process else other
