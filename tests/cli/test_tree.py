"""`shove-actors tree`: a picture of something that really runs."""

from __future__ import annotations

import json
import re

import pytest
import trio
import trio.testing

from shove_actors import EmbeddedServerError, actors
from shove_actors.__main__ import main
from shove_actors.cli import _tree
from shove_actors.cli._flights import flights_topic
from shove_actors.cli._render import tree_lines
from shove_actors.cli._run import DemoFailed
from shove_actors.cli._tree import HANDLED

PROGRESS = re.compile(
    r"(?P<where>.*): (?P<published>[\d,]+) flights published, (?P<handled>\d+) .*"
)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["tree", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def check(lines: list[str], shards: int) -> str:
    """A whole tree at work; returns where it runs."""
    match = PROGRESS.fullmatch(lines[0])
    assert match is not None, lines[0]
    assert int(match["handled"]) >= HANDLED
    # Messages were still flowing.
    assert int(match["published"].replace(",", "")) > int(match["handled"])
    assert lines[1] == "broker  running"
    assert sum("flights-shard-" in line for line in lines) == shards
    for name in ("bridge", "publisher", "movers", "leases", "groups", "lanes", "flights-dlq-0"):
        assert any(line.endswith(f"─ {name}  running") for line in lines), name
    return match["where"]


@pytest.mark.server
def test_on_a_server_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    where = check(shown(capsys, "--shards", "3"), shards=3)
    assert re.fullmatch(r"on a nats-server at nats://127\.0\.0\.1:\d+", where)


def test_in_memory_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(shown(capsys, "--memory"), shards=8) == "in memory, as asked"


def no_binary() -> None:
    raise EmbeddedServerError("no nats-server executable was found")


def test_in_memory_if_there_is_no_server_and_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SHOVE_NATS_SERVER", raising=False)
    monkeypatch.setattr(_tree, "find_binary", no_binary)
    where = check(shown(capsys), shards=8)
    assert where == "in memory, because no nats-server executable was found"


def test_a_server_that_is_named_and_not_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHOVE_NATS_SERVER", "/nonexistent/nats-server")
    assert main(["tree"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("shove-actors: SHOVE_NATS_SERVER names '/nonexistent/nats-server'")
    assert error.count("\n") == 1
    # Who does not want a server does not need one.
    assert main(["tree", "--memory"]) == 0


def test_rules(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "--rules", "--shards", "2")
    rules = dict(re.fullmatch(r"[│├└─ ]*(\S+) +(.+)", line).groups() for line in lines)  # type: ignore[union-attr]
    assert rules["broker"] == "rest_for_one, no restarts"
    assert rules["services"] == "one_for_one, 5 restarts in 30 s"
    assert rules["publisher"] == ("grace 10 s, backoff 0.1 to 2 s, mailbox 4,097 (keep, drained)")
    assert rules["movers"] == "pool, unlimited restarts, stops in 5 s, backoff 0.1 to 2 s"
    assert rules["flights-shard-1"] == "grace 5 s, backoff 0.2 to 5 s, mailbox 1 (clear)"


def test_too_many_shards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tree", "--memory", "--shards", "1000000"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


async def test_flights_that_are_not_handled_are_an_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    work = _tree._Work(flights_topic(2))
    with pytest.raises(DemoFailed, match=r"only 0 flights were handled: no more for 60 s"):
        await work.until_handled(1)
    assert trio.current_time() == 60


async def test_a_crash_is_in_the_picture(autojump_clock: trio.testing.MockClock) -> None:
    async def fragile(ctx: actors.Context[str]) -> None:
        ctx.started()
        async for message in ctx:
            raise ValueError(message)

    spec = actors.ChildSpec(
        id="fragile", start=fragile, backoff=actors.Backoff(initial_s=60, max_s=60)
    )
    async with actors.open_actor_system(children=[spec]) as system:
        ref = system.ref("fragile")
        await ref.tell("a secret")
        await trio.testing.wait_all_tasks_blocked()
        await ref.tell("and another")
        assert tree_lines(system.snapshot()) == [
            "system  running",
            "└─ fragile  backoff  last crashed with ValueError  mailbox 1/64",
        ]


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads("\n".join(shown(capsys, "--memory", "--shards", "2", "--json")))
    assert found["handled"] >= HANDLED
    assert found["where"] == "in memory, as asked"
    assert found["tree"]["name"] == "broker"
    assert [child["name"] for child in found["tree"]["children"]] == ["bridge", "services"]
    ruled = json.loads("\n".join(shown(capsys, "--rules", "--json")))
    assert ruled["tree"]["children"][0]["rules"]
