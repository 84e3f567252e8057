"""The transport given to nats-py: a TCP or TLS connection that splits what it reads.

nats-py writes its handshake here and reads the answers line by line; `Connection` writes everything
else. Messages never come out of `read` (see `_framing.py`).

Two rules
* A connection that ends is aborted, never closed by waiting for its write buffer: a peer that does
  not read would hold the close, and with it the reconnect, for ever. Whoever wants to be sure of
  the last bytes has pinged before. The abort takes back what the peer's kernel has not got yet: a
  kernel that went on delivering it, minutes after a network was mended, would have the server
  believe acknowledgements whose leases are long over
  (`test_what_a_lost_connection_had_not_delivered_is_taken_back`).
* The socket has one owner, asyncio's transport, and one reader at a time: asyncio, or whoever has
  borrowed it (`_reader.py`). Borrowing and giving back are synchronous, and each reads and splits
  in one step, so no byte is lost, split twice or overtaken between the two
  (`test_no_byte_is_lost_between_the_two_readers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Sequence
from typing import cast
from urllib.parse import ParseResult

from nats.aio.transport import Transport

from ._framing import Framing, MessageSink
from ._read_floor import ReadFloor

#: Linger for no time: the end of the connection is a reset, and the kernel forgets what it had.
_TAKE_BACK = struct.pack("ii", 1, 0)


class WireTransport(Transport):
    """nats-py's transport interface over `Framing`."""

    def __init__(self, addresses: Sequence[tuple[str, int]]) -> None:
        self._addresses = addresses
        self._wire: Framing | None = None
        self._raw: asyncio.Transport | None = None
        self._greeted = False
        self.encrypted = False
        #: asyncio delivers nothing after an abort; neither may whoever has borrowed the socket.
        self.aborted = False

    def _made(self, transport: asyncio.Transport) -> None:
        self._raw = transport

    def _protocol(self) -> Framing:
        assert self._wire is not None
        return self._wire

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        loop = asyncio.get_running_loop()
        for host, port in self._addresses:
            self._wire = Framing(self._made)
            try:
                await asyncio.wait_for(
                    loop.create_connection(self._protocol, host, port), connect_timeout
                )
                return
            except OSError:
                if (host, port) == self._addresses[-1]:
                    raise

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        assert self._raw is not None
        wire = Framing(self._made)
        raw = await asyncio.wait_for(
            asyncio.get_running_loop().start_tls(
                self._raw,
                wire,
                ssl_context,
                server_hostname=uri if isinstance(uri, str) else uri.hostname,
            ),
            connect_timeout,
        )
        if raw is None:
            raise ssl.SSLError("the connection was closed during the TLS handshake")
        self._raw, self._wire = raw, wire
        self.encrypted = True

    def start_messages(self, on_message: MessageSink) -> None:
        assert self._wire is not None
        self._wire.start_messages(on_message)

    # -- reading by somebody else (see `_reader.py`) ---------------------------------------

    def borrow_socket(self) -> socket.socket | None:
        """A duplicate to read from, and asyncio stops reading. None: it has to go on itself.

        A duplicate, because the owner closes its own descriptor whenever the connection breaks:
        whoever waits on it would wait for ever, or for the next file with that number.
        """
        raw = self._raw
        if raw is None or self.encrypted or raw.is_closing():
            return None
        own = raw.get_extra_info("socket")
        if own is None:
            return None
        try:
            duplicate = cast(socket.socket, own.dup())
        except OSError:
            return None  # out of descriptors: asyncio reads slower, but needs none
        duplicate.setblocking(False)
        raw.pause_reading()
        return duplicate

    def give_socket_back(self) -> None:
        """asyncio reads again, unless the connection is ending."""
        raw = self._raw
        if raw is not None and not raw.is_closing():
            raw.resume_reading()

    @property
    def floor(self) -> ReadFloor:
        """How old what is read may be."""
        assert self._wire is not None
        return self._wire.floor

    def feed(self, data: bytes) -> None:
        """What the borrower has read. Never raises."""
        assert self._wire is not None
        self._wire.data_received(data)

    def read_failed(self, error: OSError | None) -> None:
        """End of file (None) or an error, met by whoever borrowed the socket."""
        assert self._wire is not None
        if error is not None:
            self._wire.error = self._wire.error or error
        self._wire.eof_received()
        self.abort()

    def write(self, payload: bytes) -> None:
        if self._raw is not None:
            self._raw.write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        if self._raw is not None:
            self._raw.writelines(payload)

    @property
    def error(self) -> Exception | None:
        """What broke the connection, if the transport or the protocol said so."""
        return None if self._wire is None else self._wire.error

    @property
    def unsent(self) -> int:
        """Bytes the kernel has not taken yet."""
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    async def read(self, buffer_size: int) -> bytes:
        assert self._wire is not None
        return await self._wire.read()

    async def readline(self) -> bytes:
        """For the handshake: the greeting, then whatever is not another INFO.

        The server may announce changes at any time; nats-py would take an INFO in place of the
        PONG for a failed connect.
        """
        assert self._wire is not None
        line = await self._wire.readline()
        while self._greeted and line.startswith(b"INFO "):
            line = await self._wire.readline()
        self._greeted = True
        return line

    async def drain(self) -> None:
        if self._wire is not None:
            await self._wire.drain()

    async def wait_closed(self) -> None:
        if self._wire is not None:
            await self._wire.wait_closed()

    def close(self) -> None:
        # See the rules above. Whoever wants to be sure of the last bytes has pinged before.
        self.abort()

    def abort(self) -> None:
        self.aborted = True
        if self._raw is not None:
            own = self._raw.get_extra_info("socket")
            if own is not None and own.fileno() >= 0:
                with contextlib.suppress(OSError):
                    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _TAKE_BACK)
            self._raw.abort()

    def at_eof(self) -> bool:
        return self._wire is None or self._wire.at_eof()

    def __bool__(self) -> bool:
        # True also before connecting: nats-py must keep the transport that it was given.
        return True
