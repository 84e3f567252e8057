"""The order of each key (O), and what waits since the key has failed (P). Part of `Checker`."""

from __future__ import annotations

from ._check_breach import CheckPart
from ._check_state import KeyState, MessageState, TopicState
from ._history import Event

#: Not those by which a message dies for another one of its key, nor with headers that may say that
#: it is nobody's message.
_POISONING = frozenset({"rejected", "max_retries_exceeded", "undecodable", "oversize", "crashed"})


class OrderChecks(CheckPart):
    """What is handled when, among the messages of a key."""

    def _marked(self, event: Event, topic: TopicState) -> None:
        key = topic.key(event.key or "")
        if event.kind == "poisoned":
            if not key.ever_poisoned:
                key.ever_poisoned, key.first_poisoned = True, event.sequence
            key.poisoned = event
            return
        # The letter of what has failed may be stored after the release: that is known by then.
        failed = key.poisoned or key.failed
        if failed is not None:
            key.pardoned = max(key.pardoned, failed.sequence)
        elif key.last is not None and key.last.rejected:
            key.pardoned = max(key.pardoned, key.last.sequence)
        key.poisoned, key.failed, key.released = None, None, event
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

    def _key_dies(self, event: Event, topic: TopicState, message: MessageState) -> None:
        """A dead letter of a key, before its message knows of it."""
        key = topic.key(event.key or "")
        if event.found:
            return  # of when it died nothing is known
        self._not_passed_over(event, topic, key, message)
        if (
            topic.rules.fail_all
            and event.detail in _POISONING
            and event.sequence > key.pardoned
            and (key.failed is None or event.sequence < key.failed.sequence)
        ):
            key.failed = event

    def _not_passed_over(
        self, event: Event, topic: TopicState, key: KeyState, message: MessageState
    ) -> None:
        last, first = key.last, message.first
        if last is None or last.sequence <= event.sequence or message.dead is not None:
            return
        if first is not None and first.sequence == event.sequence:
            return
        if "O" in topic.only:
            later = last.first.id if last.first is not None else "?"
            raise self._breach(
                "O",
                event,
                f"{event.id} of key {event.key!r} was passed over: it is given up only after "
                f"{later}, which was stored later, has been handled",
            )

    def _replayed_in_order(self, event: Event, topic: TopicState, message: MessageState) -> None:
        letters = topic.key(event.key or "").letters
        first = min(letters, default=event.sequence)
        if first < event.sequence and "O" in topic.only:
            raise self._breach(
                "O",
                event,
                f"dead letter {event.id} of key {event.key!r} is replayed before {letters[first]}, "
                "which is a dead letter of an earlier message",
            )
        calm = topic.rules.calm and not self._disturbed
        if message.replay_acked and calm and "B" in topic.only:
            raise self._breach(
                "B",
                event,
                f"dead letter {event.id} is replayed again, although a replay has handled it and "
                "nothing was wrong",
            )

    def _in_its_shard(self, event: Event, topic: TopicState) -> None:
        if not topic.rules.calm:
            return
        key = topic.key(event.key or "")
        if key.shard is None:
            key.shard = event.shard
        elif key.shard != event.shard and "O" in topic.only:
            raise self._breach(
                "O",
                event,
                f"{event.id} of key {event.key!r} is handled in shard {event.shard}, but earlier "
                f"ones were in shard {key.shard}: two shards keep no order between them",
            )

    def _in_order(self, event: Event, topic: TopicState, message: MessageState) -> None:
        name = event.key or ""
        key = topic.key(name)
        poison = key.poisoned
        if poison is not None and event.sequence >= poison.sequence and "P" in topic.only:
            raise self._breach(
                "P", event, f"{event.id} is handled although its key {name!r} is poisoned"
            )
        failed = key.failed
        if failed is not None and event.sequence > failed.sequence and "P" in topic.only:
            raise self._breach(
                "P",
                event,
                f"{event.id} is handled although {failed.id}, an earlier message of its key "
                f"{name!r}, is a dead letter ({failed.detail}) and the key has not been released",
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
