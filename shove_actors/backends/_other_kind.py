"""A stream of a plain topic is to become one of a sequenced topic, or the other way round.

Messages of one kind mean nothing to the other: what is stored has no lane, what a hold queue or a
program of the other kind still has would be returned to a subject that is bound no more, and a
durable that is left over reads the same messages of the work queue, so that no consumer of the new
kind can be made. So nothing of the other kind may be left. Pure: each backend says what it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from shove_actors._errors import TopologyError


def is_hold_of(queue: str, stream: str) -> bool:
    """Whether `stream` is a hold queue of `queue`, of whatever delay."""
    return re.fullmatch(re.escape(queue) + r"-hold-\d+(ms|s)", stream) is not None


def kind_refusal(
    queue: str,
    *,
    sequenced: bool,
    stored: int,
    held: Mapping[str, int],
    durables: Iterable[str],
) -> TopologyError | None:
    """Why the stream cannot become one of a topic that is `sequenced` (or is not); None: it can.

    `held`: messages by hold queue. `durables`: all that the stream has.
    """
    other = re.escape(queue) + ("-consumer" if sequenced else r"-shard-\d+")
    left = [name for name in durables if re.fullmatch(other, name)]
    there = [_messages(stored)] if stored else []
    there += [f"{_messages(count)} in {name!r}" for name, count in sorted(held.items()) if count]
    problems = ["the new one never handles such messages"] if there else []
    steps = ["End the old program"]
    if there:
        steps = ["Run the old program until nothing is stored or held, and end it"]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        there.append(f"the consumer {min(left)!r}{more}")
        problems.append("such a consumer is in its way")
        steps.append(f"delete its consumers (`nats consumer rm {queue} {min(left)}`)")
    if not there:
        return None
    was, wanted = ("plain", "sequenced") if sequenced else ("sequenced", "plain")
    return TopologyError(
        f"stream {queue!r} is of a {was} topic, and this topic is {wanted}. Left of the old one: "
        f"{', '.join(there)}; {', and '.join(problems)}. {'; '.join(steps)}; then declare again. "
        "Or use another queue name"
    )


def still_keyed(queue: str, durable: str) -> TopologyError:
    """Who has many keys of a shard in hand goes on with them, whatever becomes of its durable."""
    return TopologyError(
        f"consumer {durable!r} of stream {queue!r} is read by programs whose topic is keyed, and "
        "this topic is not: two messages of a key would be handled at a time. End those programs "
        "first; see docs/how-to/upgrading.md"
    )


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"
