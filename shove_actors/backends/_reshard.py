"""Another number of shards for a topic in use, without moving a key between two lanes.

    open, old number -> closed -> drained by the consumers of the old number -> open, new number

* *Closed*: the stream gives up its shard subjects (see `messaging/_resharding.py`), so publishing
  fails with "no stream" on the server's side, whoever publishes. It stays closed for at least
  `CLOSED_LEAST_S`, also if there is nothing to drain: a publisher that is alive hears of the
  change, or is refused, within that time, and then looks at the number before it publishes again.
* *Drained*: no message is stored (a work queue), also none in flight, in a handler, or waiting out
  a NAK; or, of another retention, nothing is left to deliver or settle on any shard's durable.
* *Timed out, cancelled or failed* before that: the old subjects are put back, shielded.
* *Killed*: the closed state stays, with both numbers in it. Running it again goes on where it was;
  so does declaring the topic with the new number once the stream is drained. Running it with the
  old number puts the old subjects back.

One algorithm; a backend brings four operations (`Reshardable`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from shove_actors._errors import (
    ReshardTimeout,
    ShoveError,
    TopologyError,
    UnavailableError,
    UsageError,
)
from shove_actors._log import about
from shove_actors.messaging import (
    ShardLayout,
    Topology,
    closed_subject,
    layout_of,
    shard_subjects,
)

logger = logging.getLogger("shove_actors.reshard")

#: For so long the stream is closed at least: see the module.
CLOSED_LEAST_S: Final = 1.0
#: How often to look whether it is drained.
LOOK_EVERY_S: Final = 0.1
#: How long putting the old subjects back, or binding the new ones, may take once it was begun.
FINISH_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Resharded:
    """`was == now`: there was nothing to change. `durables`: deleted because they had no shard."""

    was: int
    now: int
    durables: int = 0


class Reshardable(Protocol):
    """The main stream of one topic, as a backend has it. Errors are the backend's."""

    async def subjects(self) -> Sequence[str]: ...

    async def bind(self, subjects: Sequence[str], *, resharded: bool = False) -> None:
        """`resharded`: note that the number was changed on purpose."""
        ...

    async def unsettled(self, shards: int) -> int:
        """Messages that the consumers of so many shards still have to settle."""
        ...

    async def delete_durables(self, beyond: int) -> int:
        """Those of shards from `beyond` on; returns how many there were."""
        ...


async def reshard(stream: Reshardable, topology: Topology, timeout: float) -> Resharded:
    """See the module, and `Broker.reshard` for what it raises."""
    queue, will = topology.queue, topology.routing_shards
    if not topology.sequenced:
        raise UsageError(f"topic {queue!r} is not sequenced: it has no shards to change")
    if timeout <= CLOSED_LEAST_S:
        raise UsageError(
            f"timeout={timeout:g}: more than {CLOSED_LEAST_S:g} second, for which the stream is "
            "closed in any case"
        )
    layout = layout_of(queue, await stream.subjects())
    was = _present(queue, will, layout)
    if was == will:
        if layout.under_way is not None:
            await stream.bind(shard_subjects(queue, will))
            logger.warning(
                "topic %s: open again with its %d shards",
                queue,
                will,
                extra=about("reshard_undone", queue=queue, shards=will),
            )
        return Resharded(was, will, await stream.delete_durables(will))
    try:
        await _drain(stream, queue, was, will, timeout)
    except BaseException:
        await _put_back(stream, queue, was)
        raise
    with trio.CancelScope(deadline=trio.current_time() + FINISH_S, shield=True) as scope:
        await stream.bind(shard_subjects(queue, will), resharded=True)
    if scope.cancelled_caught:
        raise ReshardTimeout(
            f"topic {queue!r} is drained, but the server did not take its new subjects within "
            f"{FINISH_S:g} s: it stays closed. Run it again"
        )
    deleted = await stream.delete_durables(will)
    logger.warning(
        "topic %s: changed from %d to %d shards",
        queue,
        was,
        will,
        extra=about("resharded", queue=queue, shards=will, before=was),
    )
    return Resharded(was, will, deleted)


def _present(queue: str, will: int, layout: ShardLayout) -> int:
    """The number to come from."""
    if layout.under_way is None:
        if not layout.shards:
            raise TopologyError(
                f"stream {queue!r} has no shard subjects: it is not that of a sequenced topic"
            )
        return layout.shards
    was, other = layout.under_way
    if will not in (was, other):
        raise TopologyError(
            f"topic {queue!r} is being changed from {was} to {other} shards already, not to "
            f"{will}. Let that end, or go back first: run it with {was}"
        )
    return was


async def _drain(stream: Reshardable, queue: str, was: int, will: int, timeout: float) -> None:
    left = 0
    with trio.move_on_after(timeout):
        await stream.bind((closed_subject(queue, was, will),))
        logger.warning(
            "topic %s: closed, to be changed from %d to %d shards",
            queue,
            was,
            will,
            extra=about("reshard_began", queue=queue, shards=will, before=was),
        )
        await trio.sleep(CLOSED_LEAST_S)
        while True:
            try:
                left = await stream.unsettled(was)
            except UnavailableError:
                pass  # a server that restarts has forgotten nothing: look again
            else:
                if not left:
                    return
            await trio.sleep(LOOK_EVERY_S)
    raise ReshardTimeout(
        f"topic {queue!r} still had {left} messages after {timeout:g} s; it keeps its {was} "
        f"shards. Are consumers with routing_shards({was}) running?"
    )


async def _put_back(stream: Reshardable, queue: str, was: int) -> None:
    with trio.CancelScope(deadline=trio.current_time() + FINISH_S, shield=True):
        try:
            await stream.bind(shard_subjects(queue, was))
            return
        except ShoveError as exc:
            logger.error(
                "topic %s: %s",
                queue,
                exc,
                extra=about("reshard_stuck", queue=queue),
            )
    logger.error(
        "topic %s: the server did not take its old subjects back, so it stays closed to "
        "publishers: run `reshard` again",
        queue,
        extra=about("reshard_stuck", queue=queue),
    )
