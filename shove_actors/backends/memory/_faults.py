"""Everything that can be made to go wrong, on purpose and repeatably.

Counted faults hit the next n events of their kind, in the order in which the server sees them;
`sometimes` adds a probability per event, drawn from a generator with the server's seed. With the
same seed the same events of that order are hit. Trio runs tasks that are ready together in random
order, so a history of several tasks repeats only under a scheduler that does not (Hypothesis makes
it one).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from shove_actors._errors import PublishError, UnavailableError, UsageError
from shove_actors.backends._port import Backend

if TYPE_CHECKING:
    from ._backend import MemoryBackend
    from ._server import MemoryServer

_KINDS = ("drop_ack", "drop_puback", "drop_renewal", "deliver_twice")


class Faults:
    """The fault hooks of one `MemoryServer`, at `server.faults`.

    Backends are named by the object or by its name (`MemoryConfig(name=...)`). A fault takes
    effect inside the call; nothing here waits.

        server.faults.drop_next_ack()
        server.faults.crash("worker-1")
    """

    def __init__(self, server: MemoryServer, seed: int) -> None:
        self._server = server
        self._rng = random.Random(seed)
        self._counts = dict.fromkeys(_KINDS, 0)
        self._odds = dict.fromkeys(_KINDS, 0.0)
        self._refusals: dict[str, tuple[Exception, int | None]] = {}

    # ---------------------------------------------------------------- single messages

    def drop_next_ack(self, count: int = 1) -> None:
        """Acknowledgements that never reach the server; the lane believes they did.

        The message comes back after its ack wait. `Lane.confirm` reports False, once.
        """
        self._add("drop_ack", count)

    def drop_puback(self, count: int = 1) -> None:
        """The message is stored, but the publisher is never told: `PublishUnknown` in the end."""
        self._add("drop_puback", count)

    def drop_renewal(self, count: int = 1) -> None:
        """Renewals that never reach the server: `leased_at` does not move."""
        self._add("drop_renewal", count)

    def deliver_twice(self, count: int = 1) -> None:
        """Each of these deliveries is followed by a second one to the same lane, counted on."""
        self._add("deliver_twice", count)

    def sometimes(
        self,
        *,
        drop_ack: float = 0.0,
        drop_puback: float = 0.0,
        drop_renewal: float = 0.0,
        deliver_twice: float = 0.0,
    ) -> None:
        """Probabilities from 0 to 1 for each single event; replaces the former ones."""
        given = (drop_ack, drop_puback, drop_renewal, deliver_twice)
        for kind, odds in zip(_KINDS, given, strict=True):
            if not 0.0 <= odds <= 1.0:
                raise UsageError(f"{kind} is a probability: use 0 to 1, not {odds!r}")
            self._odds[kind] = odds

    def refuse_publish(self, stream: str, error: Exception, times: int | None = None) -> None:
        """Publishing into `stream` fails with `error`, `times` times or until accepted again."""
        if not isinstance(error, (PublishError, UnavailableError)):
            raise UsageError(
                "error must be a PublishError or an UnavailableError: publishing reports no other"
            )
        if times is not None and times < 1:
            raise UsageError(f"times must be at least 1, not {times}; None refuses until accepted")
        self._refusals[stream] = (error, times)

    def accept_publish(self, stream: str) -> None:
        self._refusals.pop(stream, None)

    # ------------------------------------------------------------ processes and server

    def disconnect(self, backend: Backend | str) -> None:
        """Cuts the connection. What is under way is lost, settles included, until `reconnect`.

        Publishes without an answer end with `PublishUnknown`; new ones with `NotConnected`. The
        server drops the pull requests and keeps the messages until their ack wait is over.
        """
        self._find(backend).link_cut()

    def reconnect(self, backend: Backend | str) -> None:
        self._find(backend).link_restored()

    def stall(self, backend: Backend | str) -> None:
        """Nothing passes in either direction and nobody is told; it all arrives at `unstall`."""
        self._find(backend).link.stall()

    def unstall(self, backend: Backend | str) -> None:
        self._find(backend).link.unstall()

    def crash(self, backend: Backend | str) -> None:
        """The process vanishes: nothing is settled, flushed or given back.

        Its messages come back after their ack wait. The tasks of the dead process are the
        caller's to cancel; until then they wait for messages and answers that never come.
        """
        self._find(backend).crash()

    def restart(self, *, forget_delays: bool = False) -> None:
        """The server restarts: every connection breaks and is made again at once.

        Streams, durables, delivery counts, ack waits and delayed naks survive, as they do on
        nats-server 2.15.1 with file storage; pull requests and the ids of messages that are no
        longer stored do not. `forget_delays`: the delays were not on disk yet, and the messages
        that wait one out come back at once.
        """
        self._server.restart(forget_delays=forget_delays)

    # ------------------------------------------------------------- asked by the model

    def hits(self, kind: str) -> bool:
        if self._counts[kind]:
            self._counts[kind] -= 1
            return True
        odds = self._odds[kind]
        return odds > 0.0 and self._rng.random() < odds

    def refusal(self, stream: str) -> Exception | None:
        entry = self._refusals.get(stream)
        if entry is None:
            return None
        error, times = entry
        if times == 1:
            del self._refusals[stream]
        elif times is not None:
            self._refusals[stream] = (error, times - 1)
        return error

    def _add(self, kind: str, count: int) -> None:
        if count < 1:
            raise UsageError(f"count must be at least 1, not {count}")
        self._counts[kind] += count

    def _find(self, backend: Backend | str) -> MemoryBackend:
        for name, known in self._server.backends.items():
            same: object = known
            if backend is same or backend == name:
                return known
        raise UsageError(
            f"{backend!r} is not open on this server; open are: "
            f"{', '.join(self._server.backends) or 'none'}"
        )
