"""Splits what a server sends into messages and lines.

Why not nats-py's parser: under trio-asyncio each asyncio callback costs tens of microseconds, and
nats-py's way takes three of them per read plus a regular-expression parse, an e-mail header parse
and a queue per message. Here `MSG` and `HMSG` go straight from whoever has read the bytes to
`on_message`; every other line goes to nats-py's own read loop, which keeps what it is good at.
nats-py's traps T1 to T3, T6 and T9 (see the JetStream notes in the docs) cannot occur either:
there is no per-subscription queue, no header dictionary and no handler inside its read loop.

Invariants
* Where the stream is cut into reads never matters (`test_any_chunking_gives_the_same_messages`).
* Lines are kept in order among themselves, and so are messages. A line may be read after messages
  that came behind it: nats-py's read loop runs later. Nothing depends on that but PONG, which then
  proves more, not less.
* Nothing here raises into asyncio's callbacks, which would only log it (T2). What is not NATS ends
  the stream (`lost`, with its `error`), and with it the session
  (`test_what_is_not_nats_ends_the_session`).
* A line that never ends does not fill the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import trio

from ._read_floor import ReadFloor

#: subject, sid, reply, header block, payload
MessageSink = Callable[[bytes, int, bytes, "bytes | None", bytes], None]

_H, _M = ord("H"), ord("M")
#: No line of the protocol is longer; without a limit a peer that never ends one fills the memory.
_LONGEST_LINE = 1 << 20


class ProtocolBroken(Exception):
    """What arrived is not the NATS protocol."""


class Framing(asyncio.Protocol):
    """Splits what arrives: lines while connecting, then messages and control lines."""

    def __init__(self, on_made: Callable[[asyncio.Transport], None]) -> None:
        self._on_made = on_made
        self.on_message: MessageSink | None = None
        self.floor = ReadFloor()
        self.lost = False
        self.error: Exception | None = None
        self._tail = b""
        self._chunks: list[bytes] = []
        self._held = 0
        self._need = 0
        self._control = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._paused: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- called by asyncio ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Told here and not by the result of `create_connection`: a cancelled call may lose that
        # result, and the socket with it.
        self._on_made(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        if self.lost:
            return
        self.floor.read(trio.current_time())
        if self.on_message is None:
            self._control += data
            self._wake()
            return
        try:
            self._split(data)
        except Exception as exc:  # an exception here would only be logged by asyncio
            self.error = exc
            self.lost = True
            self._wake()

    def eof_received(self) -> bool:
        self.lost = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.error = self.error or exc
        self._wake()
        self.resume_writing()
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        # Called within a write, which may be any Trio task's: no loop is running there.
        if self._paused is None:
            self._paused = self._closed.get_loop().create_future()

    def resume_writing(self) -> None:
        paused, self._paused = self._paused, None
        if paused is not None and not paused.done():
            paused.set_result(None)

    # -- the two streams -----------------------------------------------------------------

    def start_messages(self, on_message: MessageSink) -> None:
        """From now on messages go to `on_message`; what is buffered is split first."""
        self.on_message = on_message
        early = bytes(self._control)
        self._control.clear()
        self._split(early)

    def _split(self, data: bytes) -> None:
        if self._need:
            # In the middle of a large message: collect without copying what is there already.
            self._chunks.append(data)
            self._held += len(data)
            if self._held < self._need:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._held = self._need = 0
        elif self._tail:
            data = self._tail + data
        self._tail = b""
        sink = self.on_message
        assert sink is not None
        position, size = 0, len(data)
        while position < size:
            eol = data.find(b"\r\n", position)
            if eol < 0:
                break
            first = data[position]
            if first == _H and data.startswith(b"HMSG ", position):
                parts = data[position + 5 : eol].split(b" ")
                body = eol + 2
                end = body + int(parts[-1])
                head = body + int(parts[-2])
                if not body <= head <= end:
                    raise ProtocolBroken("a message with impossible sizes arrived")
                if end + 2 > size:
                    self._wait_for(data, position, end + 2 - position)
                    return
                reply = parts[2] if len(parts) == 5 else b""
                sink(parts[0], int(parts[1]), reply, data[body:head], data[head:end])
                position = end + 2
            elif first == _M and data.startswith(b"MSG ", position):
                parts = data[position + 4 : eol].split(b" ")
                body = eol + 2
                end = body + int(parts[-1])
                if end < body:  # going backwards would never end
                    raise ProtocolBroken("a message with an impossible size arrived")
                if end + 2 > size:
                    self._wait_for(data, position, end + 2 - position)
                    return
                reply = parts[2] if len(parts) == 4 else b""
                sink(parts[0], int(parts[1]), reply, None, data[body:end])
                position = end + 2
            else:
                self._control += data[position : eol + 2]
                position = eol + 2
                self._wake()
        self._tail = data[position:]
        if len(self._tail) > _LONGEST_LINE:
            raise ProtocolBroken("a line without an end arrived")

    def _wait_for(self, data: bytes, position: int, need: int) -> None:
        rest = data[position:]
        self._chunks.append(rest)
        self._held = len(rest)
        self._need = need

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def readline(self) -> bytes:
        while (end := self._control.find(b"\n")) < 0:
            if self.lost:
                if isinstance(self.error, OSError):
                    raise self.error  # such as the alert that says which certificate is missing
                break
            await self._wait()
        end = len(self._control) if end < 0 else end + 1
        line = bytes(self._control[:end])
        del self._control[:end]
        return line

    async def read(self) -> bytes:
        while not self._control:
            if self.lost:
                if isinstance(self.error, OSError):
                    raise self.error
                return b""
            await self._wait()
        data = bytes(self._control)
        self._control.clear()
        return data

    def at_eof(self) -> bool:
        return self.lost and not self._control

    async def drain(self) -> None:
        if self._paused is not None:
            await asyncio.shield(self._paused)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)
