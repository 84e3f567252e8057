"""A simulation: processes that consume one topic from a server in memory, in virtual time.

Synchronous, on a `Stepper`; a state machine drives it, and so can an ordinary test. Everything that
happens goes into one `History`, and through the invariants as it happens.

*A process* is a broker with a consumer group, in one task. It ends in order (`stop_process`), or is
killed: from that instant its link to the server is dead and its recorder silent, and its tasks,
which do not know it, are cancelled at the end of the step. Whatever they do meanwhile has no effect
on anything, as with a real one. The publisher is a process of its own that is never killed, so that
what it was told is known.

*Bulk.* A step publishes a batch, or lets time pass until so many messages have been handled. The
cost of a step in a guest run is spread over hundreds of deliveries.

*Silence.* What the runtime logs under faults is most of the run time; see `_hush.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import trio
from msgspec import structs

from shove_actors._errors import BatchError, StreamFull, UnavailableError, UsageError
from shove_actors.backends.memory import FaultEvent, MemoryServer
from shove_actors.messaging import SequencedTopic, SequenceFailure, Topic
from shove_actors.runtime._checks import check_seconds, check_switch, check_whole
from shove_actors.runtime._options import ConsumerOptions

from ._checker import Checker
from ._fault_kinds import Crash, Fault
from ._faults import FaultPlan
from ._foreign import Foreign, check_foreign, check_possible, foreign_message, kinds_for
from ._given import check_function, check_kind, check_moves
from ._given_handler import check_options, simulated
from ._history import Event, History, digest_of
from ._hush import Hush
from ._moves import Move
from ._quiet_end import BEGUN_MOST, QuietEnd
from ._recorder import Recorder, take_inventory
from ._rules import HistoryRules, HistoryViolation
from ._server_watch import ServerWatch
from ._simulated_process import Process, Script
from ._step import Step
from ._stepper import Stepper
from ._told import Told, told
from ._totals import TOTALS

M = TypeVar("M")

PUBLISHER = "publisher"
#: Unless the options say otherwise.
ACK_WAIT_S = 10.0
MOST_BYTES = ConsumerOptions().max_message_size
#: Once nothing is made to go wrong any more, something has to happen this often, unless all that is
#: left waits out a delay.
PATIENCE_S = 900.0


class Simulation(Told, Generic[M]):
    """Consumers of `topic`, and what becomes of its messages.

        with Simulation(ORDERS, make=lambda n, key: Order(f"ORD-{n}", key)) as sim:
            sim.start_process()
            sim.publish(100, keys=5, script=("retry", "ack"))
            sim.fault(RestartServer(down_s=2.0))
            sim.deliver(100)
            sim.finish()

    `make(number, key)` makes a message. `handler` is the user's own; without one, messages are
    acknowledged. `script` (see `publish`) overrides it. `options` go to `group.register`; the
    invariants follow them. `replays`: keys are released by replaying their dead letters. `revive`:
    in place of each process that is killed another one is started. Each step raises
    `HistoryViolation` when an invariant is broken, and whatever a process ended with that should
    not have ended.
    """

    def __init__(
        self,
        topic: Topic[M],
        make: Callable[[int, str], M],
        *,
        handler: Callable[..., Any] | None = None,
        plan: FaultPlan | None = None,
        options: Mapping[str, Any] | None = None,
        only: str = "OILBPT",
        replays: bool = False,
        revive: bool = False,
    ) -> None:
        check_kind(topic, "topic", Topic, "a Topic")
        check_function(make, "make", "a function of (number, key) that makes a message")
        if handler is not None:
            handler = simulated(handler, topic)
        if plan is not None:
            check_kind(plan, "plan", FaultPlan, "a FaultPlan")
        if options is not None:
            check_kind(options, "options", Mapping, "a dict of what group.register takes")
        check_switch(replays, "replays")
        check_switch(revive, "revive")
        super().__init__()
        self._plan_code = plan.source if plan is not None else ""
        self._given = {
            "handler": handler is not None,
            "options": bool(options),
        }
        self._switches = {"replays": replays, "revive": revive}
        self.topic = topic
        self.make = make
        self.options: dict[str, Any] = {
            "max_retries": 2,
            "ack_wait": ACK_WAIT_S,
            "handler_timeout": 20.0,
            **(options or {}),
        }
        check_options(topic, self.options)
        topology = topic.topology
        fail_all = (
            isinstance(topic, SequencedTopic)
            and topology.sequence_failure is SequenceFailure.FAIL_ALL
        )
        self.rules = HistoryRules(
            max_retries=self.options["max_retries"],
            handler_timeout=self.options["handler_timeout"],
            fail_all=fail_all,
            dead_letters=topology.dlq is not None,
            quiescent=True,
            calm=True,
            retry_delays=tuple(hold.delay_s for hold in topology.holds)
            or (self.options.get("retry_delay", 1.0),),
            replays=replays and topology.dlq is not None,
            suspects=True,
            keyed=topology.keyed is not None,
            publishes=True,
            only=only,
        )
        self.revive = revive
        self.server = MemoryServer()
        self.history = History()
        self.checker = Checker(self.rules)
        self.violation: HistoryViolation | None = None
        self.plan = plan if plan is not None else FaultPlan()
        self.plan.protect(PUBLISHER, "the publisher of a simulation")
        self.processes: dict[str, Process] = {}
        self.trio = Stepper()
        self._script = Script(
            plan=self.plan,
            ack_wait_s=self.options["ack_wait"],
            timeout_s=self.options["handler_timeout"],
            handler=handler,
        )
        self._corpses: list[Process] = []
        self._recorders: dict[str, Recorder] = {}
        self._sent: dict[str, M] = {}
        self._poisoned: dict[str, None] = {}
        self._read = 0
        self._starts = 0
        self._number = 0
        self._foreign = 0
        self._delivered_late = 0
        self._publisher: Process | None = None
        self._publishing: list[Step[None]] = []
        self._began = (0.0, 0.0)
        self._hush = Hush()
        self._over = False

    # ---------------------------------------------------------------------------- life

    def open(self) -> None:
        """Begin. Use `with` where the code has the shape for it."""
        self._hush.begin()
        self._began = time.perf_counter(), time.process_time()
        self.trio.open()
        self.history.listen(self._check)
        watch = ServerWatch(self.history, self.server, [self.topic])
        watch.faults_of(self.plan, self._recorders)
        publisher = self._publisher = Process(name=PUBLISHER)
        publisher.step = self.trio.post(
            publisher.publish_for_ever, self.server, self.history, self._recorders, self.topic
        )
        # Not before the streams exist: nothing can be declared on a server that is down.
        self.trio.call(self._install)
        self._tidy()

    def close(self) -> None:
        """The end, whatever the state. Idempotent. Raises what nobody has heard of yet."""
        if self._over:
            return
        self._over = True
        try:
            self._count()
            self.trio.close()
        finally:
            self._hush.end()

    def abandon(self) -> None:
        """`close` after a failure: nothing that it finds is raised."""
        try:
            self.close()
        except BaseException as exc:
            if isinstance(exc, (KeyboardInterrupt, SystemExit)):
                raise
            logging.getLogger("shove_actors.testing").error("while closing: %r", exc)

    def __enter__(self) -> Simulation[M]:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()  # the exception of the block comes first

    def _count(self) -> None:
        real, cpu = self._began
        TOTALS.simulations += 1
        TOTALS.deliveries += self.plan.counts["deliver"] + self._delivered_late
        TOTALS.handled += self.checker.started
        TOTALS.published += self._number
        TOTALS.faults += len(self.plan.happened)
        TOTALS.crashes += self.history.count("crashed")
        TOTALS.processes += self._starts
        TOTALS.virtual_s += self.trio.now
        TOTALS.real_s += time.perf_counter() - real
        TOTALS.cpu_s += time.process_time() - cpu

    def program(self, of: str = "") -> str:
        """What was done so far, as code that does it again.

        It takes `topic`, `make` and, where they were given, `handler` and `options` by these names;
        `of`: of which object they are attributes.
        """
        own = f"{of}." if of else ""
        rules = self.rules
        parts = [f"{own}topic", f"{own}make"]
        parts += [f"{name}={own}{name}" for name, given in self._given.items() if given]
        parts += [f"plan={self._plan_code}"] if self._plan_code not in ("", "FaultPlan()") else []
        parts += [f"only={rules.only!r}"] if rules.only != "OILBPT" else []
        parts += [f"{name}=True" for name in ("replays", "revive") if self._switches[name]]
        lines = self.lines("sim") or ["pass"]
        if of:
            lines.insert(0, f"{of}.sim = sim")
        return "\n    ".join([f"with Simulation({', '.join(parts)}) as sim:", *lines])

    # ------------------------------------------------------------------------ processes

    @property
    def alive(self) -> list[str]:
        """Names of the consumer processes that run and are not stopping."""
        return [p.name for p in self.processes.values() if not (p.dead or p.stopping)]

    @property
    def busy(self) -> list[str]:
        """Those of them that are in a handler."""
        return [name for name in self.alive if self.checker.runs(name)]

    @told
    def start_process(self) -> str:
        """One more consumer process; its name."""
        self._starts += 1
        process = Process(name=f"worker-{self._starts}", seed=self._starts)
        self.processes[process.name] = process
        process.step = self.trio.post(
            process.consume,
            self.server,
            self.history,
            self._recorders,
            self.topic,
            self._script,
            self.options,
        )
        self._tidy()
        return process.name

    @told
    def stop_process(self, name: str, *, hard: bool = False) -> None:
        """Let it drain and end, in the steps that follow; `hard`: its handlers are cancelled."""
        process = self._process(name)
        check_switch(hard, "hard")
        process.stopping = True
        if process.group is not None and hard:
            self.history.add(Event("fault", self.trio.now, name, detail="hard stop"))
            process.group.hard_stop()
        elif process.group is not None:
            process.group.stop()
        self.trio.settle()
        self._tidy()

    @told
    def kill_process(self, name: str) -> None:
        """SIGKILL."""
        self._process(name)
        self.fault(Crash(name))

    def _process(self, name: str) -> Process:
        process = self.processes.get(name)
        if process is None:
            running = ", ".join(self.processes) or "none"
            raise UsageError(f"no process {name!r} runs; those that do: {running}")
        return process

    async def _install(self) -> None:
        self.plan.install(self.server)

    # ---------------------------------------------------------------------- what happens

    @told
    def publish(
        self,
        count: int,
        *,
        keys: int = 1,
        script: Sequence[Move] = (),
        every: int = 1,
    ) -> None:
        """Publish a batch, over this many keys in turn. It goes on in the steps that follow.

        `script`: what the handler does in the attempts of every `every`-th message of the batch;
        when it is used up, it acknowledges.
        """
        check_whole(count, "count")
        check_whole(keys, "keys", least=1)
        check_whole(every, "every", least=1)
        check_moves(script, "script")
        batch: list[M] = []
        ids: list[str] = []
        for position in range(count):
            number = self._number
            self._number += 1
            id_ = f"m{number}"
            message = self.make(number, f"k{number % keys}")
            self._sent[id_] = message
            if script and position % every == 0:
                self._script.moves[id_] = tuple(script)
            batch.append(message)
            ids.append(id_)
        self._post(batch, ids)

    @told
    def publish_again(self, back: int = 1) -> None:
        """Publish an earlier message once more, with its id: the `back`-th last."""
        check_whole(back, "back", least=1)
        number = self._number - back
        if number < 0:
            return
        id_ = f"m{number}"
        self._post([self._sent[id_]], [id_])

    @property
    def foreign_kinds(self) -> tuple[Foreign, ...]:
        """What `publish_foreign` takes, of this topic with these options."""
        limit = self.options.get("max_message_size", MOST_BYTES)
        return kinds_for(self.topic, limit, self.server.max_payload)

    @told
    def publish_foreign(self, kind: Foreign, *, key: str = "k0") -> None:
        """What no `Publisher` of the topic would send, into its queue: see `Foreign`.

        Of a sequenced topic it names `key`, as its own messages do. It is a dead letter in the end,
        and no handler sees it.
        """
        check_foreign(kind, "kind")
        check_kind(key, "key", str, "the key of messages")
        limit = self.options.get("max_message_size", MOST_BYTES)
        check_possible(kind, self.topic, limit, self.server.max_payload)
        number = self._foreign = self._foreign + 1
        prepared = foreign_message(self.topic, kind, f"foreign-{number}", key, limit)

        said = Event(
            "unconfirmed",
            process=PUBLISHER,
            topic=self.topic.queue,
            id=f"foreign-{number}",
            key=key if isinstance(self.topic, SequencedTopic) else None,
            detail=f"raw {number}",
            digest=digest_of(prepared[1]),
        )

        async def publish() -> None:
            assert self._publisher is not None
            assert self._publisher.broker is not None
            told = said
            try:
                receipt = await self._publisher.broker.publisher()._service.publish(*prepared)
                told = structs.replace(
                    said,
                    kind="published",
                    sequence=receipt.sequence,
                    duplicate=receipt.duplicate,
                )
            except (UnavailableError, StreamFull):
                pass  # nothing was promised
            self.history.add(structs.replace(told, time=trio.current_time()))

        self._publishing.append(self.trio.post(publish))
        self._tidy()

    def _post(self, batch: list[M], ids: list[str]) -> None:
        self._publishing = [step for step in self._publishing if not step.done]
        self._publishing.append(self.trio.post(self._publish, batch, ids))
        self._tidy()

    async def _publish(self, batch: list[M], ids: list[str]) -> None:
        process = self._publisher
        assert process is not None
        assert process.broker is not None
        assert process.recorder is not None
        publisher = process.recorder.publisher(process.broker.publisher())
        try:
            await publisher.publish_batch(self.topic, batch, message_ids=ids)
        except BatchError:
            # What was stored is in the history; about the others nothing was promised.
            pass

    @told
    def fault(self, fault: Fault, *, event: FaultEvent | None = None) -> None:
        """Something goes wrong: now, or at the next `event` of anybody.

        The publisher is never killed: a `Crash` that names nobody is of a consumer process.
        """
        self.plan.take(fault, event)
        self.trio.settle()
        self._tidy()

    @told
    def advance(self, seconds: float) -> None:
        """Time passes."""
        self.trio.advance(seconds)
        self._tidy()

    @told
    def deliver(self, count: int, *, within_s: float = 60.0) -> int:
        """Time passes until `count` more handlers have been called; how many were.

        Not when there is nothing left to handle, or nobody to do it.
        """
        check_whole(count, "count")
        check_seconds(within_s, "within_s")
        before, end = self.checker.started, self.trio.now + within_s
        while self.checker.started - before < count and self.trio.now < end:
            if not self.processes or self._settled():
                break
            if not self.trio.step(end):
                self.trio.advance(end - self.trio.now)
            self._tidy()
        return self.checker.started - before

    # ------------------------------------------------------------------------- poison

    @property
    def poisoned(self) -> list[str]:
        """Keys that are marked on the server."""
        # A state machine asks before each of its steps.
        for event in self.history[self._read :]:
            if event.kind == "poisoned":
                self._poisoned[event.key or ""] = None
            elif event.kind == "released":
                self._poisoned.pop(event.key or "", None)
        self._read = len(self.history)
        return list(self._poisoned)

    @told
    def release(self, key: str) -> None:
        """As an operator would, from the publisher's process; with `replays`, by a replay."""

        check_kind(key, "key", str, "the key of messages")

        async def release() -> None:
            assert self._publisher is not None
            assert self._publisher.broker is not None
            try:
                await self._publisher.broker.release(self.topic, key, replay=self.rules.replays)
            except (UnavailableError, StreamFull):
                pass  # an operator would see it, and try again

        self.trio.post(release)
        self._tidy()

    # ----------------------------------------------------------------------- the end

    @told
    def finish(self) -> None:
        """Nothing goes wrong any more: everything is handled, or a dead letter, and then it ends.

        Raises `HistoryViolation` otherwise, and `AssertionError` for a message that a handler puts
        off again and again. What waits out a delay is waited for, however long that is.
        """
        self.trio.call(self._quiet)
        quiet = QuietEnd(self.history, self.server, self._streams())
        most = BEGUN_MOST + self.rules.max_retries
        seen, end, pause = -1, 0.0, 5.0
        while not self._settled() and (seen != len(self.history) or self.trio.now < end):
            if not self.alive:
                self.start_process()
            pause = 5.0
            due = quiet.due()
            if seen != len(self.history):
                seen, end = len(self.history), self.trio.now + PATIENCE_S
            elif due is not None:
                # All at once: nothing else happens until then.
                pause = max(pause, due - self.server.now())
                end = max(end, self.trio.now + pause + PATIENCE_S)
            self.trio.advance(pause)
            self._tidy()
            quiet.check_begun(most)
        assert self._publisher is not None
        assert self._publisher.broker is not None
        self.trio.call(take_inventory, self.history, self._publisher.broker, self.topic)
        for name in self.alive:
            self.stop_process(name)
        end = self.trio.now + 60.0
        while self.processes and self.trio.now < end:
            self.trio.advance(1.0)
            self._tidy()
        left = [p.name for p in self.processes.values()]
        if left:
            raise AssertionError(f"{', '.join(left)} did not end within 60 s")
        try:
            self.checker.finish()
        except HistoryViolation as exc:
            self.violation = exc
        self._raise_violation()

    async def _quiet(self) -> None:
        self.plan.quiet()
        self.server.faults.watch = self._count_late  # the plan counts no longer

    def _count_late(self, event: FaultEvent, _: object) -> None:
        self._delivered_late += event == "deliver"

    def _streams(self) -> list[str]:
        """Where its messages wait."""
        topology = self.topic.topology
        held = [] if topology.sequenced else [hold.name for hold in topology.holds]
        return [topology.queue, *held]

    def _settled(self) -> bool:
        stored = any(self.server.streams[name].messages for name in self._streams())
        return not stored and all(step.done for step in self._publishing)

    # ------------------------------------------------------------------------- private

    def _check(self, event: Event) -> None:
        # Raised later: here it would be an exception of whoever is being recorded.
        if self.violation is None:
            try:
                self.checker.feed(event)
            except HistoryViolation as exc:
                self.violation = exc

    def _raise_violation(self) -> None:
        if self.violation is not None:
            told = self.violation.violation.told_from(list(self.history))
            raise HistoryViolation(told)

    def _tidy(self) -> None:
        """After each step: bury the dead, notice who has ended, and what was broken."""
        killed = 0
        for process in list(self.processes.values()):
            step = process.step
            if step is None:
                continue
            if process.dead:
                step.cancel()
                del self.processes[process.name]
                self._corpses.append(process)
                killed += 1
            elif step.done:
                del self.processes[process.name]
                step.result()
                process.check_end()
        if self._corpses:
            self.trio.settle()
            for process in [p for p in self._corpses if p.step is not None and p.step.done]:
                assert process.step is not None
                _ = process.step.error  # what a dead process raises is nobody's business
                self._corpses.remove(process)
        publisher = self._publisher
        if publisher is not None and publisher.step is not None and publisher.step.done:
            publisher.step.result()
        for step in self._publishing:
            if step.failed:
                step.result()
        self._raise_violation()
        if self._script.overdue:
            raise AssertionError(self._script.overdue)
        for process in self.processes.values():
            process.check_credit()
        if self.revive:
            for _ in range(killed):
                self.start_process()
