"""The processes that these tests kill: `python -m tests.durability.child`.

Reads plans from standard input, one JSON object per line, and forks one process for each: the
package is imported once instead of fifty times, and a process is there in milliseconds. The parent
of the forks has no event loop, no thread and no connection, so each of them starts as if fresh.
How a fork ended goes to its `.exit` file: an exit status, or minus the number of the signal. At the
end of its input the program kills what it has started and leaves.

Kill points are put around the real objects, here and only here: production code has no hooks. A
process kills itself with SIGKILL, so nothing of it runs after the point: no `finally`, no flush.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import msgspec
import trio

from shove_actors import Broker, NatsConfig, Topology, open_broker
from shove_actors.actors import Backoff
from shove_actors.backends import Delivery, Post
from shove_actors.backends.nats import NatsBackend
from shove_actors.backends.nats._lane import NatsLane
from shove_actors.runtime import _hold_mover, _registration
from shove_actors.runtime._publish_service import PublishService

from .notes import Handler, Journal, make_topic
from .plan import Kill, Plan, gate_path

#: How often the forks are looked after.
REAP_S = 0.02


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    while True:  # another thread may take the signal a moment later
        time.sleep(1)


# ---------------------------------------------------------------------------- kill points


def arm(kill: Kill) -> None:
    """Put the kill point around the real methods of this process."""
    if kill.point == "before_store":
        _before_store(kill.target)
    elif kill.point in ("before_nak", "after_nak"):
        _around_nak(kill)
    elif kill.point in ("before_record", "after_record", "before_removal", "after_removal"):
        _around_mark(kill)
    elif kill.point in ("before_delete", "after_delete"):
        _around_delete(kill)
    else:
        _around_ack(kill)


def _before_store(target: str) -> None:
    submit = PublishService.submit

    def submit_or_die(self: PublishService, post: Post) -> None:
        if post.subject == target:
            die()
        submit(self, post)

    PublishService.submit = submit_or_die  # type: ignore[method-assign]


def _around_ack(kill: Kill) -> None:
    ack = NatsLane.ack

    def ack_and_die(self: NatsLane, delivery: Delivery) -> None:
        if self.spec.stream != kill.source:
            ack(self, delivery)
            return
        if kill.point == "after_store":
            die()
        ack(self, delivery)
        trio.lowlevel.spawn_system_task(_die_once_processed, self)

    NatsLane.ack = ack_and_die  # type: ignore[method-assign]


async def _die_once_processed(lane: NatsLane) -> None:
    if not await lane.confirm():
        raise RuntimeError("the acknowledgement was not confirmed")
    die()


def _around_nak(kill: Kill) -> None:
    nak = NatsLane.nak

    def nak_and_die(self: NatsLane, delivery: Delivery, delay_s: float | None = None) -> None:
        if self.spec.stream != kill.source:
            nak(self, delivery, delay_s)
            return
        if kill.point == "before_nak":
            die()
        nak(self, delivery, delay_s)
        trio.lowlevel.spawn_system_task(_die_once_read, self)

    NatsLane.nak = nak_and_die  # type: ignore[method-assign]


async def _die_once_read(lane: NatsLane) -> None:
    await lane._conn.flush()
    die()


def _around_mark(kill: Kill) -> None:
    write = NatsBackend.write_mark
    before, what = kill.point.split("_")

    async def write_and_die(
        self: NatsBackend, queue: str, name: str, value: bytes | None, *, revision: int
    ) -> bool:
        if (value is None) is not (what == "removal"):
            return await write(self, queue, name, value, revision=revision)
        if before == "before":
            die()
        if not await write(self, queue, name, value, revision=revision):
            raise RuntimeError("the mark was not written")
        die()

    NatsBackend.write_mark = write_and_die  # type: ignore[method-assign]


def _around_delete(kill: Kill) -> None:
    delete, number = NatsBackend.delete_message, 0

    async def delete_and_die(self: NatsBackend, stream: str, sequence: int) -> bool:
        nonlocal number
        number += 1
        if number == kill.number and kill.point == "before_delete":
            die()
        deleted = await delete(self, stream, sequence)
        if number == kill.number:
            die()
        return deleted

    NatsBackend.delete_message = delete_and_die  # type: ignore[method-assign]


async def _start_none(self: Broker, topology: Topology) -> None:
    await trio.lowlevel.checkpoint()


def _quick(**_: float) -> Backoff:
    return Backoff(initial_s=0.01, max_s=0.01, jitter=0.0, reset_after_s=30.0)


# ---------------------------------------------------------------------------- one process


async def consume(plan: Plan) -> int:
    folder = Path(plan.folder)
    topic = make_topic(plan.queue, plan.kind, hold_s=plan.hold_s, shards=plan.shards)
    journal = Journal(folder, plan.name)
    handler = Handler(
        journal, gate=gate_path(folder, plan.queue), work_s=plan.work_s, may_exit=True
    )
    async with open_broker(NatsConfig(plan.url)) as broker:
        if plan.movers == "only":
            await broker.ensure_movers(topic.topology)
            await trio.sleep_forever()
        group = broker.consumer_group()
        group.register(
            topic,
            handler,
            ack_wait=plan.ack_wait,
            max_retries=plan.max_retries,
            prefetch=plan.prefetch,
            retry_delay=plan.retry_delay,
            handler_timeout=None,
        )
        outcome = await group.run_until(drain_timeout=plan.drain_timeout)
    plan.path(".outcome").write_text("\n".join(outcome.reasons), encoding="utf-8")
    return outcome.exit_code


def run(plan: Plan) -> int:
    """One consumer process from its start to its exit status."""
    log = os.open(plan.path(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
    if plan.mover_lease_s is not None:
        _hold_mover.ACK_WAIT_S = plan.mover_lease_s  # type: ignore[misc]
    if plan.movers == "none":
        Broker.ensure_movers = _start_none  # type: ignore[method-assign]
    if plan.quick_restarts:
        vars(_registration)["Backoff"] = _quick
    if plan.kill is not None:
        arm(plan.kill)
    return trio.run(consume, plan)


# ---------------------------------------------------------------------------- the parent of forks


def fork(plan: Plan) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        os.close(0)
        os.open(os.devnull, os.O_RDONLY)
        status = run(plan)
    except BaseException:
        logging.exception("the process failed")
    finally:
        logging.shutdown()
        os._exit(status)


def reap(running: dict[int, Plan]) -> None:
    for pid in list(running):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            plan = running.pop(pid)
            # Renamed into place, so that whoever sees the file sees the number.
            part = plan.path(".exit.part")
            part.write_text(str(os.waitstatus_to_exitcode(status)))
            part.rename(plan.path(".exit"))


def main() -> None:
    running: dict[int, Plan] = {}
    decode = msgspec.json.Decoder(Plan).decode
    buffer = b""
    try:
        while True:
            readable, _, _ = select.select([0], [], [], REAP_S)
            if readable:
                data = os.read(0, 65536)
                if not data:
                    return
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    plan = decode(line)
                    pid = fork(plan)
                    running[pid] = plan
                    plan.path(".pid").write_text(str(pid))
            reap(running)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
