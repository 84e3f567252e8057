"""Bytes: what is built, what is read, and that the cut between two reads never matters."""

from __future__ import annotations

import os
import random

import pytest
import trio
import trio_asyncio
from hypothesis import given
from hypothesis import strategies as st

from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import (
    AckParts,
    ack_numbers,
    header_value,
    hpub,
    parse_ack,
    pub,
    status_of,
)
from shove_actors.jetstream._framing import Framing, ProtocolBroken
from shove_actors.jetstream._wire import sub, unsub

from .kit import connected, fake_server, fast

Message = tuple[bytes, int, bytes, "bytes | None", bytes]

NINE = b"$JS.ACK.orders.worker.3.17.11.1700000000123456789.5"
TWELVE = b"$JS.ACK.hub.ACCHASH.orders.worker.3.17.11.1700000000123456789.5.rand"


def test_pub_and_hpub() -> None:
    assert pub(b"a.b", b"", b"x\r\ny") == b"PUB a.b 4\r\nx\r\ny\r\n"
    assert pub(b"a", b"r", b"") == b"PUB a r 0\r\n\r\n"
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    assert hpub(b"a", b"r", block, b"xyz") == b"HPUB a r 18 21\r\n" + block + b"xyz\r\n"
    assert sub(b"a.*", 7) == b"SUB a.* 7\r\n"
    assert sub(b"a.*", 7, b"q") == b"SUB a.* q 7\r\n"
    assert unsub(7) == b"UNSUB 7\r\n"


def test_ack_subject_of_nine_tokens() -> None:
    assert parse_ack(NINE) == AckParts("orders", "worker", 3, 17, 11, 1700000000123456789, 5, None)


def test_ack_subject_of_twelve_tokens() -> None:
    """T3: nats-py's own reading of this form ends its read loop."""
    parts = AckParts("orders", "worker", 3, 17, 11, 1700000000123456789, 5, "hub")
    assert parse_ack(TWELVE) == parts
    eleven = TWELVE.rpartition(b".")[0]
    assert parse_ack(eleven) == parts
    assert parse_ack(TWELVE.replace(b".hub.", b"._.")).domain is None


@given(
    st.integers(1, 10**6),
    st.integers(1, 2**63),
    st.integers(1, 2**63),
    st.integers(0, 2**62),
    st.integers(0, 2**40),
    st.sampled_from(["", "_.hash.", "hub.hash."]),
    st.sampled_from(["", ".token"]),
)
def test_both_readers_of_ack_subjects_agree(
    delivered: int, sequence: int, consumer: int, stamp: int, pending: int, way: str, tail: str
) -> None:
    text = f"$JS.ACK.{way}s.c.{delivered}.{sequence}.{consumer}.{stamp}.{pending}"
    reply = (text + (tail if way else "")).encode()
    parts = parse_ack(reply)
    assert ack_numbers(reply) == (delivered, sequence, stamp)
    assert ack_numbers(reply) == (parts.num_delivered, parts.stream_sequence, parts.timestamp_ns)
    assert (parts.consumer_sequence, parts.pending) == (consumer, pending)


@pytest.mark.parametrize(
    "junk", [b"", b"_INBOX.x.1", b"$JS.ACK.a.b.1.2.3.4", b"$JS.ACK.a.b.1.2.3.4.5.6"]
)
def test_other_subjects_are_no_acknowledgements(junk: bytes) -> None:
    with pytest.raises(ValueError, match="acknowledgement"):
        parse_ack(junk)


def test_status_is_the_status_line_only() -> None:
    assert status_of(b"NATS/1.0 503\r\n\r\n") == (503, "")
    assert status_of(b"NATS/1.0 409 Consumer Deleted\r\nA: b\r\n\r\n") == (409, "Consumer Deleted")
    assert status_of(b"NATS/1.0\r\nStatus: 503\r\n\r\n") is None
    assert status_of(b"NATS/1.0 nonsense\r\n\r\n") is None
    assert status_of(None) is None


def test_header_value_without_case() -> None:
    block = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 7\r\nX:  y \r\n\r\n"
    assert header_value(block, b"nats-pending-messages") == b"7"
    assert header_value(block, b"x") == b"y"
    assert header_value(block, b"z") is None


# ---------------------------------------------------------------------------- splitting


def some_stream() -> tuple[bytes, list[Message], bytes]:
    """Bytes as a server sends them, the messages in them, and the control lines."""
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    messages: list[Message] = [
        (b"a.b", 1, b"", None, b""),
        (b"a.b", 2, b"reply.to", None, b"MSG a 1 3\r\nxyz\r\nPING\r\n"),
        (b"x", 10, b"", block, b""),
        (b"x", 10, TWELVE, block, b"\r\n\r\n"),
        (b"x", 3, NINE, None, os.urandom(3000)),
        (b"y", 3, b"", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b""),
    ]
    out = b"PONG\r\n"
    for subject, sid, reply, head, payload in messages:
        to = b" " + reply if reply else b""
        if head is None:
            out += b"MSG %b %d%b %d\r\n%b\r\n" % (subject, sid, to, len(payload), payload)
        else:
            sizes = (len(head), len(head) + len(payload))
            out += b"HMSG %b %d%b %d %d\r\n%b%b\r\n" % (subject, sid, to, *sizes, head, payload)
        out += b"PING\r\n"
    return out, messages, b"PONG\r\n" + b"PING\r\n" * len(messages)


