"""Which server to try next, and when to stop trying. No I/O, no clock.

The order is nats.go's: after a loss the lost server goes to the end, all others are tried at once,
and the pause comes before the last one of each round. So a pool with a living server is back
without a pause, and a single server is asked at the pace of the pause.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ._address import ServerAddress

#: The same refusal (credentials, certificate) by a server is not going to change by asking again.
MOST_REFUSALS = 2


class ServerPool:
    """The known servers of one connection, in the order in which they are tried.

    `limit`: attempts per server and outage; None is no limit, 0 means that a loss is final.
    """

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        *,
        limit: int | None,
        shuffle: random.Random | None = None,
    ) -> None:
        self.known = list(servers)
        if shuffle is not None:
            shuffle.shuffle(self.known)
        self.limit = limit
        self._attempts: dict[ServerAddress, int] = {}
        self._refusals: dict[ServerAddress, int] = {}

    def learn(self, server: ServerAddress) -> bool:
        """A member of the cluster was announced. False if it was known."""
        if any((k.host, k.port) == (server.host, server.port) for k in self.known):
            return False
        self.known.append(server)
        return True

    def lost(self, server: ServerAddress) -> None:
        """An outage begins: counts start anew, and the others come first."""
        self._attempts.clear()
        self._refusals.clear()
        if server in self.known:
            after = self.known.index(server) + 1
            self.known = self.known[after:] + self.known[:after]

    def round(self) -> list[ServerAddress]:
        """Those that may be tried once more; empty: give up."""
        return [
            s for s in self.known if self.limit is None or self._attempts.get(s, 0) < self.limit
        ]

    def tried(self, server: ServerAddress) -> None:
        self._attempts[server] = self._attempts.get(server, 0) + 1

    def refused(self, server: ServerAddress) -> bool:
        """The server would not have us. True: by now all of them have refused once too often.

        One that refuses is no reason to give up another one that is only down: its certificate or
        its users may be the one's mistake.
        """
        self._refusals[server] = self._refusals.get(server, 0) + 1
        return all(self._refusals.get(each, 0) >= MOST_REFUSALS for each in self.known)

    def failed(self, server: ServerAddress) -> None:
        """It did not take us, for another reason than that it would not: it has not refused."""
        self._refusals.pop(server, None)
