"""What a keyed lane needs of a backend: a durable that delivers to one process at a time, and the
record of who owns it.
"""

from __future__ import annotations

from typing import Final, Protocol

from ._delivery import Delivery
from ._owner_record import OwnerRecord

#: The server's patience with an owner that does not pull, as a share of the lease; and bounds.
PIN_SHARE: Final = 1 / 3
PIN_LEAST_S: Final = 0.5
PIN_MOST_S: Final = 10.0


def pin_timeout(lease_s: float) -> float:
    """After how long without a pull the server chooses somebody else."""
    return min(PIN_MOST_S, max(PIN_LEAST_S, lease_s * PIN_SHARE))


class PinnedDurable(Protocol):
    """One durable that delivers to one process at a time, and the record of who owns it.

    Requests raise `ShoveError` when it is not known what became of them.
    """

    @property
    def connected(self) -> bool: ...

    def pull(self, batch: int, pin: str | None) -> bool:
        """Ask for messages. False: not connected."""
        ...

    def begin(self) -> None:
        """Forget all pulls: what is heard of them from now on is only messages."""
        ...

    def ack(self, delivery: Delivery) -> bool:
        """Send its acknowledgement, behind those before it. Nothing is heard of it.

        False: not connected, it was not sent.
        """
        ...

    def ask(self, delivery: Delivery, ticket: int) -> None:
        """The same, also when it was sent before, with an answer: `KeyedAcks.answered` is called,
        with the ticket, once the server is known to have read it and all that were sent before it
        (see `_keyed_acks.py` for when the latter is not believed). If ever."""
        ...

    async def first_stored(self, sequence: int) -> float:
        """The sequence of the first message at or after it that the stream has; infinity if none.
        What it has not any more was acknowledged."""
        ...

    async def confirm(self) -> bool:
        """Wait until the server has read all acknowledgements."""
        ...

    async def read_owner(self) -> tuple[OwnerRecord | None, int]:
        """The record and its revision; 0 if there is none.

        None only if nobody can ever have had the shard; a record that is not there any more is
        a `lost_record`. Where records are kept is made again if it is gone.
        """
        ...

    async def write_owner(self, record: bytes, revision: int) -> int | None:
        """Its new revision. None: it is not at `revision` any more."""
        ...

    async def look(self) -> tuple[str | None, int, int, str]:
        """Who is pinned, up to which sequence all is settled, the last one delivered, and which
        stream it is among all that had its name."""
        ...

    async def rewind(self) -> None: ...

    async def unpin(self) -> None: ...

    async def close(self) -> None: ...
