"""One wildcard inbox for the whole connection: who waits for which reply.

The last token of the reply subject finds the waiting entry. Publish acknowledgements, API answers
and lease confirmations all come this way, so none of them costs a subscription, a future or a
task.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

#: What became of it: `(argument, header block, payload)`, or an exception when it never will.
ReplyHandler = Callable[[object, "bytes | None", "bytes | Exception"], None]


class Replies:
    """Waiting entries by token. Tokens are never reused within a connection's life."""

    __slots__ = ("_count", "_waiting", "_width", "denied", "prefix", "subject")

    def __init__(self, inbox: bytes) -> None:
        self.prefix = inbox + b"."
        self.subject = self.prefix + b"*"
        self._width = len(self.prefix)
        self._waiting: dict[bytes, tuple[ReplyHandler, object]] = {}
        self._count = itertools.count(1)
        #: Why no reply can come in this session: the server does not let us hear the inbox.
        self.denied: Exception | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, handler: ReplyHandler, argument: object) -> bytes:
        """Register; returns the reply subject to send."""
        token = b"%x" % next(self._count)
        self._waiting[token] = (handler, argument)
        return self.prefix + token

    def forget(self, reply_subject: bytes) -> None:
        self._waiting.pop(reply_subject[self._width :], None)

    def deliver(
        self, subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes
    ) -> None:
        """A message on the inbox. A late reply finds nobody and is dropped."""
        entry = self._waiting.pop(subject[self._width :], None)
        if entry is not None:
            entry[0](entry[1], header_block, payload)

    def fail_newest(self, subject: str, error: Exception) -> None:
        """The server refused what was sent to `subject`, and tells so once for each.

        The newest, because permissions are the same for all of them, unless they were taken away
        meanwhile: then those that were sent before may still be answered. Handlers say by the
        attribute `subject` of their argument where they have sent to.
        """
        for token in reversed(self._waiting):
            handler, argument = self._waiting[token]
            if getattr(argument, "subject", None) == subject:
                del self._waiting[token]
                handler(argument, None, error)
                return

    def fail_all(self, error: Exception) -> None:
        """The connection is gone: nobody's reply will come."""
        waiting, self._waiting = self._waiting, {}
        for handler, argument in waiting.values():
            handler(argument, None, error)
