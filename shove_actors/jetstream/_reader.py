"""Reads a plain TCP connection straight from Trio.

Under trio-asyncio one read costs three scheduler passes: the task that waits for the descriptor,
the loop's own task that it then synchronises with, and back. A read here is one: wait, receive,
split. Measured on small messages this is a fifth to a third of the client's CPU (publish one at a
time 340 -> 295 us, eight lanes of one message 100 -> 75 us per message).

The asyncio transport stays the owner of the socket: it writes, it closes, and it reads again as
soon as this task ends, so that a goodbye (PING, PONG) needs no special case. TLS connections are
read by asyncio all the time, because the bytes of the socket are not the bytes of the protocol
there.

Invariants
* The only wait is for readability, and it takes nothing: cancelled there, every byte is either
  split already or still in the kernel, for asyncio to read.
* Nothing is delivered after an abort. asyncio stops reading within `abort`; here the duplicate
  stays readable until this task is cancelled, so each read looks first
  (`test_nothing_is_delivered_after_an_abort`). Whatever came would be handled for nothing: its
  acknowledgement has no way out.
* Whatever the socket or the kernel refuses ends the session, never the connection's `run`.
"""

from __future__ import annotations

import trio

from ._transport import WireTransport

#: As much as asyncio's transport takes at once.
_CHUNK = 256 * 1024


async def read_plain(wire: WireTransport) -> None:
    """Until cancelled, or until the connection ends; never raises on the connection's account."""
    sock = wire.borrow_socket()
    if sock is None:
        return
    with sock:
        try:
            while True:
                try:
                    await trio.lowlevel.wait_readable(sock)
                    if wire.aborted:
                        return
                    data = sock.recv(_CHUNK)
                except BlockingIOError:
                    continue
                except OSError as exc:
                    wire.read_failed(exc)
                    return
                if not data:
                    wire.read_failed(None)
                    return
                wire.feed(data)
        finally:
            wire.give_socket_back()
