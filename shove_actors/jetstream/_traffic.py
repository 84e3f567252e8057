"""What goes to the server and comes from it while there is a session.

Everything here may be called from any Trio task, with a session or without one: a write says
whether there was one (and nothing is kept for the next), a question waits for one, a subscription
outlives it. Who opens the session, and the next one, is `_connection.py`.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable

import trio

from shove_actors._errors import (
    ConnectionError,
    MessageTooLarge,
    NotConnected,
    PermissionDenied,
    RequestTimeout,
    UnavailableError,
)

from ._availability import Availability
from ._config import NatsConfig, ServerAddress
from ._egress import Egress
from ._inbox_pool import InboxPool
from ._link import Link
from ._options import check_kind, check_seconds
from ._replies import Replies
from ._request import Reply, ask
from ._subscriptions import Sink, Subscriptions
from ._typed import wrong_type
from ._wire import check_subject, hpub, pub, sub, unsub

#: How long the end of an interest may take to be confirmed; a dead server must not hold a lane.
UNSUBSCRIBE_BUDGET = 2.0


class Traffic(ABC):
    """The part of a connection that is used while it runs."""

    def __init__(
        self,
        config: NatsConfig,
        refused: Callable[[Exception], None],
        text: Callable[[BaseException], str],
    ) -> None:
        self._config = config
        self._egress = Egress()
        self._replies = Replies(b"_INBOX." + secrets.token_hex(11).encode())
        self._subscriptions = Subscriptions(refused)
        self._state = Availability(text)
        #: For one request after another, see `_inbox_pool.py`.
        self.inboxes = InboxPool(self)
        self._link: Link | None = None
        self._server: ServerAddress | None = None
        self._inbox_sid = self.subscribe(self._replies.subject, self._replies.deliver)

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def server(self) -> str:
        """Redacted address of the current or last server."""
        return self._server.redacted if self._server is not None else ""

    @property
    @abstractmethod
    def max_payload(self) -> int:
        """In bytes; the servers' default until one has told its own."""

    @property
    def request_timeout(self) -> float:
        """Seconds that a request may take by default (the configuration's)."""
        return self._config.request_timeout

    async def wait_connected(self) -> None:
        """Return once connected; raise why not, once that is final."""
        await self._state.wait_up()

    # ----------------------------------------------------------------- writing

    def write(self, data: bytes) -> bool:
        """Queue protocol bytes. False (and nothing queued) when there is no connection."""
        if self._link is None:
            return False
        self._egress.write(data)
        return True

    def write_by(self, data: bytes, deadline: float) -> bool:
        """`write`, for what must not leave after `deadline` (Trio time).

        If this process stood still in between, the session is given up with all that waits in it.
        """
        if self._link is None:
            return False
        self._egress.write_by(data, deadline)
        return True

    def write_through(self, data: bytes) -> bool:
        """`write`, and out at once: for what is a batch already, or what a peer waits for."""
        if self._link is None:
            return False
        self._egress.write_through(data)
        return True

    @property
    def backlog(self) -> int:
        """Bytes that were written and have not left this process."""
        return self._egress.backlog

    def publish(
        self, subject: bytes, payload: bytes, reply: bytes = b"", header_block: bytes = b""
    ) -> bool:
        """Core publish, unacknowledged. False when there is no connection."""
        if header_block:
            return self.write(hpub(subject, reply, header_block, payload))
        return self.write(pub(subject, reply, payload))

    # ----------------------------------------------------------------- subscribing

    def subscribe(self, subject: bytes, sink: Sink, queue: bytes = b"") -> int:
        """Register a sink; replayed on every reconnect until `unsubscribe`.

        Of all subscribers with the same `queue` group the server gives a message to one.
        """
        sid = self._subscriptions.add(subject, sink, queue)
        self.write(sub(subject, sid, queue))
        return sid

    async def unsubscribe(self, sid: int) -> None:
        """End interest. What the server had sent before still reaches the sink, then nothing."""
        if sid not in self._subscriptions:
            return
        try:
            if self.write(unsub(sid)):
                with trio.move_on_after(UNSUBSCRIBE_BUDGET, shield=True):
                    try:
                        await self.flush(UNSUBSCRIBE_BUDGET)
                    except UnavailableError:
                        # Without a connection the interest has ended anyway.
                        pass
        finally:
            self._subscriptions.remove(sid)

    def forget_subscription(self, sid: int) -> None:
        """End interest at once: what is on its way finds nobody."""
        if sid in self._subscriptions:
            self.write(unsub(sid))
            self._subscriptions.remove(sid)

    async def _end_subscriptions(self) -> None:
        """All but the reply inbox, which those who wait for a reply still need."""
        sids = [sid for sid in self._subscriptions.numbers() if sid != self._inbox_sid]
        for sid in sids:
            self.write(unsub(sid))
        try:
            await self.flush(UNSUBSCRIBE_BUDGET)
        except UnavailableError:
            # Without a connection the interest has ended anyway.
            pass
        finally:
            for sid in sids:
                self._subscriptions.remove(sid)

    def move_subscription(self, sid: int, subject: bytes) -> None:
        """Another subject for the same sink, from the next connect on. Only while disconnected."""
        self._subscriptions.move(sid, subject)

    def redirect(self, sid: int, sink: Sink) -> None:
        """Another sink for the same subscription, from the next message on."""
        self._subscriptions.redirect(sid, sink)

    def new_inbox(self) -> bytes:
        return b"_INBOX." + secrets.token_hex(11).encode()

    @property
    def replies(self) -> Replies:
        return self._replies

    # ----------------------------------------------------------------- asking

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        timeout: float | None = None,
        header_block: bytes = b"",
    ) -> Reply:
        """Ask and wait for one reply, at most `timeout` seconds (default: the config's).

        The wait includes waiting for a connection. Raises `RequestTimeout` when no reply came,
        `ConnectionError` when the connection was lost meanwhile (the request may or may not have
        been carried out), `PermissionDenied` at once when this user may not ask. Cancelling
        forgets the reply; the request may have been sent.
        """
        check_subject(subject)
        check_kind("payload", payload, (bytes, bytearray, memoryview), "bytes")
        check_kind("header_block", header_block, bytes, "the bytes of a header block")
        size = len(payload) + len(header_block)
        if size > self.max_payload:
            raise MessageTooLarge(
                f"the request to {subject} has {size} bytes; the server takes {self.max_payload} "
                "(max_payload), and would end the connection, with everybody's requests"
            )
        limit = self._config.request_timeout
        if timeout is not None:
            limit = check_seconds("timeout", timeout)
        with trio.move_on_after(limit):
            await self.wait_connected()
            wire_subject = subject.encode()
            return await ask(
                self._replies,
                subject,
                lambda reply_to: self.publish(wire_subject, payload, reply_to, header_block),
            )
        raise RequestTimeout(
            f"no answer to {subject} within {limit:g} s from {self.server or 'any server'}"
        )

    def _tell_denied(self, error: PermissionDenied) -> None:
        """Whoever waits for what the server has just refused."""
        if error.operation == "publish":
            self._replies.fail_newest(error.subject, error)
        elif error.subject == self._replies.subject.decode():
            self._replies.denied = error
            self._replies.fail_all(error)

    async def flush(self, timeout: float = 5.0) -> None:
        """Return when the server has read everything written so far (PING/PONG).

        Raises `NotConnected` without a connection, `ConnectionError` when it is lost meanwhile,
        `RequestTimeout`. Cancelling it leaves no trace.
        """
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise wrong_type("timeout", timeout, "a number of seconds")
        link = self._link
        if link is None:
            raise NotConnected("not connected")
        self._egress.flush_now()
        lost = False
        with trio.move_on_after(timeout):
            if await link.ping():
                return
            lost = True
        if lost or self._link is not link:
            raise ConnectionError(f"the connection to {link.server.redacted} was lost")
        raise RequestTimeout(f"no PONG within {timeout:g} s from {link.server.redacted}")
