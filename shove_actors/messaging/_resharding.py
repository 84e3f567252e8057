"""What the subjects of a sequenced topic's stream say of its number of shards. Pure.

    orders.shard.0 ... orders.shard.7      eight shards, open
    orders.resharding.8.16                 closed: nobody can publish while the eight are drained

The closed state is a subject too, so it is kept where the number itself is kept, is seen by every
process, and outlives whoever made it. Nobody publishes to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shove_actors._errors import ReshardUnderWay, ShoveError, TopologyError

from ._names import shard_subject, shown

#: Metadata of a stream whose number of shards was changed on purpose: from then on `declare` no
#: longer changes it in passing, and an old process that starts once more cannot turn it back.
RESHARDED = "shove-resharded"


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """`shards`: how many a stream takes messages for; 0 while it is closed, or if it is plain.

    `under_way`: (old number, new number) while it is closed.
    """

    shards: int
    under_way: tuple[int, int] | None = None


def closed_subject(queue: str, was: int, will: int) -> str:
    return f"{queue}.resharding.{was}.{will}"


def shard_subjects(queue: str, shards: int) -> tuple[str, ...]:
    return tuple(shard_subject(queue, shard) for shard in range(shards))


def layout_of(queue: str, subjects: Iterable[str]) -> ShardLayout:
    prefix, shards = f"{queue}.resharding.", 0
    for subject in subjects:
        if subject.startswith(prefix):
            was, _, will = subject.removeprefix(prefix).partition(".")
            if was.isdecimal() and will.isdecimal():
                return ShardLayout(0, (int(was), int(will)))
        shards += subject.startswith(f"{queue}.shard.")
    return ShardLayout(shards)


def publish_refusal(queue: str, shards: int, layout: ShardLayout) -> ShoveError | None:
    """Why a publisher that was built with `shards` may not publish; None: it may."""
    if layout.under_way is not None:
        was, will = layout.under_way
        return ReshardUnderWay(
            f"topic {shown(queue)} is being changed from {was} to {will} shards; nothing can be "
            "published until that is done. Publish again later, with the new number"
        )
    if layout.shards and layout.shards != shards:
        return TopologyError(
            f"stream {shown(queue)} has {layout.shards} shards, but this program was built with "
            f"routing_shards({shards}): its messages would go to the wrong lanes and lose their "
            "order. Start it again with the stream's number"
        )
    return None


def declares_shards(queue: str, shards: int, layout: ShardLayout, messages: int) -> bool:
    """Whether `declare` may bind the subjects of `shards` to a closed stream.

    False: leave it as it is. Raises `TopologyError` for a number that has no business there.
    """
    assert layout.under_way is not None
    was, will = layout.under_way
    if shards == will and not messages:
        return True  # drained; whoever was about to do this has ended
    if shards == was:
        return False  # a consumer that helps to drain it
    if shards != will:
        raise TopologyError(
            f"stream {shown(queue)} is being changed from {was} to {will} shards, but the topic "
            f"asks for routing_shards({shards})"
        )
    raise TopologyError(
        f"stream {shown(queue)} is being changed from {was} to {will} shards and still holds "
        f"{messages} messages: consumers with routing_shards({was}) have to drain it first. If "
        "nobody is about it any more, run `reshard` again"
    )


def removed_shard(queue: str, subject: str, shards: int) -> TopologyError:
    return TopologyError(
        f"stream {shown(queue)} has {shards} shards, and {shown(subject)} is none of them: this "
        f"consumer was built with another number. Start it again with routing_shards({shards})"
    )


def resharded_refusal(queue: str, was: int, shards: int) -> TopologyError:
    return TopologyError(
        f"stream {shown(queue)} was changed to {was} shards by `reshard`, but the topic asks for "
        f"routing_shards({shards}). Start with {was}, or run `reshard` again"
    )
