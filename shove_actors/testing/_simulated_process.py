"""One process of a simulation, and what its handlers do."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from shove_actors._errors import ConnectionError, UnavailableError
from shove_actors.backends import Lane
from shove_actors.backends.memory import MemoryConfig, MemoryServer
from shove_actors.messaging import Outcome, Topic
from shove_actors.runtime import Broker, ConsumerGroup, SupervisorOutcome, open_broker

from ._fault_kinds import Crash
from ._faults import FaultPlan
from ._history import History
from ._moves import Move
from ._recorder import Recorder, recording
from ._step import Step

#: How long `wait` takes, and what is waited before a process that could not connect tries again.
SHORT_S = 1.0
#: What `linger` needs to end when it is cancelled.
LINGER_S = 0.2
#: How long `die` takes where handlers are not interrupted, and its process is not killed.
DIES_S = 60.0
DRAIN_S = 30.0
_ANSWERS: dict[str, Outcome] = {
    "ack": Outcome.ACK,
    "retry": Outcome.RETRY,
    "reject": Outcome.REJECT,
    "defer": Outcome.DEFER,
}


@dataclass(kw_only=True)
class Script:
    """What the handlers of all processes do, by message id and attempt.

    `handler` is the user's, for what is not in `moves` or is to be acknowledged there.
    """

    plan: FaultPlan
    ack_wait_s: float
    timeout_s: float | None
    handler: Callable[..., Any] | None = None
    moves: dict[str, tuple[Move, ...]] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    #: Of a handler that was to be interrupted when its time was up, and was not.
    overdue: str = ""

    async def handle(self, process: Process, message: Any, metadata: Any, context: object) -> Any:
        id_ = metadata.delivery_id
        moves = self.moves.get(id_)
        if moves is None:
            if self.handler is None:
                return Outcome.ACK
            return await self.handler(message, metadata, context)
        attempt = self.attempts.get(id_, 0)
        self.attempts[id_] = attempt + 1
        move = moves[attempt] if attempt < len(moves) else "ack"
        if move == "ack" and self.handler is not None:
            return await self.handler(message, metadata, context)
        answer = _ANSWERS.get(move)
        if answer is not None:
            return answer
        if move == "raise":
            raise ValueError("as the script says")
        if move == "die":
            if not process.dead:
                self.plan.take(Crash(process.name))
            if self.timeout_s is None:
                # Nobody interrupts it when nobody is killed any more.
                await trio.sleep(DIES_S)
                return Outcome.ACK
            await trio.sleep_forever()
        limit = self.timeout_s or 0.0
        seconds = {"wait": SHORT_S, "long": self.ack_wait_s * 1.5}.get(move, limit + SHORT_S)
        try:
            await trio.sleep(seconds)
        finally:
            if move == "linger":
                with trio.CancelScope(shield=True):
                    await trio.sleep(LINGER_S)
        if self.timeout_s is not None and seconds > self.timeout_s and not process.dead:
            self.overdue = (
                f"{process.name} let its handler of {id_} go on for {seconds:g} s, and its "
                f"handler_timeout is {self.timeout_s:g} s"
            )
        return Outcome.ACK


@dataclass(kw_only=True)
class Process:
    """A broker with a consumer group, in one task."""

    name: str
    seed: int = 0
    step: Step[None] | None = None
    recorder: Recorder | None = None
    broker: Broker | None = None
    group: ConsumerGroup | None = None
    outcome: SupervisorOutcome | None = None
    stopping: bool = False

    @property
    def dead(self) -> bool:
        """It was killed."""
        return self.recorder is not None and self.recorder.dead

    def lanes(self) -> list[tuple[Lane, int]]:
        """Those of its group, and the most messages that each may hold."""
        found = []
        for registration in self.group._registrations if self.group is not None else []:
            options = registration.options
            for lane in registration.lanes:
                most = lane.spec.credit
                if registration.scales:
                    # It follows the number of consumers, and what is held when that shrinks stays.
                    most = options.prefetch * options.consumers[1]
                found.append((lane, most))
        return found

    def check_credit(self) -> None:
        for lane, most in self.lanes():
            held = len(lane.held)
            if held > most:
                raise AssertionError(
                    f"{self.name} holds {held} messages, and has credit for {most}"
                )

    def check_end(self) -> None:
        """Of one that has ended, and was not killed."""
        outcome = self.outcome
        held = sum(len(lane.held) for lane, _ in self.lanes())
        if held:
            raise AssertionError(f"{self.name} ended with {held} messages not given back")
        if outcome is not None and (outcome.errors or outcome.panics or outcome.restarts):
            raise AssertionError(f"{self.name} ended with {outcome}")
        if not self.stopping:
            raise AssertionError(f"{self.name} ended by itself, with {outcome}")

    async def consume(
        self,
        server: MemoryServer,
        history: History,
        recorders: dict[str, Recorder],
        topic: Topic[Any],
        script: Script,
        options: Mapping[str, Any],
    ) -> None:
        """Until it is stopped. One that cannot connect is started again, a little later."""
        config = MemoryConfig(server=server, name=self.name)
        with recording(history, self.name) as recorder:
            self.recorder = recorders[self.name] = recorder
            handler = recorder.handler(topic, partial(script.handle, self))
            while not self.stopping:
                try:
                    await self._serve(config, topic, handler, options)
                    return
                except (UnavailableError, ConnectionError):
                    await trio.sleep(SHORT_S)

    async def _serve(
        self, config: MemoryConfig, topic: Topic[Any], handler: Any, options: Mapping[str, Any]
    ) -> None:
        async with open_broker(config, rng=random.Random(self.seed)) as broker:
            self.broker = broker
            group = self.group = broker.consumer_group()
            group.register(topic, handler, **options)
            if not self.stopping:
                self.outcome = await group.serve(drain_timeout=DRAIN_S)

    async def publish_for_ever(
        self,
        server: MemoryServer,
        history: History,
        recorders: dict[str, Recorder],
        topic: Topic[Any],
    ) -> None:
        """Declares the topic, and keeps a broker to publish with."""
        config = MemoryConfig(server=server, name=self.name)
        with recording(history, self.name) as recorder:
            self.recorder = recorders[self.name] = recorder
            async with open_broker(config, rng=random.Random(self.seed)) as broker:
                await broker.declare(topic)
                self.broker = broker
                await trio.sleep_forever()
