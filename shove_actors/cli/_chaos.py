"""Kills: the server three times, a consumer process twice, all with SIGKILL.

When: at moments that the seed chooses, one in each fifth of the run, by progress and not by the
clock, so the same seed means the same thing on a slow machine. A killed consumer process is
replaced at once; the killed server is started again on the same port and store.

Children end whatever happens to this process: each watches its standard input, a pipe whose only
writing end is here. Leaving the block stops them (SIGTERM, then SIGKILL), shielded from
cancellation because an unreaped child would outlive it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from shove_actors import EmbeddedServer, ShoveError

from ._journal import Journal, Killed, now
from ._progress import Progress

SERVER_KILLS: Final = 3
WORKER_KILLS: Final = 2
WORKERS: Final = 2
READY: Final = b"ready\n"
_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 15.0
_LOOK_EVERY_S: Final = 0.01
#: How often a process is stopped to see whether a handler runs in it, before it is killed anyway.
_CATCHES: Final = 200


class WorkerFailed(ShoveError):
    """A consumer process ended that nobody had killed; the message has its last words."""


@dataclass(frozen=True, kw_only=True)
class Kill:
    """`share` of the run (0 to 1) at which `what` dies."""

    share: float
    what: str


def plan(seed: int) -> list[Kill]:
    """The kills of this seed, in order."""
    rng = random.Random(seed)
    kinds = ["server"] * SERVER_KILLS + ["worker"] * WORKER_KILLS
    rng.shuffle(kinds)
    width = 1 / len(kinds)
    return [
        Kill(share=index * width + rng.uniform(0.1, 0.9) * width, what=what)
        for index, what in enumerate(kinds)
    ]


@dataclass
class Worker:
    """One consumer process."""

    name: str
    process: trio.Process
    log: Path
    ending: bool = False
    ready: bool = False


class Chaos:
    """The consumer processes and their fate. Made by `Chaos.open`."""

    workers = WORKERS

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        server: EmbeddedServer,
        journals: Path,
        logs: Path,
        progress: Progress,
        seed: int,
        shards: int,
        work_s: float,
        ack_wait_s: float,
        note: Callable[[str], None],
    ) -> None:
        self._nursery = nursery
        self._server = server
        self._journals = journals
        self._logs = logs
        self._progress = progress
        self._plan = plan(seed)
        self._arguments = [
            *("--url", server.url, "--journals", str(journals), "--shards", str(shards)),
            *("--work-ms", str(work_s * 1000), "--ack-wait", str(ack_wait_s)),
        ]
        self._rng = random.Random(seed + 1)
        self._note = note
        self._workers: list[Worker] = []
        self._started = 0
        self._problems: list[str] = []
        self.finished = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        *,
        server: EmbeddedServer,
        journals: Path,
        logs: Path,
        progress: Progress,
        seed: int,
        shards: int,
        work_s: float,
        ack_wait_s: float,
        note: Callable[[str], None],
    ) -> AsyncIterator[Chaos]:
        """Starts the consumer processes; ends them when the block is left.

        Raises `WorkerFailed` when one does not start, or ends although nobody killed it.
        """
        async with trio.open_nursery() as nursery:
            chaos = cls(
                nursery,
                server=server,
                journals=journals,
                logs=logs,
                progress=progress,
                seed=seed,
                shards=shards,
                work_s=work_s,
                ack_wait_s=ack_wait_s,
                note=note,
            )
            try:
                async with trio.open_nursery() as starting:
                    for _ in range(cls.workers):
                        starting.start_soon(chaos._start_worker)
                yield chaos
            finally:
                with trio.CancelScope(shield=True):
                    await chaos.stop_workers()
                nursery.cancel_scope.cancel()

    async def run(self) -> None:
        """Carries out the plan; returns when it is done."""
        with Journal(self._journals, "chaos") as journal:
            for kill in self._plan:
                while self._progress.share() < kill.share and not self._progress.done:
                    await trio.sleep(_LOOK_EVERY_S)
                    self._progress.read()
                at = f"at {kill.share:.0%} of the run"
                if kill.what == "server":
                    await self._server.kill()
                    journal.write(Killed(who=Killed.SERVER, at=now()))
                    self._note(f"killed the server {at}")
                    await self._server.restart()
                else:
                    worker = self._rng.choice(self._workers)
                    running = await self._kill(worker)
                    journal.write(Killed(who=worker.name, at=now()))
                    self._note(
                        f"killed {worker.name} (pid {worker.process.pid}) {at}, "
                        f"with {running} handlers running"
                    )
                    await self._start_worker()
        self.finished = True

    async def stop_workers(self) -> None:
        """Lets every consumer process drain and end; kills those that do not."""
        async with trio.open_nursery() as nursery:
            for worker in tuple(self._workers):
                nursery.start_soon(self._stop, worker)

    def describe(self) -> tuple[str, ...]:
        """One line for each living consumer process."""
        return tuple(
            f"{worker.name} pid {worker.process.pid}: "
            f"{self._progress.calls_of(worker.name):,} calls"
            for worker in self._workers
        )

    def mistakes(self) -> list[str]:
        """Consumer processes that ended badly."""
        return list(self._problems)

    # ------------------------------------------------------------------ processes

    async def _start_worker(self) -> None:
        self._started += 1
        name = f"worker-{self._started}"
        log = self._logs / f"{name}.log"
        command = [sys.executable, "-m", "shove_actors", "_demo-worker", *self._arguments]
        with log.open("wb") as output:
            # A session of its own: Ctrl-C reaches this process alone, which then decides.
            process = await trio.lowlevel.open_process(
                [*command, "--name", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        worker = Worker(name, process, log)
        self._workers.append(worker)
        assert process.stdout is not None
        said = b""
        with trio.move_on_after(_START_TIMEOUT_S):
            while not said.endswith(b"\n"):
                chunk = await process.stdout.receive_some()
                if not chunk:
                    break
                said += chunk
        if said != READY:
            raise WorkerFailed(f"{name} did not start: {_last_line(log)}")
        worker.ready = True
        self._nursery.start_soon(self._watch, worker)

    async def _watch(self, worker: Worker) -> None:
        status = await worker.process.wait()
        if not worker.ending:
            raise WorkerFailed(
                f"{worker.name} ended by itself with status {status}: {_last_line(worker.log)}"
            )

    async def _kill(self, worker: Worker) -> int:
        """Kills it while handlers run there; returns how many.

        A handler takes a millisecond, so a kill at any moment would mostly meet none. The process
        is stopped, its journal read, and continued if no handler was running.
        """
        worker.ending = True
        process = worker.process
        for _ in range(_CATCHES):
            _freeze(process.pid)
            self._progress.read()
            if self._progress.running(worker.name):
                break
            process.send_signal(signal.SIGCONT)
            await trio.sleep(_LOOK_EVERY_S)
        process.kill()
        await process.wait()
        await self._forget(worker)
        self._progress.read()
        return self._progress.running(worker.name)

    async def _stop(self, worker: Worker) -> None:
        worker.ending = True
        process = worker.process
        try:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            with trio.move_on_after(_STOP_TIMEOUT_S):
                await process.wait()
        finally:
            if process.poll() is None:
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                await self._forget(worker)
        if process.returncode != 0:
            self._problems.append(
                f"{worker.name} ended with status {process.returncode}: {_last_line(worker.log)}"
            )

    async def _forget(self, worker: Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
        for pipe in (worker.process.stdin, worker.process.stdout):
            if pipe is not None:
                await pipe.aclose()


def _freeze(pid: int) -> None:
    """Stops a child; returns once it stands still, in an instant, or has ended already."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def _last_line(log: Path) -> str:
    """The last line with words in it: a traceback of a group ends with a frame of dashes."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    spoken = [line.strip(" |") for line in lines if any(map(str.isalpha, line))]
    return spoken[-1] if spoken else "it said nothing"
