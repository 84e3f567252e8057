"""Names of streams, durables and shard subjects, and what a name may contain.

Everything that ends up on the server is derived here from the queue's name, so that a name can
be refused when the topology is built (PC-069): a server refuses some of these names late, some
only by a timeout, and a space in a subject ends the connection of everybody who shares it (PC-057).
"""

from __future__ import annotations

import re

from shove_actors._errors import TopologyError

# The server's own limit for stream and consumer names. Derived names count: a queue of 250
# characters is fine by itself and fails as `{queue}-consumer`.
MAX_NAME_BYTES = 255

# What NATS clients and the nats command take for the name of a key-value bucket.
_BUCKET = re.compile(r"[A-Za-z0-9_-]+")

_FORBIDDEN = {
    ".": "it separates subject tokens",
    "*": "it is a wildcard",
    ">": "it is a wildcard",
    "/": "it separates path elements in the server's store",
    "\\": "it separates path elements in the server's store",
    " ": "it separates protocol fields",
}


def check_name(name: object, what: str) -> None:
    """Refuses `name` with a `TopologyError` that says which rule it breaks and what to do.

    `what` is the role of the name in the message, for example "queue name".
    """
    if not isinstance(name, str):
        raise TopologyError(f"{what} must be a str, not {type(name).__name__}")
    if not name:
        raise TopologyError(f"{what} is empty: give it at least one character")
    for character in name:
        reason = _FORBIDDEN.get(character)
        if reason is None:
            if not character.isprintable():
                reason = "it is not printable"
            elif not character.isascii():
                reason = (
                    "it is not ASCII: one visible name can have several encodings, "
                    "and other clients and stores disagree about them"
                )
        if reason is not None:
            raise TopologyError(
                f"{what} {shown(name)} may not contain {character!a}: {reason}. "
                "Use letters, digits, '-' and '_'"
            )
    if name.startswith("$"):
        raise TopologyError(
            f"{what} {shown(name)} may not begin with '$': such names belong to the server. "
            "Use letters, digits, '-' and '_'"
        )
    if len(name) > MAX_NAME_BYTES:
        raise TopologyError(
            f"{what} {shown(name)} has {len(name)} bytes, the server allows {MAX_NAME_BYTES}: "
            "choose a shorter queue name"
        )


def check_bucket(queue: str) -> None:
    """Refuses a queue whose bucket of poisoned keys other NATS tools could not open."""
    if _BUCKET.fullmatch(queue) is None:
        raise TopologyError(
            f"queue name {shown(queue)} cannot be used with SequenceFailure.FAIL_ALL: its poisoned "
            f"keys are kept in the key-value bucket {shown(poison_bucket(queue))}, and the name of "
            "a bucket may only hold ASCII letters, digits, '-' and '_'. Rename the queue, or use "
            "SequenceFailure.SKIP"
        )
    check_name(bucket_stream(poison_bucket(queue)), "name of the stream for poisoned keys")


def shown(name: str) -> str:
    """`name` quoted for a message: ASCII, and short however long the name is."""
    return ascii(name if len(name) <= 60 else name[:57] + "...")


def hold_name(queue: str, delay_ms: int) -> str:
    """`orders-hold-5s`, `orders-hold-250ms`, `orders-hold-1500ms`: one name per delay (SW-58)."""
    whole, rest = divmod(delay_ms, 1000)
    return f"{queue}-hold-{delay_ms}ms" if rest else f"{queue}-hold-{whole}s"


def dlq_name(queue: str) -> str:
    return f"{queue}-dlq"


def main_durable(queue: str) -> str:
    return f"{queue}-consumer"


def shard_durable(queue: str, shard: int) -> str:
    return f"{queue}-shard-{shard}"


def shard_subject(queue: str, shard: int) -> str:
    return f"{queue}.shard.{shard}"


def attempts_stream(stream: str) -> str:
    """Where notes about attempts at a stream's messages are kept; made when the first is."""
    return f"{stream}-attempts"


def check_owners_bucket(queue: str) -> None:
    """Refuses a queue whose bucket of owners other NATS tools could not open."""
    if _BUCKET.fullmatch(owners_bucket(queue)) is None:
        raise TopologyError(
            f"queue name {shown(queue)} cannot be used with keyed: who handles which shard is "
            f"kept in the key-value bucket {shown(owners_bucket(queue))}, and the name of a bucket "
            "may only hold ASCII letters, digits, '-' and '_'. Rename the queue"
        )
    check_name(bucket_stream(owners_bucket(queue)), "name of the stream for owners")


def poison_bucket(queue: str) -> str:
    """The key-value bucket of a FAIL_ALL topic's poisoned keys."""
    return f"{queue}-poison"


def owners_bucket(queue: str) -> str:
    """The key-value bucket that says who handles which shard of a keyed topic."""
    return f"{queue}-owners"


def bucket_stream(bucket: str) -> str:
    """The stream behind a key-value bucket, as every NATS client names it."""
    return f"KV_{bucket}"


def bucket_subject(bucket: str, name: str) -> str:
    """The subject of one key of a bucket; `>` for all of them."""
    return f"$KV.{bucket}.{name}"


def dlq_durable(dlq: str) -> str:
    return f"{dlq}-consumer"


def hold_durable(hold: str) -> str:
    return f"{hold}-mover"
