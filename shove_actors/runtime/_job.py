"""What a worker asks of the registration that it works for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import trio

from shove_actors.backends import Delivery
from shove_actors.messaging import MessageMetadata, Verdict

from ._attempts import AttemptLedger
from ._handler import Resolved
from ._handler_clock import HandlerClock
from ._judge import Rules
from ._pacer import Pacer
from ._settle import Settler

if TYPE_CHECKING:
    from ._worker import Worker


class Gate(Protocol):
    """What stands before the handler of a FAIL_ALL topic; see `_poison.py` and `_replay.py`."""

    def open(self) -> None:
        """Before the first delivery."""
        ...

    def close(self) -> None:
        """After the last one. Idempotent."""
        ...

    def is_control(self, delivery: Delivery) -> bool:
        """Whether it is a message to us, and none for a handler."""
        ...

    def passes(self, delivery: Delivery) -> bool:
        """Whether it is known already that its key is not poisoned."""
        ...

    async def look_up(
        self, delivery: Delivery, message: object, retry_count: int
    ) -> tuple[Verdict, int] | None:
        """Verdict and retries of a message that must not be handled. None: it may be.

        `retry_count`: the retries that it has had, as far as its own story says.
        """
        ...

    async def obey(
        self,
        control: Delivery,
        shard: int | None,
        handler: Resolved,
        begun: Callable[[Worker], None],
    ) -> bool:
        """Do what a control message says. True: done; False: what is left is for a later time.

        `begun` is told of a worker that handles messages meanwhile.
        """
        ...


class Job(Rules, Protocol):
    """What all workers of one registration share."""

    settler: Settler
    handler: Resolved
    context: Any
    clock: HandlerClock
    pacer: Pacer
    decode: Callable[[bytes], Any]
    ledger: AttemptLedger
    busy: int
    #: Held by the one suspect whose handler may run (see `_attempts.py`).
    suspects: trio.Lock
    #: Of a FAIL_ALL topic: which keys are poisoned.
    gate: Gate | None

    def metadata(
        self, delivery: Delivery, retry_count: int | None, shard: int | None
    ) -> MessageMetadata: ...

    def report_lost(self, delivery: Delivery) -> None: ...

    async def owns(self, delivery: Delivery) -> bool: ...
