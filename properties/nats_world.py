"""What `Simulation` is in virtual time, on a real server, in real time.

The same steps, so that the same machine drives either: processes that consume one topic come, go
and are killed, and everything that happens goes into one `History` and through one `Checker`.

*The run* is a Trio run in a thread of its own; the machine, which is synchronous, calls into it.

*A process* is a broker in a task, behind a proxy of its own, which is its network. Killing it
closes that network first and silences its recorder in the same instant, before any other task
runs; what its tasks do until they are cancelled has no effect on anything.

*The server* is killed and restarted, or stopped with SIGSTOP, in the background, as a network
fault is: the machine goes on meanwhile. One such thing at a time.

*What is stored in the end.* A server that was killed may keep a message that was acknowledged: no
durable delivers it any more, and yet the stream holds it (docs/operations.md). So settled means
that no durable has anything pending or in flight, and of what is left in a stream the history has
to know how it ended.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import trio
from nats_faults import Faults, Network, PauseServer, RealProcess

from shove_actors import NatsConfig, SequenceFailure, Topic, open_broker
from shove_actors._errors import (
    BatchError,
    ConnectionError,
    ConsumerNotFound,
    ShoveError,
    UnavailableError,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import connect
from shove_actors.testing import (
    TOTALS,
    Checker,
    Event,
    Fault,
    History,
    HistoryRules,
    HistoryViolation,
    Move,
    recording,
    take_inventory,
)
from shove_actors.testing._recorder import history_time
from shove_actors.testing._simulated_process import Script

T = TypeVar("T")

DRAIN_S = 20.0
#: Once nothing is made to go wrong any more, something has to happen this often.
PATIENCE_S = 60.0
#: A machine that is busy with other things takes its time.
SOON_S = 60.0
_RETRY_S = 0.2


class NatsWorld:
    """See the module, and `Simulation`, whose interface it has."""

    def __init__(
        self,
        topic: Topic[Any],
        make: Callable[[int, str], Any],
        *,
        options: Mapping[str, Any],
        only: str = "OILBPT",
        replays: bool = False,
    ) -> None:
        self.topic, self.make, self.options = topic, make, dict(options)
        topology = topic.topology
        self.rules = HistoryRules(
            max_retries=self.options["max_retries"],
            # The runtime's clock runs from before the history has the handler called.
            handler_timeout=self.options["handler_timeout"] * 0.95,
            fail_all=topology.sequence_failure is SequenceFailure.FAIL_ALL,
            dead_letters=topology.dlq is not None,
            only=only,
        )
        self._replays = replays
        self.history = History()
        self.checker = Checker(self.rules)
        self.violation: HistoryViolation | None = None
        self.plan = Faults(self)
        self.processes: dict[str, RealProcess] = {}
        self.server = ServerProcess()
        self._script = Script(
            plan=self.plan,  # type: ignore[arg-type]
            ack_wait_s=self.options["ack_wait"],
            timeout_s=self.options["handler_timeout"],
        )
        self._sent: dict[str, Any] = {}
        self._number = self._starts = self._publishing = 0
        self._made: list[Network] = []
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="nats-world")
        self._ready = threading.Event()
        self._ended: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._level = logging.NOTSET
        self._began = 0.0

    # ------------------------------------------------------------------------ the run

    def open(self) -> None:
        logger = logging.getLogger("shove_actors")
        self._level = logger.level
        logger.setLevel(logging.CRITICAL + 1)
        self._began = time.perf_counter()
        self.history.listen(self._check)
        self.server.__enter__()
        self._thread.start()
        self._ready.wait()
        self._raise()

    def close(self) -> None:
        """Cancels everything, whatever the state; what a process ended with is not raised."""
        if self._token is not None:
            try:
                trio.from_thread.run_sync(self._cancel, trio_token=self._token)
            except trio.RunFinishedError:
                pass
            self._thread.join()
            self._token = None
        self.server.__exit__(None, None, None)
        logging.getLogger("shove_actors").setLevel(self._level)
        TOTALS.simulations += 1
        TOTALS.deliveries += self.checker.started
        TOTALS.handled += self.checker.started
        TOTALS.published += self._number
        TOTALS.faults += len(self.plan.happened)
        TOTALS.crashes += self.history.count("crashed")
        TOTALS.processes += self._starts
        TOTALS.real_s += time.perf_counter() - self._began

    abandon = close

    def _cancel(self) -> None:
        for process in list(self.processes.values()):
            process.kill()  # nobody waits for a drain any more
        self._nursery.cancel_scope.cancel()

    def _run(self) -> None:
        try:
            trio.run(self._main, strict_exception_groups=True)
        except BaseException as exc:
            self._ended = exc
        finally:
            self._ready.set()

    async def _main(self) -> None:
        async with trio.open_nursery() as self._networks:
            try:
                async with trio.open_nursery() as self._nursery:
                    self._server_lock = trio.Lock()
                    self._publisher = await self._new_process("publisher")
                    with trio.fail_after(SOON_S):
                        await self._nursery.start(self._publish_for_ever, self._publisher)
                    self._token = trio.lowlevel.current_trio_token()
                    self._ready.set()
                    await trio.sleep_forever()
            finally:
                for network in self._made:
                    network.die()
                self._networks.cancel_scope.cancel()

    def _call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        try:
            result: T = trio.from_thread.run(function, *args, trio_token=self._token)
        except trio.RunFinishedError:
            self._raise()
            raise
        self._raise()
        return result

    def _raise(self) -> None:
        if self._ended is not None:
            raise self._ended
        if self._failed:
            raise self._failed[0]
        if self.violation is not None:
            raise HistoryViolation(self.violation.violation.told_from(list(self.history)))

    def _check(self, event: Event) -> None:
        if self.violation is None:
            try:
                self.checker.feed(event)
            except HistoryViolation as exc:
                self.violation = exc

    def _later(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        async def guarded() -> None:
            try:
                await function(*args)
            except (trio.Cancelled, KeyboardInterrupt):
                raise
            except BaseException as exc:
                self._failed.append(exc)

        self._nursery.start_soon(guarded)

    # ------------------------------------------------------------------------ processes

    @property
    def alive(self) -> list[str]:
        return [p.name for p in self.processes.values() if not (p.dead or p.stopping)]

    @property
    def busy(self) -> list[str]:
        return [name for name in self.alive if self.checker.runs(name)]

    def start_process(self) -> str:
        return self._call(self._start)

    def stop_process(self, name: str, *, hard: bool = False) -> None:
        self._call(self._stop, name, hard)

    async def _new_process(self, name: str) -> RealProcess:
        network = Network(self.server.host, self.server.port)
        await self._networks.start(network.serve)
        self._made.append(network)
        return RealProcess(name=name, proxy=network)

    async def _start(self) -> str:
        self._starts += 1
        process = await self._new_process(f"worker-{self._starts}")
        self.processes[process.name] = process
        self._nursery.start_soon(self._life, process)
        return process.name

    async def _stop(self, name: str, hard: bool = False) -> None:
        process = self.processes.get(name)
        if process is None:
            return  # killed by its handler, since somebody looked
        process.stopping = True
        if process.group is not None and hard:
            self.history.add(Event("fault", history_time(), name, detail="hard stop"))
            process.group.hard_stop()
        elif process.group is not None:
            process.group.stop()

    def _config(self, process: RealProcess) -> NatsConfig:
        return NatsConfig(
            process.proxy.url,
            name=process.name,
            reconnect_wait=0.05,
            reconnect_jitter=0.02,
            request_timeout=2.0,
        )

    async def _life(self, process: RealProcess) -> None:
        try:
            with process.scope:
                await self._consume(process)
        except Exception as exc:
            process.error = exc
        process.over = True
        self.processes.pop(process.name, None)
        if process.dead:
            return
        outcome = process.outcome
        wrong = outcome is not None and (outcome.errors or outcome.panics or outcome.restarts)
        if process.error is not None:
            self._failed.append(process.error)
        elif wrong or not process.stopping:
            self._failed.append(AssertionError(f"{process.name} ended by itself, with {outcome}"))

    async def _consume(self, process: RealProcess) -> None:
        with recording(self.history, process.name) as process.recorder:
            handle = functools.partial(self._script.handle, process)  # type: ignore[arg-type]
            handler = process.recorder.handler(self.topic, handle)
            while not process.stopping:
                try:
                    async with open_broker(self._config(process)) as broker:
                        group = process.group = broker.consumer_group()
                        group.register(self.topic, handler, **self.options)
                        if not process.stopping:
                            process.outcome = await group.serve(drain_timeout=DRAIN_S)
                    return
                except (UnavailableError, ConnectionError, ConsumerNotFound):
                    # The last: the durable was deleted while it was being made. Whoever starts
                    # processes starts one that could not begin again.
                    await trio.sleep(_RETRY_S)

    async def _publish_for_ever(
        self, process: RealProcess, *, task_status: trio.TaskStatus[None]
    ) -> None:
        with recording(self.history, process.name) as process.recorder:
            async with open_broker(self._config(process), publish_timeout=5.0) as broker:
                await broker.declare(self.topic)
                process.broker = broker
                task_status.started()
                await trio.sleep_forever()

    # ---------------------------------------------------------------------- what happens

    def publish(
        self, count: int, *, keys: int = 1, script: Sequence[Move] = (), every: int = 1
    ) -> None:
        ids = []
        for position in range(count):
            id_, key = f"m{self._number}", f"k{self._number % keys}"
            self._sent[id_] = self.make(self._number, key)
            self._number += 1
            if script and position % every == 0:
                self._script.moves[id_] = tuple(script)
            ids.append(id_)
        self._call(self._post, ids)

    def publish_again(self, back: int = 1) -> None:
        if self._number >= back:
            self._call(self._post, [f"m{self._number - back}"])

    async def _post(self, ids: list[str]) -> None:
        self._publishing += 1
        self._later(self._publish, ids)

    async def _publish(self, ids: list[str]) -> None:
        recorder = self._publisher.recorder
        assert recorder is not None
        publisher = recorder.publisher(self._publisher.broker.publisher())
        try:
            messages = [self._sent[id_] for id_ in ids]
            await publisher.publish_batch(self.topic, messages, message_ids=ids)
        except BatchError:
            pass  # what was stored is in the history
        finally:
            self._publishing -= 1

    def fault(self, fault: Fault | PauseServer) -> None:
        self._call(self._fault, fault)

    async def _fault(self, fault: Fault | PauseServer) -> None:
        self.plan.take(fault)

    def advance(self, seconds: float) -> None:
        self._call(trio.sleep, seconds)

    def deliver(self, count: int, *, within_s: float = 1.0) -> int:
        before, end = self.checker.started, time.monotonic() + within_s
        while self._number and self.checker.started - before < count and time.monotonic() < end:
            self._call(trio.sleep, 0.02)
        return self.checker.started - before

    # ------------------------------------------------------------------------- poison

    @property
    def poisoned(self) -> list[str]:
        """Keys that are marked on the server; none while nobody answers."""

        async def ask() -> list[str]:
            with trio.move_on_after(2.0):
                try:
                    found = await self._publisher.broker.poisoned(self.topic)
                except (UnavailableError, ConnectionError):
                    return []
                return [each.key for each in found]
            return []

        return self._call(ask)

    def release(self, key: str) -> None:
        async def release() -> None:
            # Before it is carried out: from when on the key goes on, only the server knows.
            self.history.add(Event("released", history_time(), topic=self.topic.queue, key=key))
            with trio.move_on_after(2.0):
                try:
                    await self._publisher.broker.release(self.topic, key, replay=self._replays)
                except (UnavailableError, ConnectionError):
                    pass  # an operator would see it, and try again

        self._call(release)

    # ------------------------------------------------------------------------ the end

    def finish(self) -> None:
        self._call(self._finish)
        try:
            self.checker.finish()
        except HistoryViolation as exc:
            self.violation = exc
        self._raise()

    async def _finish(self) -> None:
        await self.plan.quiet()
        seen, end = -1, 0.0
        # Twice, and nothing in between: what is on its way between two streams is in neither look.
        while not (await self._settled() and seen == len(self.history) and await self._settled()):
            if self._failed or self.violation is not None:
                return
            if not self.alive:
                await self._start()
            if seen != len(self.history):
                seen, end = len(self.history), time.monotonic() + PATIENCE_S
            if time.monotonic() > end:
                raise AssertionError(f"nothing has happened for {PATIENCE_S:g} s: {self._stuck}")
            await trio.sleep(0.05)
        await self._inventory()
        for name in self.alive:
            await self._stop(name)
        with trio.move_on_after(SOON_S):
            while self.processes and not self._failed:  # noqa: ASYNC110 - they end by themselves
                await trio.sleep(0.02)
        if self.processes and not self._failed:
            raise AssertionError(f"{', '.join(self.processes)} did not end within {SOON_S:g} s")

    async def _settled(self) -> bool:
        topology = self.topic.topology
        streams = [topology.queue]
        if not topology.sequenced:
            streams += [hold.name for hold in topology.holds]
        stuck = [f"{self._publishing} publishes"] if self._publishing else []
        try:
            with trio.fail_after(5.0):
                async with connect(NatsConfig(self.server.url, request_timeout=2.0)) as js:
                    for stream in streams:
                        if (await js.stream_info(stream)).messages:
                            infos = [info async for info in js.list_consumers(stream)]
                            stuck += [
                                f"{i.name}: {i.num_pending} pending, {i.num_ack_pending} unsettled"
                                for i in infos
                                if i.num_pending or i.num_ack_pending
                            ]
                            if not infos:
                                stuck.append(f"{stream} has messages and no durable")
        except (ShoveError, trio.TooSlowError) as exc:
            stuck.append(repr(exc))
        self._stuck = stuck
        return not stuck

    async def _inventory(self) -> None:
        """The dead letters, for the rules. What is still stored has to be over."""
        found = History()
        with trio.fail_after(SOON_S):
            await take_inventory(found, self._publisher.broker, self.topic)
        over = {e.id for e in self.history if e.kind == "ended" and e.outcome in ("ack", "reject")}
        for event in found:
            if event.kind == "dead":
                self.history.add(event)
                over.add(event.id)
        for event in found:
            if event.kind == "remaining" and event.id not in over:
                raise AssertionError(f"nobody will ever handle what is stored: {event}")
