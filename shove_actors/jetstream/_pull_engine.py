"""The pull engine: what to ask for, and what to make of each answer. No clock, no connection.

State goes in, actions come out; `_puller.py` carries them out. The reasons are the JetStream notes'
(section B); here is what holds at every moment:

* `pending` = asked for and not here + here and not done with. It never exceeds `max_messages` (in
  bytes: `max_bytes`) by our asking. A message is done with when the reader takes it, or, with a
  callback, when the callback has returned; so the limit covers buffer and handler together.
* While open, connected and not pausing or looking for the consumer, `pending` at or above the
  threshold or a request under way: there is no state in which nobody asks and nobody will. A
  pause, a look, a reconnect and the heartbeat deadline each end by themselves.
* `stop_after`: delivered + pending never exceeds it by our asking.
* Arrivals are counted when they arrive, so a status says nothing about what is buffered: it only
  changes what may still come. What was buffered before a terminal status is still handed over.
* A request is only ever given up together with its inbox (`Abandon`, a lost connection), so what
  its server may still send cannot be counted twice. Surplus that arrives all the same is delivered.

Silence is judged only while a reader waits for it to end: a caller that is busy between two reads,
or a handler that takes minutes, sees no false alarm.
Test: `properties/test_pull_engine.py` runs it against a model of a server that does all of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from shove_actors._errors import (
    BadRequest,
    ConsumerDeleted,
    ConsumerNotFound,
    JetStreamError,
    LeadershipChanged,
    MaxBytesExceeded,
    NoHeartbeat,
    NoResponders,
    NotPullConsumer,
    PinIdMismatch,
    RequestLimitExceeded,
    ServerShutdown,
    StreamNotFound,
)

from ._pull_actions import Abandon, Action, Ask, End, ForgetPin, LookUp, Tell
from ._pull_ledger import NEVER, STALL_S, PullLedger
from ._pull_options import MANY, PullOptions
from ._pull_status import Verdict, verdict_of

#: Pauses after a pull that nobody answers, although the consumer seems to exist.
PAUSE_FIRST_S, PAUSE_MOST_S = 0.25, 5.0


class PullEngine:
    """`name` is for messages, such as "consumer c of stream s". Times are the caller's."""

    __slots__ = (
        "_barren",
        "_blocked",
        "_look",
        "_looks",
        "_open",
        "_options",
        "_pause_s",
        "_resume_at",
        "_strikes",
        "_waiting_since",
        "asking",
        "delivered",
        "held",
        "held_bytes",
        "ledger",
        "name",
        "threshold",
        "troubled",
        "up",
    )

    def __init__(self, options: PullOptions, name: str) -> None:
        self._options = options
        self.name = name
        self.ledger = PullLedger(expires_s=options.expiry, heartbeat_s=options.heartbeat)
        #: Here and not done with.
        self.held = self.held_bytes = 0
        self.delivered = 0
        #: Whether a request may be sent at all: open, neither draining nor over.
        self.asking = True
        self.up = False
        #: Below this many pending messages `demand` is worth a call.
        self.threshold = MANY + 1 if options.max_bytes is not None else options.threshold_messages
        #: Something has gone wrong since the last arrival: tell `calm` of the next one.
        self.troubled = False
        #: Requests under way; counted in bytes mode, where each of them ends with a status.
        self._open = 0
        self._strikes = 0
        #: Requests that ended in a row with nothing delivered.
        self._barren = 0
        #: No room for the next message, until one is done with.
        self._blocked = False
        self._waiting_since: float | None = None
        self._resume_at = NEVER
        #: The look that is under way, or 0; and how many there were.
        self._look = self._looks = 0
        self._pause_s = PAUSE_FIRST_S

    # ------------------------------------------------------------------ asking

    @property
    def pending(self) -> int:
        return self.held + self.ledger.requested

    def demand(self) -> Ask | None:
        """What to ask for now."""
        if not self.asking or not self.up or self._blocked:
            return None
        if self._look or self._resume_at != NEVER:
            return None
        options, ledger = self._options, self.ledger
        batch = options.max_messages - self.held - ledger.requested
        if options.max_bytes is not None:
            room = options.max_bytes - self.held_bytes - ledger.requested_bytes
            if options.max_bytes - room >= options.threshold_bytes or room <= 0:
                return None
            batch = MANY
        else:
            if self.pending >= options.threshold_messages:
                return None
            room = 0
        if options.stop_after is not None:
            left = options.stop_after - self.delivered - self.held
            batch = min(batch, left if options.max_bytes is not None else left - ledger.requested)
            if self._open and options.max_bytes is not None:
                return None  # what is under way could be all that is left
        if batch <= 0:
            return None
        return Ask(batch, room or options.request_max_bytes)

    def asked(self, ask: Ask, now: float) -> None:
        """It was sent."""
        if self._options.max_bytes is None:
            self.ledger.asked(ask.batch, now)
            return
        self._open += 1
        self.ledger.asked(max(0, ask.batch - self.pending), now)
        assert ask.max_bytes is not None
        self.ledger.requested_bytes += ask.max_bytes

    # ------------------------------------------------------------------ messages

    def arrived(self, size: int, now: float) -> None:
        """A message is here. `size` counts in bytes mode only. (The driver inlines this.)"""
        ledger = self.ledger
        if ledger.requested:
            ledger.requested -= 1
        ledger.deadline = now + ledger.patience_s
        self.held += 1
        if self._options.max_bytes is not None:
            self.held_bytes += size
            ledger.requested_bytes = max(0, ledger.requested_bytes - size)
        if self.troubled:
            self.calm()

    def calm(self) -> None:
        """The server delivers."""
        self.troubled = False
        self._strikes = self._barren = 0
        self._pause_s = PAUSE_FIRST_S

    def done(self, size: int) -> None:
        """A message was taken, or its handler has returned."""
        self.held -= 1
        self.held_bytes = max(0, self.held_bytes - size)
        self.delivered += 1
        self._blocked = False

    def dropped(self) -> None:
        """What is buffered is thrown away."""
        self.held = self.held_bytes = 0

    @property
    def finished(self) -> bool:
        """As many as `stop_after` says were delivered."""
        limit = self._options.stop_after
        return limit is not None and self.delivered >= limit

    # ------------------------------------------------------------------ statuses

    def status(
        self, code: int, text: str, header_block: bytes | None, now: float
    ) -> tuple[Action, ...]:
        """A status message is here. Ask `demand` afterwards."""
        ledger = self.ledger
        ledger.deadline = now + ledger.patience_s
        verdict = verdict_of(code, text)
        if verdict is Verdict.ALIVE:
            if self._strikes:
                self._strikes = 0
                self._pause_s = PAUSE_FIRST_S
            return ()
        self.troubled = True
        handler = self._HANDLERS.get(verdict)
        if handler is not None:
            return handler(self, text, header_block, now)
        return (self._ended(verdict, code, text),)

    def _returned(self, text: str, header_block: bytes | None, now: float) -> tuple[Action, ...]:
        self.ledger.returned(header_block)
        if self._open:
            self._open -= 1
            if not self._open:
                self.ledger.gone()
        return ()

    def _too_large(self, text: str, header_block: bytes | None, now: float) -> tuple[Action, ...]:
        self._returned(text, header_block, now)
        if self._options.max_bytes is not None and self.held:
            self._blocked = True
            return ()
        self._barren += 1
        if self._barren < 2:
            return ()
        self._barren = 0
        self._resume_at = now + STALL_S
        limit = self._options.max_bytes or self._options.request_max_bytes
        return (
            Tell(
                MaxBytesExceeded(
                    f"the next message of {self.name} is larger than {limit} bytes; raise "
                    "max_bytes (request_max_bytes), or it is never delivered"
                )
            ),
        )

    def _over(self, text: str, header_block: bytes | None, now: float) -> tuple[Action, ...]:
        self._forget_requests()
        self._barren += 1
        if self._barren > 1:
            self._resume_at = now + PAUSE_FIRST_S
        return (Abandon(),)

    def _moved(self, text: str, header_block: bytes | None, now: float) -> tuple[Action, ...]:
        self._forget_requests()
        return (
            Tell(LeadershipChanged(f"another server leads {self.name} now ({text})")),
            Abandon(),
        )

    def _leaving(self, text: str, header_block: bytes | None, now: float) -> tuple[Action, ...]:
        self._returned(text, header_block, now)
        # The connection ends next, and `connected` asks again. If it should not end:
        self._resume_at = now + STALL_S
        return (Tell(ServerShutdown(f"the server is going down ({text})")),)

    def _absent(self, text: str, header_block: bytes | None, now: float) -> tuple[Action, ...]:
        self._forget_requests()
        told = Tell(NoResponders(f"nobody answers the requests to {self.name} (503)"))
        return (told, Abandon(), *self._look_up())

    def _unpinned(self, text: str, header_block: bytes | None, now: float) -> tuple[Action, ...]:
        self._forget_requests()
        return (
            ForgetPin(),
            Tell(PinIdMismatch(f"another client of {self.name} is pinned now ({text})")),
            Abandon(),
        )

    def _stalled(self, text: str, header_block: bytes | None, now: float) -> tuple[Action, ...]:
        self._forget_requests()
        self._resume_at = now + STALL_S
        error = JetStreamError(f"a request to {self.name} was turned away: {text}")
        return (Tell(error), Abandon())

    def _ended(self, verdict: Verdict, code: int, text: str) -> End:
        self.asking = False
        self._forget_requests()
        if verdict is Verdict.DELETED:
            return End(ConsumerDeleted(f"{self.name} was deleted"))
        if verdict is Verdict.NOT_PULL:
            return End(NotPullConsumer(f"{self.name} is a push consumer; use `push_consumer`"))
        if verdict is Verdict.LIMIT:
            return End(
                RequestLimitExceeded(
                    f"a request breaks a limit of {self.name}: {text}; ask for less, or update "
                    "the consumer"
                )
            )
        return End(BadRequest(code, 10003, text or "bad request"))

    _HANDLERS: ClassVar[Mapping[Verdict, Callable[..., tuple[Action, ...]]]] = {
        Verdict.RETURNED: _returned,
        Verdict.TOO_LARGE: _too_large,
        Verdict.OVER: _over,
        Verdict.MOVED: _moved,
        Verdict.LEAVING: _leaving,
        Verdict.ABSENT: _absent,
        Verdict.UNPINNED: _unpinned,
        Verdict.STALLED: _stalled,
    }

    # ------------------------------------------------------------------ silence

    def wait_begins(self, now: float) -> None:
        """A reader waits, and nothing is buffered."""
        if self._waiting_since is None:
            self._waiting_since = now

    def wait_ends(self) -> None:
        self._waiting_since = None

    @property
    def deadline(self) -> float:
        """When `tick` has something to do."""
        if self._waiting_since is None or not self.up or not self._under_way:
            return self._resume_at
        ledger = self.ledger
        return min(self._resume_at, max(ledger.deadline, self._waiting_since + ledger.patience_s))

    @property
    def _under_way(self) -> bool:
        return self.asking and bool(self.ledger.requested or self._open)

    def tick(self, now: float) -> tuple[Action, ...]:
        """The deadline has passed, or it is looked whether it has. Ask `demand` afterwards."""
        if now >= self._resume_at:
            self._resume_at = NEVER
        if now < self.deadline:
            return ()
        self._strikes += 1
        self.troubled = True
        self._forget_requests()
        self.ledger.deadline = now + self.ledger.patience_s
        told = Tell(
            NoHeartbeat(f"nothing was heard of {self.name} for {self.ledger.patience_s:g} s")
        )
        if self._strikes > 1:
            return (told, Abandon(), *self._look_up())
        return (told, Abandon())

    def _look_up(self) -> tuple[Action, ...]:
        if self._look:
            return ()
        self._looks += 1
        self._look = self._looks
        return (LookUp(self._look),)

    def looked_up(self, number: int, error: Exception | None, now: float) -> tuple[Action, ...]:
        """The consumer is there (None), or what was found instead. Late answers count nothing."""
        if number != self._look:
            return ()
        self._look = 0
        if isinstance(error, (ConsumerNotFound, StreamNotFound, NotPullConsumer)):
            self.asking = False
            return (End(error),)
        self._resume_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MOST_S)
        return ()

    # ------------------------------------------------------------------ the connection

    def disconnected(self) -> None:
        """Whatever was asked for is gone, and so is its inbox."""
        self.up = False
        self._forget_requests()
        self._look = 0
        self._resume_at = NEVER

    def connected(self, now: float) -> None:
        """Ask `demand` afterwards."""
        self.up = True
        self._strikes = 0
        self._pause_s = PAUSE_FIRST_S
        if self._waiting_since is not None:
            self._waiting_since = now

    def close(self) -> None:
        """Nothing more is asked for."""
        self.asking = False
        self._forget_requests()

    def _forget_requests(self) -> None:
        self._open = 0
        self.ledger.gone()