async def test_any_chunking_gives_the_same_messages() -> None:
    data, messages, control = some_stream()
    rng = random.Random(7)
    async with trio_asyncio.open_loop():
        for number in range(150):
            got: list[Message] = []
            wire = Framing(lambda transport: None)
            wire.start_messages(lambda *message, into=got: into.append(message))  # type: ignore[misc]
            position = 0
            while position < len(data):
                size = 1 if number == 0 else rng.choice([1, 2, 3, 7, 50, 800, 5000])
                wire.data_received(data[position : position + size])
                position += size
            assert got == messages
            assert await trio_asyncio.aio_as_trio(wire.read)() == control
            assert wire.error is None


@pytest.mark.parametrize(
    "line",
    [
        b"MSG a 1 -9\r\n",
        b"HMSG a 1 4 -9\r\n",
        b"HMSG a 1 9 4\r\nxxxxxxxxxxx",
        b"MSG a 1 x\r\n",
        b"MSG a\r\n",
        b"x" * (1 << 20) + b"x",
    ],
    ids=["size", "hsize", "head", "number", "short", "endless"],
)
async def test_what_is_not_nats_ends_the_session(line: bytes) -> None:
    """A negative size would go backwards for ever; a line without an end would take the memory."""
    async with trio_asyncio.open_loop():
        got: list[Message] = []
        wire = Framing(lambda transport: None)
        wire.start_messages(lambda *message: got.append(message))
        wire.data_received(line)
        assert wire.lost
        assert isinstance(wire.error, (ProtocolBroken, ValueError, IndexError))
        wire.data_received(b"MSG a 1 1\r\nx\r\n")
        assert got == []


async def test_a_broken_peer_costs_a_session_only() -> None:
    async with fake_server() as fake, connected(fast(fake.url)) as (js, events):
        await fake.say(b"MSG a 1 -20\r\n")
        lost = await events.wait("disconnected")
        assert "impossible size" in str(lost.error)
        await events.wait("reconnected")
        await js.connection.flush()


async def test_messages_in_the_same_packet_as_the_handshake() -> None:
    """And an INFO before the PONG, which nats-py takes for a failed connect."""
    async with fake_server() as fake:
        fake.before_pong = b'INFO {"max_payload":1}\r\n'
        fake.after_pong = b'INFO {"max_payload":77}\r\nMSG x 5 2\r\nhi\r\n'
        async with connected(fast(fake.url)) as (js, _events):
            await js.connection.flush()
            assert js.connection.max_payload == 77


# ---------------------------------------------------------------------------- a real server


async def test_a_megabyte_in_many_reads(server: ServerProcess) -> None:
    payloads = [os.urandom(1 << 20), b"\x00" * (1 << 20), os.urandom((1 << 20) - 1)]
    async with connected(fast(server.url)) as (js, _events):
        got: list[bytes] = []
        arrived = trio.Event()

        def sink(subject: bytes, reply: bytes, block: bytes | None, payload: bytes) -> None:
            got.append(payload)
            if len(got) == len(payloads):
                arrived.set()

        js.connection.subscribe(b"wire.large", sink)
        for payload in payloads:
            assert js.connection.publish(b"wire.large", payload)
        with trio.fail_after(20):
            await arrived.wait()
        assert got == payloads


async def test_twenty_thousand_small_ones(server: ServerProcess) -> None:
    count = 20_000
    async with connected(fast(server.url)) as (js, _events):
        got: list[tuple[bytes, bytes | None]] = []
        arrived = trio.Event()

        def sink(subject: bytes, reply: bytes, block: bytes | None, payload: bytes) -> None:
            got.append((payload, block))
            if len(got) == count:
                arrived.set()

        js.connection.subscribe(b"wire.small", sink)
        block = b"NATS/1.0\r\nA: b\r\n\r\n"
        sent: list[tuple[bytes, bytes | None]] = []
        for number in range(count):
            # Every third empty, every other one with a header block.
            payload = b"" if number % 3 == 0 else b"%d" % number
            sent.append((payload, block if number % 2 else None))
            js.connection.publish(b"wire.small", payload, b"", block if number % 2 else b"")
        with trio.fail_after(30):
            await arrived.wait()
        assert got == sent


async def test_bytes_that_look_like_protocol(server: ServerProcess) -> None:
    nasty = b"\x00\r\nMSG wire.nasty 1 5\r\nhello\r\n+OK\r\n-ERR 'x'\r\nPING\r\n\x00"
    async with connected(fast(server.url)) as (js, events):
        inbox, seen = trio.open_memory_channel[bytes](10)
        js.connection.subscribe(b"wire.nasty", lambda s, r, h, payload: inbox.send_nowait(payload))
        for payload in (nasty, b"", b"\x00"):
            js.connection.publish(b"wire.nasty", payload)
        with trio.fail_after(10):
            assert [await seen.receive() for _ in range(3)] == [nasty, b"", b"\x00"]
        assert events.all == []
