"""Everything that can be made to go wrong, on purpose and repeatably.

Counted faults hit the next n events of their kind, in the order in which the server sees them;
`sometimes` adds a probability per event, drawn from a generator with the server's seed. With the
same seed the same events of that order are hit. Trio runs tasks that are ready together in random
order, so a history of several tasks repeats only under a scheduler that does not (Hypothesis makes
it one).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from shove_actors._errors import PublishError, UnavailableError, UsageError
from shove_actors.backends._port import Backend

from ._link import Direction

if TYPE_CHECKING:
    from ._backend import MemoryBackend
    from ._durable import Puller
    from ._server import MemoryServer

_KINDS = ("drop_ack", "drop_puback", "drop_renewal", "deliver_twice")

#: What a `Watch` is told of. `publish` is a message on its way into a stream, the others are
#: about one delivery.
FaultEvent: TypeAlias = Literal["publish", "deliver", "ack", "nak", "renew"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What becomes of one event.

    `lost`: it has no effect (of a publish: the acknowledgement is lost). `late_s`: it, or the
    acknowledgement, arrives that much later. `copies`: further deliveries of the same message.
    `after`: called once the event has had its effect.
    """

    lost: bool = False
    late_s: float = 0.0
    copies: int = 0
    after: Callable[[], None] | None = None


#: Told of each event before it has an effect; None leaves it alone.
Watch: TypeAlias = "Callable[[FaultEvent, MemoryBackend], Effect | None]"


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
        #: Whether any of the above is in use: asked once per event.
        self.armed = False
        #: Set by a `shove_actors.testing.FaultPlan`.
        self.watch: Watch | None = None

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
        self.armed = any(self._odds.values()) or any(self._counts.values())

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

    def stall(self, backend: Backend | str, direction: Direction = "both") -> None:
        """Nothing passes that way (`up` is to the server), and nobody is told.

        It all arrives at `unstall`. An acknowledgement that was held up for longer than its lease
        settles the message under whoever has it then: the server cannot tell.
        """
        self._find(backend).link.stall(direction)

    def unstall(self, backend: Backend | str) -> None:
        self._find(backend).network_flows()

    def slow(self, backend: Backend | str, delay_s: float) -> None:
        """Everything takes `delay_s` longer, each way, in order. 0 ends it."""
        if not 0.0 <= delay_s < float("inf"):
            raise UsageError(f"delay_s must be seconds, 0 or more, not {delay_s!r}")
        self._find(backend).link.slow(delay_s)

    def crash(self, backend: Backend | str) -> None:
        """The process vanishes: nothing is settled, flushed or given back.

        Its messages come back after their ack wait. The tasks of the dead process are the
        caller's to cancel; until then they wait for messages and answers that never come.
        """
        self._find(backend).crash()

    def restart(self, *, killed: bool = True) -> None:
        """The server restarts: every connection breaks and is made again at once.

        As nats-server 2.15.1 does it (SIGKILL, or SIGTERM with `killed=False`):

        * what is stored survives, with its streams and durables, unless they are in memory;
        * acknowledgements survive on work queues, because the message is gone. Otherwise the last
          tenth of a second of a durable's state may be forgotten when the server is killed: what
          was delivered, delayed naks, renewals and, on streams that keep what is acknowledged,
          acknowledgements;
        * ack waits and delays go on, up to a second shorter: they are written in whole seconds;
        * pull requests, and the ids of messages that are no longer stored, do not survive.
        """
        self._server.stop(killed=killed)
        self._server.start()

    def stop_server(self, *, killed: bool = True) -> None:
        """The server is down until `start_server`: nobody is connected. See `restart`."""
        self._server.stop(killed=killed)

    def start_server(self) -> None:
        self._server.start()

    # ------------------------------------------------------------- asked by the model

    def hits(self, kind: str) -> bool:
        if not self.armed:
            return False
        if self._counts[kind]:
            self._counts[kind] -= 1
            return True
        odds = self._odds[kind]
        return odds > 0.0 and self._rng.random() < odds

    def on_deliver(self, puller: Puller) -> Effect | None:
        if self.watch is None and not self.armed:
            return None
        process = puller.process
        effect = None
        if self.watch is not None and process is not None:
            effect = self.watch("deliver", process)
        if self.hits("deliver_twice"):
            effect = effect or Effect()
            effect = replace(effect, copies=effect.copies + 1)
        return effect

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
        self.armed = True

    def _find(self, backend: Backend | str) -> MemoryBackend:
        for name, known in self._server.backends.items():
            same: object = known
            if backend is same or backend == name:
                return known
        raise UsageError(
            f"{backend!r} is not open on this server; open are: "
            f"{', '.join(self._server.backends) or 'none'}"
        )
