"""What waits to be written: when it leaves, and when it must not any more."""

from __future__ import annotations

import socket
import time

import trio
import trio.testing

from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Connection, ConnectionEvent, NatsConfig, pub
from shove_actors.jetstream._egress import Egress
from tests.support import wait_until


class Wire:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.late = 0

    def attach(self, egress: Egress) -> None:
        async def drained() -> None:
            raise AssertionError("nothing to drain")

        def late() -> None:
            self.late += 1

        egress.attach(self.sent.append, lambda: 0, drained, late)


async def test_deadline_is_kept_by_what_leaves_in_time(mock_clock: trio.testing.MockClock) -> None:
    egress, wire = Egress(), Wire()
    wire.attach(egress)
    egress.write_by(b"a", trio.current_time() + 1)
    egress.write(b"b")
    mock_clock.jump(0.9)
    egress.flush_now()
    assert wire.sent == [b"ab"]
    # It was of that batch only.
    mock_clock.jump(10)
    egress.write(b"c")
    egress.flush_now()
    assert wire.sent == [b"ab", b"c"]
    assert wire.late == 0


async def test_nothing_leaves_with_what_is_void(mock_clock: trio.testing.MockClock) -> None:
    egress, wire = Egress(), Wire()
    wire.attach(egress)
    egress.write_by(b"later", trio.current_time() + 5)
    egress.write_by(b"soon", trio.current_time() + 1)
    mock_clock.jump(1.1)
    egress.flush_now()
    assert wire.sent == []
    assert wire.late == 1


async def test_process_that_stood_still_gives_its_session_up(server: ServerProcess) -> None:
    """Written, and then stopped before the egress ran: the server never sees it."""
    heard: list[bytes] = []
    events: list[ConnectionEvent] = []
    connection = Connection(NatsConfig(server.url, reconnect_wait=0.02, reconnect_jitter=0.0))
    connection.listen(events.append)
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run)
        connection.subscribe(b"egress.test", lambda s, r, h, payload: heard.append(payload))
        await connection.flush()
        connection.write_by(pub(b"egress.test", b"", b"void"), trio.current_time() + 0.05)
        time.sleep(0.1)  # noqa: ASYNC251 - what is tested
        await wait_until(lambda: "reconnected" in [event.kind for event in events])
        connection.write(pub(b"egress.test", b"", b"after"))
        await wait_until(lambda: heard)
        assert heard == [b"after"]
        connection.close()


async def test_what_a_lost_connection_had_not_delivered_is_taken_back() -> None:
    """The peer does not read; its kernel and ours are full. After the loss it reads on: what had
    reached it is there, and nothing more follows, not even an end in good order."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    listener.setblocking(False)
    port = listener.getsockname()[1]
    connection = Connection(NatsConfig(f"nats://127.0.0.1:{port}", max_reconnect_attempts=0))
    failed: list[BaseException] = []

    async def run(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            await connection.run(task_status=task_status)
        except Exception as exc:
            failed.append(exc)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        while True:
            try:
                accepted, _ = listener.accept()
                break
            except BlockingIOError:
                await trio.sleep(0.01)
        accepted.setblocking(False)
        peer = trio.socket.from_stdlib_socket(accepted)
        await peer.send(b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576}\r\n')
        received = b""
        while b"PING\r\n" not in received:
            received += await peer.recv(4096)
        await peer.send(b"PONG\r\n")
        await connection.wait_connected()
        total = 64 << 20
        chunk = b"x" * (1 << 20)
        for _ in range(64):
            connection.write(pub(b"a", b"", chunk))
        await trio.sleep(0.3)
        connection.drop_session("the test says so")
        await wait_until(lambda: failed)
        count, ended = 0, ""
        with trio.fail_after(20):
            while not ended:
                try:
                    data = await peer.recv(1 << 20)
                except OSError as exc:
                    ended = type(exc).__name__
                else:
                    count += len(data)
                    ended = "" if data else "in good order"
        assert ended == "ConnectionResetError"
        assert count < total
        peer.close()
        nursery.cancel_scope.cancel()
    listener.close()
