"""`shove-actors top`: what the server counts, what a process answers, how it is drawn."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from shove_actors import (
    NatsConfig,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    jetstream,
    open_broker,
)
from shove_actors.backends.nats._browse import next_messages
from shove_actors.cli import _poison_counts
from shove_actors.cli._percentiles import duration, percentiles
from shove_actors.cli._server_state import sample, state
from shove_actors.cli._top_state import Looker, Rates
from shove_actors.cli._top_view import ALIKE, BUSY, as_svg, as_text
from shove_actors.embedded import ServerProcess
from tests.runtime.world import consuming
from tests.support import wait_until_sync

from .kit import LONG_S, Cli, started

pytestmark = pytest.mark.server

APP = "tests.cli.apps.services:group"


def once(cli: Cli, url: str, queue: str) -> Any:
    return cli.json("top", "--once", "--interval", "0.2", "--url", url, "--queue", queue)


@contextmanager
def answering(url: str, queue: str, orders: str) -> Iterator[subprocess.Popen[str]]:
    names = {"SHOVE_TEST_QUEUE": queue, "SHOVE_TEST_ORDERS": orders}
    with started("run", APP, "--url", url, "--answer", environment=names) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == f"handled {orders.split()[-1]}\n":
                break
        yield process
        process.terminate()
        assert process.wait(timeout=LONG_S) in (0, 3)


def nodes(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield tree
    for child in tree["children"]:
        yield from nodes(child)


async def put(url: str, queue: str) -> None:
    """Three pending, one dead, two held, one in flight with somebody who does not settle it."""
    topic = Topic(str, TopologyBuilder(queue).hold_queue(3600).dlq().build())
    async with open_broker(NatsConfig(url)) as broker:
        await broker.declare(topic)
        service = broker.publish_service
        await broker.publisher().publish_batch(topic, ["a", "b", "c", "d"])
        await service.publish(f"{queue}-dlq", b"{}", b"")
        for number in range(2):
            await service.publish(f"{queue}-hold-3600s", b"%d" % number, b"")
        held = trio.Event()

        async def handle(message: str) -> Outcome:
            held.set()
            await trio.sleep_forever()
            return Outcome.ACK

        group = broker.consumer_group()
        group.register(topic, handle, prefetch=1, handler_timeout=3600)
        async with trio.open_nursery() as nursery:
            await nursery.start(group.serve)
            await held.wait()
            async with jetstream.connect(url) as js:
                before = await sample(js, [queue])
                await broker.publisher().publish(topic, "e")
                [found] = state(before, await sample(js, [queue]))
            group.hard_stop()
    assert found["stored_per_s"] > 0
    assert {name: found[name] for name in ("pending", "in_flight", "held", "dead")} == {
        "pending": 4,
        "in_flight": 1,
        "held": 2,
        "dead": 1,
    }


async def test_what_the_server_counts(
    server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    await put(server.url, fresh_queue())


async def nothing_more_is_written(js: jetstream.JetStream, stream: str) -> None:
    """A write that was cut off with its consumer may still be on its way to the server."""
    await js.connection.flush()
    last, same = -1, 0
    with trio.fail_after(LONG_S):
        while same < 5:
            found = (await js.stream_info(stream)).last_seq
            last, same = found, same + 1 if found == last else 0
            await trio.sleep(0.05)


async def test_poisoned_keys_are_counted(
    server: ServerProcess, fresh_queue: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = fresh_queue()
    topology = TopologyBuilder(queue).sequenced(SequenceFailure.FAIL_ALL).routing_shards(2)
    topic = SequencedTopic(
        str, key=lambda text: text[0], topology=topology.hold_queue(1).dlq().build()
    )
    reads: list[int] = []

    async def counted(js: jetstream.JetStream, stream: str, sequence: int) -> Any:
        reads.append(sequence)
        return await next_messages(js, stream, sequence)

    monkeypatch.setattr(_poison_counts, "next_messages", counted)
    async with open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(topic)
        looker = Looker(broker.backend.js, [queue], ask_processes=False)  # type: ignore[attr-defined]

        async def poisoned() -> int | None:
            [found] = (await looker.look())["topics"]
            assert found["fails_all"] is True
            return cast("int | None", found["poisoned"])

        assert (await poisoned(), reads) == (0, [])
        await broker.publisher().publish_batch(topic, ["a1", "b1", "c1", "a2"])

        async def reject(message: str) -> Outcome:
            return Outcome.REJECT

        async with consuming(broker, topic, reject):
            with trio.fail_after(LONG_S):
                while await poisoned() != 3:  # noqa: ASYNC110 - as `top` does
                    await trio.sleep(0.02)
        await nothing_more_is_written(broker.backend.js, f"KV_{queue}-poison")  # type: ignore[attr-defined]
        assert await poisoned() == 3
        del reads[:]
        assert (await poisoned(), reads) == (3, [])  # nothing was written: nothing is read
        assert await broker.release(topic, "b")
        assert (await poisoned(), len(reads)) == (2, 1)
        monkeypatch.setattr(_poison_counts, "MOST", 2)
        assert await broker.release(topic, "c")
        assert await poisoned() is None


def test_side_streams_are_no_topics(
    cli: Cli, own_server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    trio.run(put, own_server.url, "orders")
    found = cli.json("top", "--once", "--interval", "0.1", "--url", own_server.url)
    assert [topic["queue"] for topic in found["topics"]] == ["orders"]
    assert found["processes"] == []


def test_a_process_answers_if_it_was_told_to(
    cli: Cli, server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    queue = fresh_queue()
    with answering(server.url, queue, "a bad b"):
        found = once(cli, server.url, queue)
        text = cli.run(
            *("top", "--once", "--interval", "0.1", "--url", server.url, "--queue", queue)
        )
    [process] = [each for each in found["processes"] if each["topics"][0]["queue"] == queue]
    assert process["target"] == APP
    assert process["connection"]["connected"] is True
    [topic] = process["topics"]
    assert topic["attempts"] == 3
    assert topic["outcomes"]["ack"] == 2
    assert topic["dead"] == {"rejected": 1}
    assert topic["latency"]["handler"]["p50"] >= 0
    assert topic["latency"]["waited"]["max"] < LONG_S
    names = {node["name"]: node for node in nodes(process["tree"])}
    assert names["bridge"]["state"] == "running"
    assert f"{queue}-0" in names
    assert "pid" in text
    assert "bridge  running" in text
    assert queue[:30] in text


def test_one_that_was_not_told_to_is_not_there(
    cli: Cli, server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    queue = fresh_queue()
    names = {"SHOVE_TEST_QUEUE": queue, "SHOVE_TEST_ORDERS": "a"}
    with started("run", APP, "--url", server.url, environment=names) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "handled a\n"
        found = once(cli, server.url, queue)
    assert [each["queue"] for each in found["topics"]] == [queue]
    assert not [p for p in found["processes"] if p["pid"] == process.pid]


def test_json_without_once_is_a_line_for_each_look(server: ServerProcess) -> None:
    with started("top", "--json", "--interval", "0.1", "--url", server.url) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=LONG_S) == 0
    assert all(line["server"]["version"] for line in lines)


@pytest.mark.slow
def test_json_goes_on_when_the_server_is_away_for_a_moment(own_server: ServerProcess) -> None:
    trio.run(put, own_server.url, "orders")
    with started("top", "--json", "--interval", "0.1", "--url", own_server.url) as process:
        out = process.stdout
        assert out is not None
        first = json.loads(out.readline())
        assert first["trouble"] is None
        own_server.kill()
        away = next(line for line in map(json.loads, out) if line["trouble"])
        assert away["topics"] == []
        own_server.restart()
        again = next(line for line in map(json.loads, out) if not line["trouble"])
        assert [topic["queue"] for topic in again["topics"]] == ["orders"]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=LONG_S) == 0


def test_usage(cli: Cli, server: ServerProcess, tmp_path: Path) -> None:
    assert "needs a terminal" in cli.error("top", "--url", server.url, code=2)
    assert "--once" in cli.error("top", "--svg", str(tmp_path / "x"), code=2)
    assert "127.0.0.1:1" in cli.error("top", "--once", "--url", "nats://127.0.0.1:1", code=1)
    assert "needs a terminal" in cli.error("run", APP, "--memory", "--top", code=2)
    assert "takes none" in cli.error(
        "run", "tests.cli.apps.services:plain", "--memory", "--answer", code=2
    )


@pytest.mark.parametrize("memory", [False, True], ids=["server", "memory"])
def test_run_top_in_a_terminal(
    server: ServerProcess, fresh_queue: Callable[[], str], memory: bool
) -> None:
    queue = fresh_queue()[-12:]
    where = ["--memory"] if memory else ["--url", server.url]
    screen = Screen(
        ["run", APP, *where, "--top", "--drain-timeout", "1"],
        SHOVE_TEST_QUEUE=queue,
        SHOVE_TEST_ORDERS="a b",
    )
    with screen:
        screen.until("group-1", "clock", f"{queue}-0", "consumers of")
        screen.process.terminate()
        screen.drain()
        assert screen.process.wait(timeout=LONG_S) == 0
    # The log goes on when the picture is gone.
    assert "Traceback" not in screen.errors
    assert "broker: closed" in screen.errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["SIGINT", "SIGHUP"])
def test_top_in_a_terminal(server: ServerProcess, number: signal.Signals) -> None:
    with Screen(["top", "--url", server.url, "--interval", "0.1"]) as screen:
        screen.until("shove-actors top", "nats-server")
        screen.process.send_signal(number)
        screen.drain()
        assert screen.process.wait(timeout=LONG_S) == 0
        # The other screen and the cursor are given back.
        screen.ended_with("\x1b[?1049l", "\x1b[?25h")


@pytest.mark.slow
def test_a_server_that_goes_and_comes_back(own_server: ServerProcess) -> None:
    trio.run(put, own_server.url, "orders")
    with Screen(["top", "--url", own_server.url, "--interval", "0.1"]) as screen:
        screen.until("orders", "stored/s")
        own_server.kill()
        screen.forget()
        screen.until("connect")
        own_server.restart()
        screen.forget()
        screen.until("orders", "round trip", without="connect")
        screen.process.send_signal(signal.SIGINT)
        screen.drain()
        assert screen.process.wait(timeout=LONG_S) == 0


class Screen:
    """A command in a terminal of its own."""

    def __init__(self, arguments: list[str], **environment: str) -> None:
        self._terminal, slave = pty.openpty()
        self._seen = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shove_actors", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "TERM": "xterm-256color",
                "COLUMNS": "150",
                "LINES": "60",
                "PYTHONUTF8": "1",
                **environment,
            },
        )
        os.close(slave)
        os.set_blocking(self._terminal, False)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)
        assert self.process.stderr is not None
        with self.process.stderr as errors:
            self.errors = errors.read().decode()

    def _read(self) -> bool:
        try:
            chunk = os.read(self._terminal, 65536)
        except BlockingIOError:
            return True
        except OSError:  # how Linux says that the other side has closed
            return False
        self._seen += chunk
        return bool(chunk)

    def forget(self) -> None:
        """What is shown from now on counts."""
        self._read()
        self._seen = b""

    def until(self, *words: str, without: str | None = None) -> None:
        def shown() -> bool:
            assert self._read() or self.process.poll() is None, self._seen
            if without is not None and without.encode() in self._seen:
                self._seen = b""  # an earlier picture
            return all(word.encode() in self._seen for word in words)

        wait_until_sync(shown, timeout=LONG_S, message=f"{words} in the terminal")

    def ended_with(self, *words: str) -> None:
        wait_until_sync(lambda: not self._read(), timeout=LONG_S)
        assert all(word.encode() in self._seen for word in words), self._seen

    def drain(self) -> None:
        """Reads on until it has ended: a full terminal would stop it."""
        wait_until_sync(lambda: not self._read() or self.process.poll() is not None, timeout=LONG_S)


# ------------------------------------------------------------------------------ drawing


def topic(name: str, **more: Any) -> dict[str, Any]:
    numbers = ("pending", "in_flight", "held", "dead", "redelivered", "pulls", "durables")
    rates = {"stored_per_s": 0.0, "settled_per_s": 0.0}
    poison = {"fails_all": False, "poisoned": None}
    return {"queue": name, **dict.fromkeys(numbers, 0), **rates, **poison, **more}


def node(name: str, *children: Any, **more: Any) -> dict[str, Any]:
    kind = "supervisor" if children else "worker"
    facts = {"state": "running", "restarts": 0, "mailbox": 0, "capacity": 9, "last_exit": None}
    return {"name": name, "kind": kind, **facts, "children": list(children), **more}


def process(**more: Any) -> dict[str, Any]:
    return {
        "target": "shop:app",
        "host": "here",
        "pid": 7,
        "uptime": 12.0,
        "cpu_seconds": 3.0,
        "memory_bytes": 5 << 20,
        "stopping": False,
        "connection": {"backend": "nats", "connected": True, "server": "nats://s:1"},
        "topics": [],
        "scaling": [],
        "troubles": {},
        "tree": node("broker", node("bridge")),
        **more,
    }


def drawn(**snapshot: Any) -> str:
    server = {"url": "nats://s:1", "version": "2.15.1", "round_trip": 0.0005}
    return as_text({"server": server, "topics": [], "processes": [], **snapshot})


def test_quiet_topics_are_counted() -> None:
    many = [topic(f"q{n}") for n in range(BUSY)] + [topic("loud", pending=3)]
    text = drawn(topics=many)
    assert "loud" in text
    assert "q3" not in text
    assert f"and {BUSY} topics more" in text
    assert "q3" in drawn(topics=many[:BUSY])


def test_poisoned_keys_have_a_column_where_there_may_be_some() -> None:
    assert "poisoned" not in drawn(topics=[topic("orders")])
    some = topic("accounts", fails_all=True, poisoned=3, dead=7)
    unknown = topic("ledger", fails_all=True)
    head, *rows = drawn(topics=[topic("orders"), some, unknown]).splitlines()[2:6]
    end = head.index("poisoned") + len("poisoned")
    shown = {row.split()[0]: row[end - len("poisoned") : end].strip() for row in rows}
    assert shown == {"orders": "", "accounts": "3", "ledger": "?"}
    # A topic whose keys wait to be released is not at rest.
    many = [topic(f"q{n}") for n in range(BUSY)] + [some]
    assert "accounts" in drawn(topics=many)


LATENCY = dict.fromkeys(("p50", "p95", "p99", "max"), 0.0123)
CONSUMERS = {
    "queue": "orders.of.the.northern.region",
    "consumers": 8,
    "busy": 3,
    "attempts_per_s": 1234.0,
    "latency": {"handler": LATENCY, "waited": LATENCY},
}


@pytest.mark.parametrize(
    ("width", "columns", "of_consumers"),
    [
        (
            120,
            "stored/s settled/s pending in flight held dead poisoned redelivered pulls",
            "n busy /s handler p50 p95 p99 wait p50 wait p99",
        ),
        (
            80,
            "stored/s settled/s pending in flight held dead poisoned",
            "n busy /s handler p50 p95 p99 wait p50",
        ),
        (60, "pending in flight held dead poisoned", "busy /s handler p50 wait p50"),
        (40, "pending dead poisoned", "busy /s"),
        (31, "pending dead", "busy /s"),
    ],
)
def test_a_narrow_terminal_has_fewer_columns(width: int, columns: str, of_consumers: str) -> None:
    some = [
        topic("orders.of.the.northern.region", pending=1_234_567, pulls=1),
        topic("accounts", fails_all=True, poisoned=3, dead=7),
    ]
    server = {"url": "nats://127.0.0.1:4222", "version": "2.15.1", "round_trip": 0.0005}
    running = process(tree=node("broker", node("bridge"), node("x" * 50)), topics=[CONSUMERS])
    text = as_text({"server": server, "topics": some, "processes": [running]}, width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if line.startswith("topic "))
    assert " ".join(head.split()) == f"topic {columns}"
    inner = next(line for line in lines if "consumers of" in line)
    assert " ".join(inner.split()[1:-1]).endswith(f"consumers of {of_consumers}")
    # Numbers are whole, and the names as much of themselves as fits.
    [row] = [line for line in lines if "1,234,567" in line]
    assert row.startswith("orders.of.t")
    [row] = [line for line in lines if line.startswith("accounts ")]
    assert ("3" in row.split()) == ("poisoned" in columns)
    assert "7" in row.split()
    assert "bridge  running" in text


def test_shards_that_are_well_are_counted_and_others_are_shown() -> None:
    shards = [node(f"s-{n}") for n in range(30)]
    shards[17] = node("s-17", restarts=2, last_exit="crashed: OSError")
    shards[21] = node("s-21", mailbox=4)
    text = drawn(processes=[process(tree=node("broker", node("lanes", *shards)))])
    assert "s-17  running  2 restarts  last crashed: OSError" in text
    assert "s-21  running  mailbox 4/9" in text
    assert "and 27 more that run" in text
    assert "s-5 " not in text
    few = node("broker", *shards[:ALIKE])
    assert all(f"s-{n}" in drawn(processes=[process(tree=few)]) for n in range(ALIKE))


def test_what_is_wrong_is_said() -> None:
    lost = process(
        connection={"backend": "nats", "connected": False, "server": "nats://s:1"},
        stopping=True,
        troubles={"disconnected": 2},
        scaling=[{"ago": 3.0, "queue": "orders", "before": 1, "after": 2}],
        tree=node("broker", truncated=True),
    )
    text = drawn(processes=[lost], trouble="the server is gone", log=["a line"])
    for words in (
        "NOT CONNECTED to nats://s:1",
        "stopping",
        "2 disconnected",
        "orders: 1 -> 2 consumers, 3 s ago",
        "(too large to be shown)",
        "the server is gone",
        "a line",
    ):
        assert words in text
    assert "no process answers" in drawn()


def test_a_terminal_that_has_only_ascii() -> None:
    snapshot = {"server": None, "topics": [], "processes": [process()]}
    assert "`- bridge" in as_text(snapshot, ascii_only=True)


def test_svg() -> None:
    snapshot = {"server": None, "topics": [topic("orders")], "processes": [process()]}
    image = as_svg(snapshot, title="a title")
    assert image.startswith("<svg")
    assert "orders" in image
    assert "a&#160;title" in image or "a title" in image
    # Nothing is fetched from anywhere when it is looked at.
    assert "url(http" not in image.replace('"', "")


# ------------------------------------------------------------------------------ numbers


async def test_rates_are_of_the_time_between_two_looks(autojump_clock: object) -> None:
    def seen(attempts: int, cpu: float, pid: int = 7) -> dict[str, Any]:
        return process(pid=pid, cpu_seconds=cpu, topics=[{"queue": "q", "attempts": attempts}])

    rates = Rates()
    first, second, other = seen(10, 1.0), seen(30, 2.0), seen(99, 9.0, pid=8)
    rates.add(first)
    await trio.sleep(4)
    rates.add(second)
    rates.add(other)
    assert (first["cpu_percent"], first["topics"][0]["attempts_per_s"]) == (0, 0)
    assert (second["cpu_percent"], second["topics"][0]["attempts_per_s"]) == (25.0, 5.0)
    assert (other["cpu_percent"], other["topics"][0]["attempts_per_s"]) == (0, 0)


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentiles([]) == {}
    assert percentiles([3.0]) == {"p50": 3.0, "p95": 3.0, "p99": 3.0, "max": 3.0}
    hundred = [float(n) for n in range(1, 101)]
    assert percentiles(reversed(hundred)) == {"p50": 50, "p95": 95, "p99": 99, "max": 100}
    assert percentiles([1.0, 2.0])["p50"] == 1.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 us"),
        (0.0000123, "12.3 us"),
        (0.00099999, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.9999, "1 s"),
        (12.34, "12.3 s"),
        (4000, "4,000 s"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text
