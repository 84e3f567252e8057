"""Keeps a TCP port for a server that may be down for a while.

The server's port comes from the range from which the kernel also takes the local ports of
outgoing connections. While the server is down (killed, about to be restarted), any connection
made on this machine may be given exactly that port, and a client that keeps trying to reconnect
may even be connected to itself; the restarted server then finds its port taken.

A socket that is bound but does not listen prevents both: the kernel hands a bound port to nobody,
a connection to it is refused, and a server may bind and listen beside it because both sides set
`SO_REUSEADDR`. This holds on Linux. Elsewhere a second bind is refused, so nothing is reserved and
the server picks the port itself.

A reservation is not the arbiter of who owns the port: that is the server's own `listen`.
Tests: `test_port_stays_ours_while_the_server_is_down`, `test_port_in_use`.
"""

from __future__ import annotations

import errno
import socket
import sys

from shove_actors._errors import EmbeddedServerError


class PortReservation:
    """A port of one address; `port` is 0 where the platform cannot reserve one."""

    def __init__(self, host: str, port: int) -> None:
        self._socket: socket.socket | None = None
        self.port = port
        if not sys.platform.startswith("linux"):
            return
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        reserved = socket.socket(family, socket.SOCK_STREAM)
        try:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind((host, port))
        except OSError as error:
            reserved.close()
            raise _refused(host, port, error) from None
        self._socket = reserved
        self.port = int(reserved.getsockname()[1])

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _refused(host: str, port: int, error: OSError) -> EmbeddedServerError:
    if error.errno == errno.EADDRINUSE:
        return EmbeddedServerError(
            f"port {port} of {host} is in use by another program. Choose another port, or port=0 "
            "for a free one"
        )
    return EmbeddedServerError(f"port {port} of {host} cannot be bound: {error.strerror}")
