"""The legacy consumer configuration, and whether an existing consumer is what was asked for."""

from __future__ import annotations

from dataclasses import dataclass, fields

from shove_actors.jetstream._consumer import AckPolicy
from shove_actors.jetstream._consumer import ConsumerConfig as NewConsumerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(NewConsumerConfig):
    """`jetstream.ConsumerConfig` with the legacy default: **nothing is acknowledged**.

    In nats.go's legacy `AddConsumer` a consumer without an ack policy has the policy "none"; the
    new API's default is "explicit". Write `ack_policy="explicit"` to have messages tracked.
    """

    ack_policy: AckPolicy = "none"


#: What the server fills in or adds to; asking for it binds nobody.
_NOT_COMPARED = frozenset({"name", "durable_name", "extra", "metadata", "deliver_subject"})


def difference(
    wanted: NewConsumerConfig, actual: NewConsumerConfig, always: frozenset[str] = frozenset()
) -> str | None:
    """The first setting that was asked for and is otherwise; None if there is none.

    What was left out is not compared, but for the names in `always`.
    """
    for item in fields(wanted):
        name = item.name
        if name in _NOT_COMPARED:
            continue
        asked, has = getattr(wanted, name), getattr(actual, name)
        left_out = asked == item.default or asked in (None, ())
        if asked != has and (name in always or not left_out):
            return f"{name} is {has!r}, and {asked!r} was asked for"
    return None
