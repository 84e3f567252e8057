"""Requests and subscriptions over a connection that may be lost."""

from __future__ import annotations

import pytest
import trio

from shove_actors._errors import ConnectionError, NotConnected, RequestTimeout
from shove_actors.embedded import ServerProcess
from tests.support import wait_until

from .kit import SOON_S, connected, fast
from .losses import kill, restart

# ------------------------------------------------------------------------------ requests


async def test_c33_requests_cancelled_quickly(server: ServerProcess) -> None:
    """T4: four hundred, cancelled before, while and after the answer comes."""
    async with connected(fast(server.url)) as (js, _events):
        connection = js.connection
        heard: list[int] = []

        def echo(subject: bytes, reply: bytes, block: bytes | None, payload: bytes) -> None:
            heard.append(int(payload))
            connection.publish(reply, payload)

        connection.subscribe(b"conn.echo", echo)
        answered = 0
        for number in range(400):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    @nursery.start_soon
                    async def cancel(scope: trio.CancelScope = scope, n: int = number) -> None:
                        for _ in range(n % 7):
                            await trio.lowlevel.checkpoint()
                        if n % 3:
                            await trio.sleep(0.0005 * (n % 4))
                        scope.cancel()

                    reply = await connection.request("conn.echo", b"%d" % number)
                    assert reply.payload == b"%d" % number
                    answered += 1
                    nursery.cancel_scope.cancel()
        # Nothing was given to the wrong task, whatever was sent has arrived, and nobody waits.
        assert (await connection.request("conn.echo", b"400")).payload == b"400"
        assert heard == sorted(set(heard))
        assert heard[-1] == 400
        assert 0 < answered <= len(heard)
        assert len(connection.replies) == 0


async def test_request_without_responders(server: ServerProcess) -> None:
    async with connected(fast(server.url)) as (js, _events):
        reply = await js.connection.request("conn.nobody")
        assert reply.status == (503, "")


async def test_request_without_an_answer(server: ServerProcess) -> None:
    async with connected(fast(server.url)) as (js, _events):
        js.connection.subscribe(b"conn.mute", lambda *message: None)
        with pytest.raises(RequestTimeout, match=r"conn\.mute within 0\.05 s"):
            await js.connection.request("conn.mute", timeout=0.05)
        assert len(js.connection.replies) == 0


async def test_loss_fails_everybody_who_waits_at_once(own_server: ServerProcess) -> None:
    errors: list[BaseException] = []
    async with connected(fast(own_server.url)) as (js, _events):
        connection = js.connection
        connection.subscribe(b"conn.mute", lambda *message: None)
        await connection.flush()

        async def ask() -> None:
            try:
                await connection.request("conn.mute", timeout=30)
            except ConnectionError as exc:
                errors.append(exc)

        with trio.fail_after(SOON_S):
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(ask)
                await wait_until(lambda: len(connection.replies) == 50)
                await kill(own_server)
        assert len(errors) == 50
        assert len({id(error) for error in errors}) == 50, "one exception for each task"
        assert len(connection.replies) == 0
        assert not connection.write(b"PING\r\n")
        with pytest.raises(NotConnected):
            await connection.flush()


async def test_request_waits_for_the_connection(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url)) as (js, events):
        await kill(own_server)
        await events.wait("disconnected")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(restart, own_server)
            info = await js.account_info()
        assert info.limits.max_streams == -1


# ------------------------------------------------------------------------------ subscriptions


async def test_subscriptions_are_replayed(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url)) as (js, events):
        send, receive = trio.open_memory_channel[bytes](10)
        sid = js.connection.subscribe(b"conn.a", lambda s, r, h, p: send.send_nowait(p))
        await restart(own_server)
        await events.wait("reconnected")
        js.connection.publish(b"conn.a", b"1")
        with trio.fail_after(SOON_S):
            assert await receive.receive() == b"1"
        await js.connection.unsubscribe(sid)
        js.connection.publish(b"conn.a", b"2")
        await js.connection.flush()
        with pytest.raises(trio.WouldBlock):
            receive.receive_nowait()


async def test_unsubscribe_hears_what_was_sent_before(server: ServerProcess) -> None:
    async with connected(fast(server.url)) as (js, _events):
        got: list[bytes] = []
        sid = js.connection.subscribe(b"conn.b", lambda s, r, h, p: got.append(p))
        for _ in range(100):
            js.connection.publish(b"conn.b", b"x")
        await js.connection.unsubscribe(sid)
        assert len(got) == 100
        await js.connection.unsubscribe(sid)


async def test_unsubscribe_without_a_connection(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url)) as (js, events):
        got: list[bytes] = []
        sid = js.connection.subscribe(b"conn.c", lambda s, r, h, p: got.append(p))
        await kill(own_server)
        await js.connection.unsubscribe(sid)  # whether the loss was noticed yet or not
        await events.wait("disconnected")
        await restart(own_server)
        await js.connection.wait_connected()
        js.connection.publish(b"conn.c", b"x")
        await js.connection.flush()
        assert got == []


async def test_a_failing_sink_is_reported(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(fast(server.url)) as (js, events):

        def sink(*message: object) -> None:
            raise ValueError("sink")

        js.connection.subscribe(b"conn.bad", sink)
        js.connection.publish(b"conn.bad", b"x")
        event = await events.wait("error")
        assert isinstance(event.error, ValueError)
        assert (await js.connection.request("conn.nobody")).status == (503, "")
        assert events.kinds == []
    assert "sink failed" in caplog.text
