"""Programs without bad luck, and three that run them: a model, the memory backend, and NATS.

A program publishes (also twice under one id), says what each attempt answers, starts and stops
consumer processes, and releases poisoned keys. After each step everything that can be done is done,
so what happens is fully determined, and can be written down in plain Python (`Model`): what is
handled in which order and how often, what ends as a dead letter, why and after how many retries,
which keys are poisoned, and what still waits. The backends must agree with the model, step by step.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec
import trio
import trio.testing

from shove_actors import (
    MemoryConfig,
    MessageMetadata,
    NatsConfig,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    open_broker,
)
from shove_actors.messaging import (
    CONTROL,
    DEATH_REASON,
    KEY,
    RETRY_COUNT,
    decode_headers,
    decode_key,
    logical_id,
)

Answer = Literal["ack", "retry", "raise", "reject", "defer"]

MAX_RETRIES = 2
#: Real time until a step must be done: a busy machine is slow, and a hang must end.
STEP_S = 30.0

_QUEUES = (f"agree-{os.urandom(3).hex()}-{n}" for n in itertools.count(1))


class Note(msgspec.Struct):
    id: str
    key: str


# ------------------------------------------------------------------------------ programs


@dataclass(frozen=True)
class Publish:
    """`answers`: of its attempts, in turn; then it is acknowledged."""

    id: str
    key: str
    answers: tuple[Answer, ...] = ()

    def __str__(self) -> str:
        return f"publish({', '.join(map(repr, (self.id, self.key, *self.answers)))})"


@dataclass(frozen=True)
class Start:
    def __str__(self) -> str:
        return "start()"


@dataclass(frozen=True)
class Stop:
    def __str__(self) -> str:
        return "stop()"


@dataclass(frozen=True)
class Release:
    key: str
    replay: bool

    def __str__(self) -> str:
        return f"release({self.key!r}, replay={self.replay})"


Step: TypeAlias = Publish | Start | Stop | Release


@dataclass(frozen=True)
class Seen:
    """What can be observed, after a step. Between keys there is no order."""

    handled: dict[str, list[tuple[str, int]]]
    dead: dict[str, list[tuple[str, str, int]]]
    poisoned: dict[str, tuple[str, str]]
    waiting: list[str]


def topic_of(policy: SequenceFailure | None, queue: str) -> Topic[Note]:
    builder = TopologyBuilder(queue)
    if policy is None:
        return Topic(Note, builder.hold_queue(0.05).hold_queue(0.1).dlq().build())
    builder = builder.sequenced(policy).routing_shards(2)
    topology = builder.hold_queue(0.05).hold_queue(0.1).dlq().build()
    return SequencedTopic(Note, key=lambda note: note.key, topology=topology)


# ------------------------------------------------------------------------------ the model


@dataclass
class _Message:
    id: str
    key: str
    #: A request to replay the dead letters of `key`, made while its poison was this one.
    control: object = None


@dataclass
class _Letter:
    id: str
    key: str
    reason: str
    retries: int


@dataclass
class Model:
    """What must happen, without any time, process or stream."""

    policy: SequenceFailure | None
    processes: int = 0
    queue: list[_Message] = field(default_factory=list)
    letters: list[_Letter] = field(default_factory=list)
    #: By key: the letters to replay, the first of which has poisoned it.
    poisoned: dict[str, list[_Letter]] = field(default_factory=dict)
    #: Why that one failed; of a replay that has stopped, the last time.
    reasons: dict[str, str] = field(default_factory=dict)
    handled: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    answers: dict[str, list[Answer]] = field(default_factory=dict)

    def run(self, program: list[Step]) -> list[Seen]:
        return [self._step(step) for step in program]

    def _step(self, step: Step) -> Seen:
        if isinstance(step, Publish):
            if step.id not in self.answers:
                self.answers[step.id] = list(step.answers)
                self.queue.append(_Message(step.id, step.key))
        elif isinstance(step, Start):
            self.processes += 1
        elif isinstance(step, Stop):
            self.processes = max(0, self.processes - 1)
        elif step.key in self.poisoned:
            letters = self.poisoned[step.key]
            if not step.replay:
                del self.poisoned[step.key]
            elif not any(m.control is letters for m in self.queue):
                self.queue.append(_Message("", step.key, letters))
        while self.processes and self.queue:
            message = self.queue.pop(0)
            if message.control is not None:
                self._replay(message.key)
            else:
                self._handle(message)
        return self._seen()

    def _handle(self, message: _Message) -> None:
        behind = self.poisoned.get(message.key)
        if behind is not None:
            letter = _Letter(message.id, message.key, "sequence_failed", 0)
            behind.append(letter)
        else:
            found = self._attempts(message.id, message.key)
            if found is None:
                return
            letter = _Letter(message.id, message.key, *found)
            if self.policy is SequenceFailure.FAIL_ALL:
                self.poisoned[message.key] = [letter]
                self.reasons[message.key] = letter.reason
        self.letters.append(letter)

    def _attempts(self, id_: str, key: str) -> tuple[str, int] | None:
        """Why it is given up, and after how many retries; None if it is not."""
        retries, answers = 0, self.answers[id_]
        while True:
            self.handled.setdefault(key if self.policy else id_, []).append((id_, retries))
            answer = answers.pop(0) if answers else "ack"
            if answer == "ack":
                return None
            if answer == "reject":
                return "rejected", retries
            if answer == "defer" and self.policy is None:
                continue
            if retries == MAX_RETRIES:
                return "max_retries_exceeded", retries
            retries += 1

    def _replay(self, key: str) -> None:
        letters = self.poisoned.get(key, [])
        while letters:
            letter = letters[0]
            found = self._attempts(letter.id, key)
            if found is not None:
                # Another state of the key: asking again is another request.
                self.poisoned[key] = list(letters)
                self.reasons[key] = found[0]
                return
            self.letters = [other for other in self.letters if other is not letter]
            letters.pop(0)
        self.poisoned.pop(key, None)

    def _seen(self) -> Seen:
        dead: dict[str, list[tuple[str, str, int]]] = {}
        for letter in self.letters:
            key = letter.key if self.policy else letter.id
            dead.setdefault(key, []).append((letter.id, letter.reason, letter.retries))
        return Seen(
            {key: list(all_) for key, all_ in self.handled.items()},
            dead,
            {key: (letters[0].id, self.reasons[key]) for key, letters in self.poisoned.items()},
            [message.id for message in self.queue if message.control is None],
        )


# ----------------------------------------------------------------------------- a backend


class Backed:
    """A program on a broker."""

    def __init__(self, policy: SequenceFailure | None, config: Callable[[], Any], tick: float):
        self.policy, self.config, self.tick = policy, config, tick
        self.topic = topic_of(policy, next(_QUEUES))
        self.handled: dict[str, list[tuple[str, int]]] = {}
        self.answers: dict[str, list[Answer]] = {}
        self.groups: list[tuple[Any, trio.Event]] = []

    async def run(self, program: list[Step]) -> list[Seen]:
        seen = []
        async with open_broker(self.config()) as self.broker:
            await self.broker.declare(self.topic)
            async with trio.open_nursery() as self.nursery:
                for step in program:
                    with trio.fail_after(STEP_S):
                        await self._step(step)
                        seen.append(await self._seen())
                while self.groups:
                    await self._step(Stop())
        return seen

    async def _step(self, step: Step) -> None:
        if isinstance(step, Publish):
            self.answers.setdefault(step.id, list(step.answers))
            note = Note(step.id, step.key)
            await self.broker.publisher().publish(self.topic, note, message_id=step.id)
        elif isinstance(step, Start):
            await self.nursery.start(self._process)
        elif isinstance(step, Stop):
            if self.groups:
                group, over = self.groups.pop(0)
                group.stop()
                await over.wait()
        elif self.policy is SequenceFailure.FAIL_ALL:
            await self.broker.release(self.topic, step.key, replay=step.replay)
        # Twice: between two looks a message may hop from a hold queue that is looked at later to
        # one that was looked at already. There it waits for longer than another round takes.
        while self.groups and (await self._busy() or await self._busy()):  # noqa: ASYNC110
            await trio.sleep(self.tick)

    async def _process(self, *, task_status: trio.TaskStatus[None]) -> None:
        over = trio.Event()
        async with open_broker(self.config()) as broker:
            group = broker.consumer_group()
            group.register(self.topic, self._handle, max_retries=MAX_RETRIES, handler_timeout=None)
            self.groups.append((group, over))
            await group.serve(task_status=task_status)
        over.set()

    async def _handle(self, note: Note, metadata: MessageMetadata, context: object) -> Outcome:
        key = note.key if self.policy else note.id
        self.handled.setdefault(key, []).append((note.id, metadata.retry_count))
        answers = self.answers[note.id]
        answer = answers.pop(0) if answers else "ack"
        if answer == "raise":
            raise ValueError("as the program says")
        outcome: Outcome = getattr(Outcome, answer.upper())
        return outcome

    async def _busy(self) -> bool:
        topology = self.topic.topology
        streams = [topology.queue]
        if not topology.sequenced:
            streams += [hold.name for hold in topology.holds]
        for stream in streams:
            if await self.broker.backend.next_message(stream, 1) is not None:
                return True
        return False

    async def _seen(self) -> Seen:
        dead: dict[str, list[tuple[str, str, int]]] = {}
        topology = self.topic.topology
        assert topology.dlq is not None
        for id_, headers in await self._stored(topology.dlq):
            key = decode_key(headers[KEY]) if self.policy else id_
            entry = id_, headers[DEATH_REASON], int(headers.get(RETRY_COUNT, 0))
            dead.setdefault(key or "", []).append(entry)
        poisoned = {}
        if self.policy is SequenceFailure.FAIL_ALL:
            for each in await self.broker.poisoned(self.topic):
                poisoned[each.key] = (each.message_id, each.reason)
        waiting = [id_ for id_, h in await self._stored(topology.queue) if CONTROL not in h]
        handled = {key: list(all_) for key, all_ in self.handled.items()}
        return Seen(handled, dead, poisoned, waiting)

    async def _stored(self, stream: str) -> list[tuple[str, dict[str, str]]]:
        found: list[tuple[str, dict[str, str]]] = []
        sequence = 1
        while True:
            kept = await self.broker.backend.next_message(stream, sequence)
            if kept is None:
                return found
            headers = dict(decode_headers(kept.raw_headers)) if kept.raw_headers else {}
            found.append((logical_id(headers, stream, kept.sequence), headers))
            sequence = kept.sequence + 1


def on_memory(policy: SequenceFailure | None, program: list[Step]) -> list[Seen]:
    from shove_actors.backends.memory import MemoryServer

    server = MemoryServer()
    backed = Backed(policy, lambda: MemoryConfig(server=server), 0.05)
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(functools.partial(backed.run, program), clock=clock)


def on_nats(policy: SequenceFailure | None, program: list[Step], url: str) -> list[Seen]:
    backed = Backed(policy, lambda: NatsConfig(url), 0.005)
    return trio.run(functools.partial(backed.run, program))


def difference(
    program: list[Step], expected: list[Seen], found: list[Seen], who: str
) -> str | None:
    """The program up to the first step after which `found` is not what was `expected`."""
    for index, (should, does) in enumerate(zip(expected, found, strict=True)):
        if should == does:
            continue
        lines = [f"after the last step {who} differs:"]
        lines += [f"    {step}" for step in program[: index + 1]]
        for name in ("handled", "dead", "poisoned", "waiting"):
            if getattr(should, name) != getattr(does, name):
                lines.append(f"{name}: {getattr(does, name)}, should be {getattr(should, name)}")
        return "\n".join(lines)
    return None
