"""Whose business it is that the server refuses this user a subject.

A publisher hears of it as the answer to its post (`Replies.fail_newest`). A lane sends without
waiting for an answer, and what it sends has subjects that are its own: without this it would ask
for messages in vain, or handle the same one again and again because nobody reads its settles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shove_actors._errors import PermissionDenied
from shove_actors.jetstream import parse_ack

if TYPE_CHECKING:
    from ._keyed_durable import NatsKeyedLane
    from ._lane import NatsLane


def concerns(error: PermissionDenied, lane: NatsLane | NatsKeyedLane) -> bool:
    """Whether `lane` cannot work without what was refused."""
    subject = error.subject.encode()
    if error.operation == "subscribe":
        return subject == lane.inbox
    if subject == lane.pull_subject:
        return True
    try:
        parts = parse_ack(subject)
    except ValueError:
        return False
    return (parts.stream, parts.consumer) == (lane.spec.stream, lane.spec.durable)


def for_lane(error: PermissionDenied, lane: NatsLane | NatsKeyedLane) -> PermissionDenied:
    """What its consumers end with."""
    return PermissionDenied(
        f"consumer {lane.spec.durable!r} of stream {lane.spec.stream!r} cannot be read: {error}",
        subject=error.subject,
        operation=error.operation,
    )
