"""What a stream takes, keeps and lets go."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shove_actors._errors import NoResponders, StreamFull
from shove_actors.backends import Stored
from shove_actors.backends.memory import DurableSettings, MemoryServer, StreamSettings
from shove_actors.backends.memory._stream import message_id
from shove_actors.messaging import MSG_ID, Retention, Storage, encode_headers

Clock = trio.testing.MockClock


def with_id(identity: str) -> bytes:
    return encode_headers({"Other": "x", MSG_ID: identity})


def server_with(**settings: object) -> MemoryServer:
    server = MemoryServer()
    server.create_stream(
        StreamSettings(**{"name": "q", "subjects": ("q",), **settings})  # type: ignore[arg-type]
    )
    return server


@pytest.mark.parametrize(
    ("block", "identity"),
    [
        (b"NATS/1.0\r\nNats-Msg-Id: a b\r\n\r\n", b"a b"),
        (b"NATS/1.0\r\nX: y\r\nNats-Msg-Id:a\r\nZ: 1\r\n\r\n", b"a"),
        # The server's lookup is case-sensitive, and an empty id is none.
        (b"NATS/1.0\r\nnats-msg-id: a\r\n\r\n", None),
        (b"NATS/1.0\r\nNats-Msg-Id: \r\n\r\n", None),
        (b"NATS/1.0\r\nX-Nats-Msg-Id: a\r\n\r\n", None),
    ],
)
def test_message_id(block: bytes, identity: bytes | None) -> None:
    assert message_id(block) == identity


async def test_wildcards_decide_who_takes_a_subject(autojump_clock: Clock) -> None:
    server = server_with(subjects=("a.*", "b.>"))
    for subject in ("a.x", "b.x", "b.x.y"):
        assert isinstance(server.publish(subject, b""), Stored)
    for subject in ("a", "b", "a.x.y", "c", "q"):
        with pytest.raises(NoResponders, match=subject):
            server.publish(subject, b"")


async def test_window_ends_after_two_minutes(autojump_clock: Clock) -> None:
    server = server_with()
    assert server.publish("q", b"", with_id("a")) == Stored("q", 1)
    await trio.sleep(119.9)
    assert server.publish("q", b"", with_id("a")) == Stored("q", 1, duplicate=True)
    # The duplicate did not start the window again.
    await trio.sleep(0.1)
    assert server.publish("q", b"", with_id("a")) == Stored("q", 2)
    await trio.sleep(119.9)
    assert server.publish("q", b"", with_id("a")) == Stored("q", 2, duplicate=True)


async def test_windows_are_per_stream(autojump_clock: Clock) -> None:
    server = server_with()
    server.create_stream(StreamSettings(name="other", subjects=("other",)))
    assert server.publish("q", b"", with_id("a")) == Stored("q", 1)
    assert server.publish("other", b"", with_id("a")) == Stored("other", 1)


async def test_sequences_are_never_used_again(autojump_clock: Clock) -> None:
    server = server_with()
    server.publish("q", b"")
    server.publish("q", b"")
    assert server.streams["q"].purge() == 2
    assert server.publish("q", b"") == Stored("q", 3)


async def test_refused_message_leaves_nothing_behind(autojump_clock: Clock) -> None:
    server = server_with(max_messages=1)
    server.publish("q", b"")
    with pytest.raises(StreamFull, match="max_messages is 1"):
        server.publish("q", b"", with_id("a"))
    server.streams["q"].purge()
    assert server.publish("q", b"", with_id("a")) == Stored("q", 2)


@pytest.mark.parametrize(
    ("storage", "plain", "dressed"), [(Storage.FILE, 131, 153), (Storage.MEMORY, 117, 135)]
)
async def test_sizes_are_the_servers(
    storage: Storage, plain: int, dressed: int, autojump_clock: Clock
) -> None:
    """As nats-server 2.15.1 reports them for 100 bytes on subject `F`, with and without `A: b`."""
    server = server_with(name="F", subjects=("F",), storage=storage)
    server.publish("F", b"x" * 100)
    assert server.streams["F"].bytes == plain
    server.publish("F", b"x" * 100, b"NATS/1.0\r\nA: b\r\n\r\n")
    assert server.streams["F"].bytes == plain + dressed


async def test_bytes_limit_counts_what_is_stored_now(autojump_clock: Clock) -> None:
    server = server_with(max_bytes=131 * 2)
    server.publish("q", b"x" * 100)
    server.publish("q", b"x" * 100)
    with pytest.raises(StreamFull, match="max_bytes"):
        server.publish("q", b"")
    server.streams["q"].remove(1)
    server.publish("q", b"x" * 100)


async def test_old_messages_expire_exactly_in_time(autojump_clock: Clock) -> None:
    server = server_with(max_age_s=10.0)
    server.publish("q", b"1")
    await trio.sleep(4)
    server.publish("q", b"2")
    await trio.sleep(5.9)
    assert [m.payload for m in server.messages("q")] == [b"1", b"2"]
    await trio.sleep(0.1)
    assert [m.payload for m in server.messages("q")] == [b"2"]
    assert server.streams["q"].bytes > 0
    await trio.sleep(4)
    assert server.messages("q") == []
    assert server.streams["q"].bytes == 0


async def test_a_shorter_age_holds_for_what_is_stored(autojump_clock: Clock) -> None:
    server = server_with()
    server.publish("q", b"1")
    await trio.sleep(10)
    server.edit_stream("q", max_age_s=15.0)
    assert len(server.messages("q")) == 1
    await trio.sleep(5)
    assert server.messages("q") == []


async def test_limits_retention_keeps_what_was_acknowledged(autojump_clock: Clock) -> None:
    server = server_with(retention=Retention.LIMITS)
    server.publish("q", b"")
    server.streams["q"].settled(1)
    assert len(server.messages("q")) == 1


async def test_interest_retention_without_readers_stores_nothing(autojump_clock: Clock) -> None:
    """The publisher is told "stored" and the sequence is used up; watched on 2.15.1."""
    server = server_with(retention=Retention.INTEREST)
    assert server.publish("q", b"", with_id("a")) == Stored("q", 1)
    assert server.messages("q") == []
    assert server.publish("q", b"", with_id("a")) == Stored("q", 1, duplicate=True)
    server.open_durable("q", DurableSettings(name="d"))
    assert server.publish("q", b"") == Stored("q", 2)
    assert [m.sequence for m in server.messages("q")] == [2]


async def test_restart_remembers_only_ids_of_stored_messages(autojump_clock: Clock) -> None:
    """Watched on 2.15.1: the id of an acknowledged message is forgotten with the restart."""
    server = server_with()
    server.publish("q", b"", with_id("gone"))
    server.publish("q", b"", with_id("kept"))
    server.streams["q"].settled(1)
    server.faults.restart()
    assert server.publish("q", b"", with_id("gone")) == Stored("q", 3)
    assert server.publish("q", b"", with_id("kept")) == Stored("q", 2, duplicate=True)
    # The window of what is remembered still counts from its storing.
    await trio.sleep(120)
    assert server.publish("q", b"", with_id("kept")) == Stored("q", 4)


async def test_restart_with_the_same_id_stored_twice(autojump_clock: Clock) -> None:
    """Stored in two windows; after the restart the later one is what a duplicate names."""
    server = server_with(duplicate_window_s=10.0)
    server.publish("q", b"", with_id("a"))
    await trio.sleep(10)
    assert server.publish("q", b"", with_id("a")) == Stored("q", 2)
    server.edit_stream("q", duplicate_window_s=15.0)
    server.faults.restart()
    await trio.sleep(5)
    assert server.publish("q", b"", with_id("a")) == Stored("q", 2, duplicate=True)
    await trio.sleep(10)
    assert server.publish("q", b"", with_id("a")) == Stored("q", 3)


async def test_browsing_by_subject(autojump_clock: Clock) -> None:
    server = server_with(subjects=("a.*",))
    server.publish("a.x", b"1")
    server.publish("a.y", b"2")
    stream = server.streams["q"]
    assert [m.payload for m in stream.browse("a.y")] == [b"2"]
    assert [m.payload for m in stream.browse()] == [b"1", b"2"]
    assert "holding 2" in repr(stream)


async def test_stored_at_is_the_clock_of_the_server(autojump_clock: Clock) -> None:
    server = server_with()
    server.publish("q", b"payload", with_id("a"))
    message = server.messages("q")[0]
    assert message.payload == b"payload"
    assert message.timestamp_ns == server.now_ns()
