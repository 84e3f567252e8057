"""Topology: the streams, durables and subjects behind one topic, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from shove_actors._errors import TopologyError, UsageError

from . import _names
from ._delays import delay_problem
from ._names import check_name, shown
from ._stream_config import NatsStreamConfig, Retention
from ._subjects import check_pattern, is_literal, matches, overlap, subject_problem

DEFAULT_SHARDS = 8

# A stream names each of its shard subjects, and each shard has a durable. This many still fit one
# request to the server by far, and are far beyond what can run.
MAX_SHARDS = 4096

# Handlers of one lane at once; each has a task.
MAX_KEYED = 65_536


class SequenceFailure(Enum):
    """What becomes of a key when one of its messages fails for good."""

    SKIP = "skip"
    """The failed message goes to the dead letters, the key goes on."""
    FAIL_ALL = "fail_all"
    """It and all later messages of its key go to the dead letters, until somebody releases the
    key (`broker.release`)."""


@dataclass(frozen=True)
class HoldQueue:
    """A delay stage: messages wait `delay_s` seconds in the stream `name`."""

    name: str
    delay_s: float


def hold_queue(queue: str, seconds: float) -> HoldQueue:
    """The hold queue of `queue` for a delay, rounded to whole milliseconds."""
    problem = delay_problem(seconds)
    if problem is None and seconds < 0.001:
        problem = f"must be at least 0.001 seconds (one millisecond), not {seconds!r}"
    if problem is not None:
        raise TopologyError(f"hold_queue delay {problem}")
    delay_ms = round(seconds * 1000)
    return HoldQueue(_names.hold_name(queue, delay_ms), delay_ms / 1000)


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Where a topic's messages live. Made by `TopologyBuilder`; checked when it is made.

    Raises `TopologyError` naming the rule and the fix (yours to fix). Topologies with equal fields
    are equal: the same topic may be declared from two places.
    """

    queue: str
    """Name of the topic and of its main stream."""
    holds: tuple[HoldQueue, ...] = ()
    """Delay stages, shortest first."""
    dlq: str | None = None
    """Name of the dead-letter stream."""
    sequence_failure: SequenceFailure | None = None
    """None: messages of this topic have no order."""
    routing_shards: int = 0
    """Number of ordered lanes; 0 when the topic is not sequenced."""
    keyed: int | None = None
    """How many keys of a lane are handled at once, in one process at a time; None: one message per
    lane at a time."""
    allow_message_loss: bool = False
    stream_config: NatsStreamConfig | None = None
    """As given; None: the defaults. See `config`."""
    external: bool = False
    """The main stream belongs to somebody else: never created or changed."""
    subjects: tuple[str, ...] = ()
    """Subjects given by `nats_subjects`; empty: the queue's name or the shard subjects."""

    def __post_init__(self) -> None:
        self._check_names()
        self._check_holds()
        self._check_sequence()
        self._check_external()
        self._check_subjects()

    def _check_names(self) -> None:
        check_name(self.queue, "queue name")
        check_name(self.durable, "durable name")
        if self.dlq is not None:
            check_name(self.dlq, "dead-letter queue name")
            check_name(_names.dlq_durable(self.dlq), "durable name")
        for name in self.note_streams():
            check_name(name, "name of the stream for attempts")
        for hold in self.holds:
            check_name(hold.name, "hold queue name")
            check_name(self.hold_durable(hold), "durable name")
        names = self.stream_names()
        for name in names:
            if names.count(name) > 1 and name == self.dlq:
                raise TopologyError(
                    f"dead-letter queue {shown(name)} of queue {shown(self.queue)} has the name of "
                    "another of its streams: choose another name in dlq_named(...)"
                )

    def _check_holds(self) -> None:
        for earlier, later in zip(self.holds, self.holds[1:], strict=False):
            if later.delay_s == earlier.delay_s:
                raise TopologyError(
                    f"queue {shown(self.queue)} has two hold queues of {later.delay_s:g} seconds "
                    "(delays are whole milliseconds): give each delay once"
                )
            if later.delay_s < earlier.delay_s:
                raise TopologyError(
                    f"hold queues of {shown(self.queue)} must ascend: {later.delay_s:g} seconds "
                    f"comes after {earlier.delay_s:g}. Give the shortest delay first"
                )
        for hold in self.holds:
            if hold != hold_queue(self.queue, hold.delay_s):
                raise TopologyError(
                    f"hold queue {shown(hold.name)} is not named after its queue and delay: "
                    "build it with TopologyBuilder.hold_queue(seconds)"
                )

    def _check_sequence(self) -> None:
        shards: object = self.routing_shards
        whole = isinstance(shards, int) and not isinstance(shards, bool)
        if self.sequence_failure is None:
            if not whole or shards != 0:
                raise TopologyError(
                    f"routing_shards needs a sequenced topology: call "
                    f"sequenced(SequenceFailure.SKIP) on {shown(self.queue)} before routing_shards"
                )
            if self.keyed is not None:
                raise TopologyError(
                    f"keyed needs a sequenced topology: call sequenced(SequenceFailure.SKIP) on "
                    f"{shown(self.queue)} before keyed"
                )
            return
        if not isinstance(self.sequence_failure, SequenceFailure):
            raise TopologyError("sequenced(...) takes a SequenceFailure: SequenceFailure.SKIP")
        if not whole or not 1 <= self.routing_shards <= MAX_SHARDS:
            raise TopologyError(f"routing_shards must be a whole number from 1 to {MAX_SHARDS}")
        check_name(self.shard_durable(self.routing_shards - 1), "shard durable name")
        if self.fails_all:
            _names.check_bucket(self.queue)
        self._check_keyed()
        if not self.allow_message_loss and (self.dlq is None or not self.holds):
            missing = "dead-letter queue (.dlq())" if self.dlq is None else "hold queue"
            fix = ".dlq()" if self.dlq is None else ".hold_queue(seconds)"
            raise TopologyError(
                f"sequenced queue {shown(self.queue)} has no {missing}: a sequenced topic needs a "
                f"dead-letter queue and a hold queue. Add {fix}, or accept the loss with "
                ".allow_message_loss()"
            )

    def _check_keyed(self) -> None:
        most: object = self.keyed
        if most is None:
            return
        if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= MAX_KEYED:
            raise TopologyError(
                f"keyed(max_in_flight={most!r}) on {shown(self.queue)}: a whole number from 1 to "
                f"{MAX_KEYED}"
            )
        _names.check_owners_bucket(self.queue)
        config = self.stream_config
        if config is not None and config.retention is not Retention.WORK_QUEUE:
            # A takeover rewinds to where all is acknowledged; what is acknowledged above that has
            # to be gone, or it is handled again, behind what came after it.
            raise TopologyError(
                f"keyed(...) on {shown(self.queue)} with {config.retention}: a keyed topic forgets "
                "a message once it is acknowledged. Use Retention.WORK_QUEUE, or leave keyed out"
            )

    def _check_external(self) -> None:
        if not self.external:
            return
        for given, name in (
            (self.stream_config is not None, "nats_stream_config"),
            (bool(self.subjects), "nats_subjects"),
            (self.sequenced, "sequenced"),
        ):
            if given:
                raise TopologyError(
                    f"nats_external_stream and {name} exclude each other on {shown(self.queue)}: "
                    f"an external stream is never created or changed, {name} would have to. "
                    "Remove one of the two"
                )

    def _check_subjects(self) -> None:
        if self.stream_config is not None and not isinstance(self.stream_config, NatsStreamConfig):
            raise TopologyError("nats_stream_config takes a NatsStreamConfig(...)")
        if self.subjects and self.sequenced:
            raise TopologyError(
                f"nats_subjects and sequenced exclude each other on {shown(self.queue)}: a message "
                "on such a subject would belong to no lane. Remove one of the two"
            )
        for subject in self.subjects:
            check_pattern(subject)
        own = [name for name in self.stream_names() if name != self.queue]
        for index, subject in enumerate(self.subjects):
            for other in (*self.subjects[index + 1 :], *own):
                if overlap(subject, other):
                    raise TopologyError(
                        f"subject {shown(subject)} of queue {shown(self.queue)} overlaps "
                        f"{shown(other)}: the server binds a subject once. Remove or narrow one"
                    )

    @property
    def sequenced(self) -> bool:
        """Whether messages of one key are handled in order."""
        return self.sequence_failure is not None

    @property
    def fails_all(self) -> bool:
        """Whether a key that failed stays failed: `SequenceFailure.FAIL_ALL`."""
        return self.sequence_failure is SequenceFailure.FAIL_ALL

    @property
    def poison_bucket(self) -> str | None:
        """`{queue}-poison`: the key-value bucket of poisoned keys; None without FAIL_ALL."""
        return _names.poison_bucket(self.queue) if self.fails_all else None

    @property
    def owners_bucket(self) -> str | None:
        """`{queue}-owners`: the key-value bucket of who handles which shard; None unless keyed."""
        return _names.owners_bucket(self.queue) if self.keyed is not None else None

    @property
    def config(self) -> NatsStreamConfig:
        """The main stream's configuration: the given one or the defaults."""
        return self.stream_config if self.stream_config is not None else NatsStreamConfig()

    @property
    def durable(self) -> str:
        """`{queue}-consumer`: the durable of an unsequenced topic, shared by all processes."""
        return _names.main_durable(self.queue)

    def shard_durable(self, shard: int) -> str:
        """`{queue}-shard-{N}`; `UsageError` for a lane the topology does not have."""
        self._check_shard(shard)
        return _names.shard_durable(self.queue, shard)

    def shard_subject(self, shard: int) -> str:
        """`{queue}.shard.{N}`; `UsageError` for a lane the topology does not have."""
        self._check_shard(shard)
        return self._shard_subjects[shard]

    def _check_shard(self, shard: int) -> None:
        if not 0 <= shard < self.routing_shards:
            count = self.routing_shards
            raise UsageError(f"queue {shown(self.queue)} has {count} shards, no number {shard}")

    @cached_property
    def _shard_subjects(self) -> tuple[str, ...]:
        return tuple(_names.shard_subject(self.queue, n) for n in range(self.routing_shards))

    @property
    def dlq_durable(self) -> str | None:
        """`{dlq}-consumer`, or None without a dead-letter queue."""
        return None if self.dlq is None else _names.dlq_durable(self.dlq)

    def hold_durable(self, hold: HoldQueue) -> str:
        """`{hold}-mover`: the durable of the mover that returns messages when they are due."""
        return _names.hold_durable(hold.name)

    @cached_property
    def publish_subjects(self) -> tuple[str, ...]:
        """What the main stream binds: the given subjects, one subject per shard, or the queue.

        Of an external stream only its owner knows; the queue's name stands for where we publish.
        """
        return self.subjects or self._shard_subjects or (self.queue,)

    @cached_property
    def default_subject(self) -> str | None:
        """Where a message goes when the call names no subject: the first literal one.

        None when there is none (only wildcards: the call must name one; sequenced: the key
        decides).
        """
        if self.sequenced:
            return None
        return next((s for s in self.publish_subjects if is_literal(s)), None)

    def check_subject(self, subject: str) -> str:
        """`subject` itself if a message may be published there, else `TopologyError`.

        It must be literal and matched by one of the topic's subjects. For an external stream only
        the form is checked here; whether its owner bound the subject, the server answers.
        """
        if subject in self.publish_subjects and is_literal(subject) and not self.sequenced:
            return subject
        problem = subject_problem(subject, wildcards=False)
        if problem is not None:
            name = shown(subject) if isinstance(subject, str) else "to publish to"
            raise TopologyError(f"subject {name} {problem}")
        if self.sequenced:
            raise TopologyError(
                f"topic {shown(self.queue)} is sequenced: the key decides the subject, leave out "
                "subject="
            )
        if self.external or any(matches(p, subject) for p in self.subjects):
            return subject
        raise TopologyError(
            f"subject {shown(subject)} is not one of topic {shown(self.queue)}: its stream takes "
            f"{', '.join(map(shown, self.publish_subjects[:5]))}. Publish to one of these, or add "
            "it with nats_subjects([...])"
        )

    def note_streams(self) -> tuple[str, ...]:
        """Streams for what is remembered of messages and keys; made when there is a need."""
        names = [_names.attempts_stream(self.queue)]
        if self.dlq is not None:
            names.append(_names.attempts_stream(self.dlq))
        if self.poison_bucket is not None:
            names.append(_names.bucket_stream(self.poison_bucket))
        if self.owners_bucket is not None:
            names.append(_names.bucket_stream(self.owners_bucket))
        return tuple(names)

    def stream_names(self) -> tuple[str, ...]:
        """Every stream of the topic: main, holds, dead letters."""
        dlq = () if self.dlq is None else (self.dlq,)
        return (self.queue, *(hold.name for hold in self.holds), *dlq)
