"""A snapshot of `top`: what the server says, what processes say, and rates from two of them.

As JSON, and as JSON only: a snapshot of another process is drawn by the same code as one's own.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

import trio

from shove_actors.jetstream import JetStream, status_of

from ._poison_counts import PoisonCounts
from ._process import SUBJECT
from ._server_state import Sample, sample, state

#: How long processes have to answer; `top` asks again at every look.
ANSWER_S: Final = 0.3
_NOBODY: Final = 503


class Rates:
    """What processes did since they were seen last."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[float, dict[str, Any]]] = {}

    def add(self, process: dict[str, Any]) -> None:
        """Adds `cpu_percent`, and to each topic `attempts_per_s`; zero at first sight."""
        key, now = (process["host"], process["pid"]), trio.current_time()
        at, before = self._seen.get(key, (now, process))
        seconds = max(now - at, 1e-9)
        used = process["cpu_seconds"] - before["cpu_seconds"]
        process["cpu_percent"] = round(100 * max(0.0, used) / seconds, 1)
        attempts = {topic["queue"]: topic["attempts"] for topic in before["topics"]}
        for topic in process["topics"]:
            was = attempts.get(topic["queue"], topic["attempts"])
            topic["attempts_per_s"] = round(max(0, topic["attempts"] - was) / seconds, 2)
        self._seen[key] = now, process


class Looker:
    """Looks at a server and at the processes behind it, again and again."""

    def __init__(
        self, js: JetStream, queues: Collection[str] = (), *, ask_processes: bool = True
    ) -> None:
        self._js = js
        self._queues = queues
        self._ask = ask_processes
        self._before: Sample | None = None
        self._rates = Rates()
        self._poison = PoisonCounts(js)

    async def look(self) -> dict[str, Any]:
        """The first look has no rates. Raises what prevents it."""
        now = await sample(self._js, self._queues, self._poison)
        processes = await ask(self._js) if self._ask else []
        for process in processes:
            self._rates.add(process)
        connection = self._js.connection
        found = {
            "server": {
                "url": connection.server,
                "version": connection.server_version,
                "round_trip": round(now.round_trip, 6),
                "more_topics": now.truncated,
            },
            "topics": state(self._before or now, now),
            "processes": processes,
        }
        self._before = now
        return found


async def ask(js: JetStream) -> list[dict[str, Any]]:
    """What the processes answer that were told to answer, by host and pid."""
    connection, answers = js.connection, []
    nobody = trio.Event()

    def answered(subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes) -> None:
        status = status_of(header_block)
        if status is not None and status[0] == _NOBODY:
            nobody.set()
        else:
            answers.append(payload)

    inbox = connection.new_inbox()
    sid = connection.subscribe(inbox, answered)
    try:
        if connection.publish(SUBJECT.encode(), b"", reply=inbox):
            with trio.move_on_after(ANSWER_S):
                await nobody.wait()
    finally:
        await connection.unsubscribe(sid)
    found = []
    for payload in answers:
        try:
            process = json.loads(payload)
        except ValueError:
            continue  # somebody else's
        if isinstance(process, dict) and {"host", "pid", "topics", "tree"} <= process.keys():
            found.append(process)
    return sorted(found, key=lambda each: (each["host"], each["pid"]))
