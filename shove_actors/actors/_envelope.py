"""A message that waits for an answer, and the one-shot port the answer travels through.

The asker owns the receiving side for exactly as long as its `ask` lasts; the server owns the
sending side from the moment it receives the message until it has finished with it. Neither can
hurt the other: answering an asker who has left is a no-op that says so, and a server that ends
with a question in hand closes the port, which ends the `ask` with `ActorGone` at that instant.
(If the asker held both sides open, a crashed server would leave it waiting for ever; if a late
answer raised, a caller's timeout would crash the server. Both were seen elsewhere.)
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import trio

from shove_actors._errors import ActorGone, UsageError

R = TypeVar("R")


class Request(Generic[R]):
    """Base for message classes whose `ask` has a typed answer.

    Example::

        @dataclass(frozen=True)
        class Count(Request[int]):
            word: str

        n = await ref.ask(Count("tea"))     # int to a type checker
    """

    __slots__ = ()


class PortKeeper(Protocol):
    """Whoever must close a port if nobody answers."""

    def forget_port(self, port: ReplyPort) -> None: ...


class ReplyPort:
    """Where the answer to one ask goes. Never blocks, never raises because the asker left."""

    __slots__ = ("_abandoned", "_arrived", "_closed", "_error", "_value", "keeper")

    def __init__(self) -> None:
        self._arrived = trio.Event()
        self._abandoned = False
        self._closed = False
        self._value: object = None
        self._error: BaseException | None = None
        self.keeper: PortKeeper | None = None

    @property
    def abandoned(self) -> bool:
        """Whether the asker has left (timed out or cancelled); the work may be skipped."""
        return self._abandoned

    @property
    def open(self) -> bool:
        """Whether an answer would still arrive."""
        return not (self._abandoned or self._arrived.is_set())

    def reply(self, value: object) -> bool:
        """Answer. True if the asker will get it, False if it has left or the port is closed.

        Answering twice raises `UsageError`: the second answer is a bug in the actor.
        """
        return self._settle(value, None)

    def fail(self, error: Exception) -> bool:
        """Answer with an error, which the `ask` raises. The actor itself is not affected.

        Raises `UsageError` for anything but an `Exception`: a `Cancelled` or `SystemExit` raised
        in the asker would end the asker's tree in the name of somebody else.
        """
        if not isinstance(error, Exception):
            raise UsageError(
                f"port.fail got {type(error).__name__}, which is not an Exception instance. Answer "
                "with an error object of your own, and let cancellations pass."
            )
        return self._settle(None, error)

    def close(self, path: str, cause: BaseException | None = None) -> None:
        """End the ask with `ActorGone` if it is still waiting. Idempotent."""
        if self.open:
            self._error = ActorGone(
                f"actor {path!r} ended, or put the message aside, without answering. Ask again if "
                "the question may be asked twice; the cause, if there is one, is attached."
            )
            self._error.__cause__ = cause
            self._arrived.set()
        self._closed = True
        self._release()

    def abandon(self) -> None:
        """The asker leaves. Called once at the end of every ask."""
        self._abandoned = True
        self._release()

    async def wait(self) -> object:
        """The answer. Cancellable; a cancelled wait loses only the answer."""
        await self._arrived.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def _settle(self, value: object, error: Exception | None) -> bool:
        if self._arrived.is_set() and not self._closed and not self._abandoned:
            raise UsageError("this ask has been answered already: answer each ask once.")
        if not self.open:
            return False
        self._value = value
        self._error = error
        self._arrived.set()
        self._release()
        return True

    def _release(self) -> None:
        if self.keeper is not None:
            self.keeper.forget_port(self)
            self.keeper = None


class Envelope:
    """A message and its reply port, as they travel through a mailbox."""

    __slots__ = ("message", "port")

    def __init__(self, message: object, port: ReplyPort) -> None:
        self.message = message
        self.port = port
