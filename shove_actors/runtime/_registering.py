"""What a group consumes: registrations, taken until it runs.

Everything that cannot work is refused here, when it is registered, not when the first message
comes. Running and draining is `_group.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from shove_actors._errors import UsageError
from shove_actors.messaging import Topic

from ._dead_registration import DeadRegistration
from ._options import MIB, ConsumerOptions
from ._registration import Registration
from ._scaling import AutoscalerConfig

M = TypeVar("M")
R = TypeVar("R", bound="Registering")


def _checked(call: str, topic: Topic[M]) -> Topic[M]:
    if not isinstance(topic, Topic):
        raise UsageError(
            f"{call} takes a topic and then its handler; the first is {type(topic).__name__}"
        )
    return topic


class Registering:
    """The part of a group that is used before it runs."""

    def __init__(self, id: str, context: object) -> None:
        self._id = id
        self._context = context
        self._registrations: list[Registration] = []
        #: Nothing can be registered any more.
        self._served = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id} of {[r.name for r in self._registrations]}>"

    @property
    def registered(self) -> tuple[str, ...]:
        """The names of what is registered: queues, and dead-letter queues."""
        return tuple(r.name for r in self._registrations)

    def with_context(self: R, context: object) -> R:
        """The same group: `context` is handed to every handler that takes three arguments."""
        if self._served:
            raise UsageError(f"{self!r} has been started; give it its context before that")
        self._context = context
        for registration in self._registrations:
            registration.context = context
        return self

    def register(
        self,
        topic: Topic[M],
        handler: Any = None,
        *,
        factory: Callable[[], object] | None = None,
        consumers: int | tuple[int, int] = 1,
        prefetch: int = 10,
        max_retries: int = 10,
        handler_timeout: float | None = 30.0,
        concurrent_processing: bool = False,
        max_message_size: int = 10 * MIB,
        ack_wait: float = 30.0,
        retry_delay: float = 1.0,
        autoscaler: AutoscalerConfig | None = None,
    ) -> None:
        """Consume `topic` with `handler` (or one made by `factory` for each consumer).

        See `ConsumerOptions` for the options and their units. `consumers=(min, max)` starts `min`
        and lets the autoscaler (`autoscaler`, default `AutoscalerConfig()`) run up to `max` of
        them; a sequenced topic has one consumer per shard whatever is given.
        Raises `UsageError`/`HandlerError` for what cannot work; call it before the group runs.
        """
        self._add(
            Registration(
                _checked("register", topic),
                self._options(
                    consumers,
                    prefetch=prefetch,
                    max_retries=max_retries,
                    handler_timeout=handler_timeout,
                    concurrent_processing=concurrent_processing,
                    max_message_size=max_message_size,
                    ack_wait=ack_wait,
                    retry_delay=retry_delay,
                    autoscaler=AutoscalerConfig() if autoscaler is None else autoscaler,
                ),
                handler=handler,
                factory=factory,
                context=self._context,
            )
        )

    def register_dlq(
        self,
        topic: Topic[M],
        handler: Any,
        *,
        max_retries: int = 10,
        handler_timeout: float | None = 30.0,
        ack_wait: float = 30.0,
        retry_delay: float = 1.0,
    ) -> None:
        """Consume the topic's dead letters: `handler(message, dead_metadata, context)`.

        An object's `handle_dead` is used if it has one. What it acknowledges is done with; nothing
        is ever destroyed (see `DeadRegistration`).
        """
        self._add(
            DeadRegistration(
                _checked("register_dlq", topic),
                self._options(
                    1,
                    max_retries=max_retries,
                    handler_timeout=handler_timeout,
                    ack_wait=ack_wait,
                    retry_delay=retry_delay,
                ),
                handler=handler,
                context=self._context,
            )
        )

    @staticmethod
    def _options(consumers: int | tuple[int, int], **rest: Any) -> ConsumerOptions:
        # A list is as good; what else there is, the options refuse.
        span: Any = (consumers, consumers)
        if isinstance(consumers, (tuple, list)):
            span = tuple(consumers)
        return ConsumerOptions(consumers=span, **rest)

    def _add(self, registration: Registration) -> None:
        if self._served:
            raise UsageError(f"{self!r} has been started; register before that")
        if any(r.name == registration.name for r in self._registrations):
            raise UsageError(f"{registration.name!r} is registered in this group already")
        self._registrations.append(registration)
