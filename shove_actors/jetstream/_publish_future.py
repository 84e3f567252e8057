"""The outcome of an asynchronous publish, waited for in Trio."""

from __future__ import annotations

import trio

from ._headers import parse_headers
from ._pub_ack import PubAck
from ._publish_options import Encoded, PubMessage


class PublishFuture:
    """Stands for an acknowledgement that is still to come.

        future = await js.publish_async("ORDERS.new", b"hello")
        ack = await future.wait()

    Any number of tasks may wait, and cancelling a wait changes nothing: the message has been sent.
    """

    __slots__ = (
        "_attempts",
        "_deadline",
        "_encoded",
        "_event",
        "_outcome",
        "_reply",
        "_retry_wait",
    )

    def __init__(self, encoded: Encoded, attempts: int, retry_wait: float, deadline: float) -> None:
        self._encoded = encoded
        self._attempts = attempts
        self._retry_wait = retry_wait
        self._deadline = deadline
        self._reply = b""
        self._event: trio.Event | None = None
        self._outcome: PubAck | Exception | None = None

    def __repr__(self) -> str:
        outcome = self._outcome
        state = (
            "pending" if outcome is None else "stored" if isinstance(outcome, PubAck) else "failed"
        )
        return f"<PublishFuture for {self.subject}, {state}>"

    @property
    def subject(self) -> str:
        return self._encoded.subject

    @property
    def message(self) -> PubMessage:
        """What was published; its headers include those that the options stand for."""
        headers = parse_headers(self._encoded.block or None)
        return PubMessage(
            subject=self._encoded.subject, data=self._encoded.payload, headers=headers
        )

    @property
    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._outcome is not None

    @property
    def ack(self) -> PubAck | None:
        """The acknowledgement, if it has come."""
        return self._outcome if isinstance(self._outcome, PubAck) else None

    @property
    def error(self) -> Exception | None:
        """Why there will be none, if so."""
        return self._outcome if isinstance(self._outcome, Exception) else None

    async def wait(self) -> PubAck:
        """Wait for the acknowledgement, and return it.

        Raises what the server refused it with (`ApiError` and its subclasses), `NoStreamResponse`,
        `InvalidAck`, `PublishTimeout` (after the context's `publish_ack_timeout`, by default the
        time of one request), `Disconnected` when the connection was lost meanwhile,
        `PublisherClosed` at the end of the context.
        """
        if self._outcome is None:
            if self._event is None:
                self._event = trio.Event()
            await self._event.wait()
        else:
            await trio.lowlevel.checkpoint()
        outcome = self._outcome
        assert outcome is not None
        if isinstance(outcome, Exception):
            # One of its own for each task: tracebacks are not shared.
            raise _again(outcome)
        return outcome

    def _settle(self, outcome: PubAck | Exception) -> None:
        self._outcome = outcome
        if self._event is not None:
            self._event.set()


def _again(error: Exception) -> Exception:
    try:
        fresh = error.__class__.__new__(error.__class__, *error.args)
        fresh.args = error.args
        fresh.__dict__.update(error.__dict__)
    except Exception:  # an exception class with a constructor of its own kind
        return error
    return fresh
