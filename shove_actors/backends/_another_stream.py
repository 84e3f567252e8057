"""A subject that another stream than the topic's takes: nothing is stored there."""

from __future__ import annotations

from shove_actors._errors import TopicNotDeclared


def another_stream(subject: str) -> TopicNotDeclared:
    """What a publish raises whose `Nats-Expected-Stream` named another stream."""
    return TopicNotDeclared(
        f"{subject!r} belongs to another stream than its topic's, and nothing was stored: call "
        "`await broker.declare(topic)`, which says what is in the way; of an external stream, "
        "publish on a subject that it binds"
    )
