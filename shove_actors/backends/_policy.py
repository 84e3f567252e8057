"""What a topic does with a key that fails, where more than one program has to agree on it.

The bucket of poisoned keys is the record of it: there is one exactly if FAIL_ALL was declared,
every program can see it, and deleting it, which releases every key, is the way back to SKIP. A
program that says SKIP where there is one is refused, when it declares and when it begins to
consume (`messaging.skip_refusal`).

The other way round nothing can be refused: programs that said SKIP when they started cannot be
seen. So whoever makes the bucket of a topic that is in use says so.
"""

from __future__ import annotations

import logging

from shove_actors._log import about
from shove_actors.messaging import poison_bucket

logger = logging.getLogger("shove_actors.backends")


def policy_began(queue: str) -> None:
    """The bucket of a topic with consumers is made now, and not with the topic."""
    logger.warning(
        "topic %s has consumers and had no bucket %s of poisoned keys: either it was deleted, "
        "which has released every key, or its programs said SequenceFailure.SKIP until now; those "
        "that still run would handle messages of poisoned keys, so stop or restart them",
        queue,
        poison_bucket(queue),
        extra=about("poison_bucket_made", queue=queue),
    )
