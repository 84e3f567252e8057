"""The pull engine against a model of a server: whatever happens, reading goes on or ends.

The model server keeps requests as a real one does (an inbox, a batch, a limit of bytes, an age) and
answers them in order; the machine makes it deliver, expire, refuse, move, fall silent, go away and
come back, in any order, with a reader that takes and finishes messages when it likes.

After every step: nothing is counted below zero, no more is asked for than there is room for, and
while the reader waits there is something that will wake it (a request that the server has, a
deadline, a look-up, a lost connection). In the end, left alone with a well server and
`stop_after` not reached, the reader gets every message that the server stores.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from shove_actors._errors import ConsumerNotFound, RequestTimeout
from shove_actors.jetstream._pull_actions import Abandon, Action, Ask, End, LookUp, Tell
from shove_actors.jetstream._pull_engine import PullEngine
from shove_actors.jetstream._pull_options import PullOptions, pull_options

# A search, not a check of a minute: `nox -s properties`.
pytestmark = pytest.mark.slow

#: As the server counts it.
SIZE = 100
_STEPS = {"dev": 40, "ci": 80, "deep": 120}[os.environ.get("HYPOTHESIS_PROFILE", "dev")]


@dataclass
class Request:
    """One that the server has."""

    inbox: int
    left: int
    bytes_left: int | None
    expires_at: float
    served: bool = False


@dataclass
class Server:
    """What it has of this reader."""

    stored: int = 0
    requests: list[Request] = field(default_factory=list)

    def head(self) -> bytes:
        request = self.requests[0]
        return (
            b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: %d\r\n"
            b"Nats-Pending-Bytes: %d\r\n\r\n" % (request.left, request.bytes_left or 0)
        )


class PullMachine(RuleBasedStateMachine):
    """One reading, from `start` to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.server = Server()
        self.engine: PullEngine | None = None
        self.options: PullOptions | None = None
        self.inbox = 0
        self.buffered = 0
        self.in_hand = 0
        self.received = 0
        self.look: int | None = None
        self.ended: Exception | None = None
        self.silent = False
        self.told = 0

    # ------------------------------------------------------------------ the driver

    def act(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            if isinstance(action, Tell):
                self.told += 1
            elif isinstance(action, End):
                self.ended = action.error
            elif isinstance(action, Abandon):
                self.inbox += 1
                # The server drops what has nobody to deliver to; not at once.
            elif isinstance(action, LookUp):
                self.look = action.number

    def top_up(self) -> None:
        engine = self.the_engine
        ask = engine.demand()
        if ask is None:
            return
        assert engine.up
        self.check_ask(ask)
        engine.asked(ask, self.now)
        if not self.silent:
            assert self.options is not None
            self.server.requests.append(
                Request(self.inbox, ask.batch, ask.max_bytes, self.now + self.options.expiry)
            )
        assert engine.demand() is None, "one request at a time fills the room"

    def check_ask(self, ask: Ask) -> None:
        engine, options = self.the_engine, self.options
        assert options is not None
        assert ask.batch >= 1
        if options.max_bytes is None:
            assert engine.pending + ask.batch <= options.max_messages
        else:
            assert ask.max_bytes is not None
            pending = engine.held_bytes + engine.ledger.requested_bytes
            assert 0 < ask.max_bytes <= options.max_bytes - pending
        if options.stop_after is not None:
            assert engine.delivered + engine.held + ask.batch <= options.stop_after

    @property
    def the_engine(self) -> PullEngine:
        assert self.engine is not None
        return self.engine

    def deliver_one(self) -> bool:
        """The oldest living request gets the next message, or ends for want of room."""
        server = self.server
        self.drop_dead()
        if not server.requests or not server.stored:
            return False
        request = server.requests[0]
        if request.bytes_left is not None and request.bytes_left < SIZE:
            self.answer(409, "Message Size Exceeds MaxBytes")
            return True
        server.stored -= 1
        request.left -= 1
        request.served = True
        if request.bytes_left is not None:
            request.bytes_left -= SIZE
        self.the_engine.arrived(SIZE, self.now)
        self.buffered += 1
        if not request.left:
            server.requests.pop(0)
        return True

    def answer(self, code: int, text: str) -> None:
        """The oldest living request ends with this."""
        block = self.server.head()
        self.server.requests.pop(0)
        self.act(self.the_engine.status(code, text, block, self.now))
        if self.ended is None:
            self.top_up()

    def drop_dead(self) -> None:
        self.server.requests = [r for r in self.server.requests if r.inbox == self.inbox]

    # ------------------------------------------------------------------ steps

    @initialize(
        max_messages=st.integers(1, 12),
        by_bytes=st.booleans(),
        limited=st.booleans(),
        threshold=st.integers(1, 12),
        stop_after=st.none() | st.integers(1, 30),
        connected=st.booleans(),
    )
    def start(
        self,
        max_messages: int,
        by_bytes: bool,
        limited: bool,
        threshold: int,
        stop_after: int | None,
        connected: bool,
    ) -> None:
        if by_bytes:
            self.options = pull_options(
                max_bytes=max_messages * SIZE + 50, expiry=10.0, stop_after=stop_after
            )
        else:
            self.options = pull_options(
                max_messages=max_messages,
                threshold_messages=min(threshold, max_messages),
                request_max_bytes=2 * SIZE + 10 if limited else None,
                expiry=10.0,
                stop_after=stop_after,
            )
        self.engine = PullEngine(self.options, "consumer c of stream s")
        self.engine.wait_begins(self.now)
        if connected:
            self.engine.connected(self.now)
            self.top_up()

    def _alive(self) -> bool:
        return self.engine is not None and self.ended is None and not self.engine.finished

    def _up(self) -> bool:
        return self._alive() and self.the_engine.up and not self.silent

    @rule(count=st.integers(1, 8))
    def store(self, count: int) -> None:
        self.server.stored += count

    @precondition(_up)
    @rule(count=st.integers(1, 6))
    def deliver(self, count: int) -> None:
        for _ in range(count):
            if self.ended is None and not self.deliver_one():
                break

    @precondition(lambda self: self._alive() and self.buffered)
    @rule(handler=st.booleans())
    def take(self, handler: bool) -> None:
        """By an iterator (done at once) or by a callback (done later)."""
        self.the_engine.wait_ends()
        self.buffered -= 1
        self.received += 1
        if handler:
            self.in_hand += 1
        else:
            self.finish()

    @precondition(lambda self: self._alive() and self.in_hand)
    @rule()
    def handler_returns(self) -> None:
        self.in_hand -= 1
        self.finish()

    def finish(self) -> None:
        engine = self.the_engine
        assert self.options is not None
        engine.done(SIZE if self.options.max_bytes is not None else 0)
        if engine.finished:
            engine.close()
            return
        self.top_up()
        if not self.buffered and not self.in_hand:
            engine.wait_begins(self.now)

    @precondition(_up)
    @rule(beat=st.booleans())
    def heartbeat(self, beat: bool) -> None:
        self.drop_dead()
        if self.server.requests and beat:
            self.act(self.the_engine.status(100, "Idle Heartbeat", None, self.now))

    @precondition(_up)
    @rule(
        status=st.sampled_from(
            [
                (408, "Request Timeout"),
                (409, "Batch Completed"),
                (409, "Server Shutdown"),
                (409, "Leadership Change"),
                (409, "Exceeded MaxWaiting"),
                (409, "Something New"),
                (404, "No Messages"),
                (423, "Nats-Pin-Id mismatch"),
                (503, ""),
                (599, "?"),
            ]
        )
    )
    def a_request_ends(self, status: tuple[int, str]) -> None:
        self.drop_dead()
        if self.server.requests:
            self.answer(*status)

    @precondition(_up)
    @rule(
        status=st.sampled_from(
            [
                (409, "Consumer Deleted"),
                (409, "Consumer is push based"),
                (409, "Exceeded MaxRequestBatch of 5"),
                (400, "Bad Request - priority group missing"),
            ]
        ),
        really=st.integers(0, 9),
    )
    def it_is_over(self, status: tuple[int, str], really: int) -> None:
        self.drop_dead()
        if self.server.requests and really == 0:
            self.answer(*status)
            assert self.ended is not None
            assert self.the_engine.demand() is None

    @precondition(lambda self: self.look is not None and self._alive())
    @rule(there=st.sampled_from([None, None, RequestTimeout("slow"), "gone"]))
    def looked(self, there: object) -> None:
        number, self.look = self.look, None
        assert number is not None
        error = ConsumerNotFound(404, 10014, "gone") if there == "gone" else there
        assert error is None or isinstance(error, Exception)
        self.act(self.the_engine.looked_up(number, error, self.now))
        if self.ended is None:
            self.top_up()

    @precondition(lambda self: self._alive() and self.the_engine.up)
    @rule()
    def disconnect(self) -> None:
        self.the_engine.disconnected()
        self.inbox += 1
        self.look = None
        self.silent = False

    @precondition(lambda self: self._alive() and not self.the_engine.up)
    @rule()
    def reconnect(self) -> None:
        self.the_engine.connected(self.now)
        self.top_up()

    @precondition(_up)
    @rule()
    def fall_silent(self) -> None:
        """It has our requests, and says nothing; new ones do not even arrive."""
        self.silent = True

    @precondition(lambda self: self.silent)
    @rule()
    def wake_up(self) -> None:
        self.silent = False

    @precondition(_alive)
    @rule(seconds=st.floats(0.05, 40.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        if not self.silent:
            self.expire()
        if self.ended is None and self.now >= self.the_engine.deadline:
            self.act(self.the_engine.tick(self.now))
            self.top_up()

    def expire(self) -> None:
        self.drop_dead()
        while self.ended is None and self.the_engine.up:
            requests = self.server.requests
            if not requests or requests[0].expires_at > self.now:
                break
            self.answer(408, "Request Timeout")
            self.drop_dead()

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def nothing_below_zero(self) -> None:
        engine = self.engine
        if engine is None:
            return
        assert engine.ledger.requested >= 0
        assert engine.ledger.requested_bytes >= 0
        assert engine.held == self.buffered + self.in_hand
        assert engine.held_bytes >= 0
        assert engine.delivered == self.received - self.in_hand

    @invariant()
    def somebody_will_wake_the_reader(self) -> None:
        if not self._alive() or self.buffered or self.in_hand:
            return
        engine = self.the_engine
        if not engine.up:
            return  # the connection's return asks again
        assert engine.demand() is None, "there was room, and nobody asked"
        if self.look is None:
            assert engine.deadline < float("inf"), "nothing is under way, and no deadline is set"

    def teardown(self) -> None:
        """Left alone with a well server, everything stored is delivered."""
        if not self._alive():
            return
        self.silent = False
        engine, wanted = self.the_engine, self.received + self.buffered + self.server.stored
        assert self.options is not None
        if self.options.stop_after is not None:
            wanted = min(wanted, self.options.stop_after)
        for _ in range(400 + 4 * wanted):
            while self.in_hand:
                self.handler_returns()
            while self.buffered and not engine.finished:
                self.take(False)
            if engine.finished or self.received >= wanted:
                break
            if self.look is not None:
                self.looked(None)
            if not engine.up:
                self.reconnect()
            self.expire()
            if not self.deliver_one() and not self.buffered:
                self.now = max(self.now, min(engine.deadline, self.now + 40.0))
                if self.now >= engine.deadline:
                    self.act(engine.tick(self.now))
                    self.top_up()
        assert self.ended is None
        assert self.received >= wanted


TestPullEngine = PullMachine.TestCase
TestPullEngine.settings = settings(stateful_step_count=_STEPS)
