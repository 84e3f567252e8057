"""What a JetStream context was made with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shove_actors._errors import InvalidOption

from ._options import check_callback, check_count, check_seconds
from ._wire import not_in_subject

if TYPE_CHECKING:
    from ._pub_ack import PubAck
    from ._publish_future import PublishFuture

#: Subject of the request and its payload, or the payload of its reply.
TraceHook = Callable[[str, bytes], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class JetStreamOptions:
    """The options of a `JetStream`, checked. Raises `InvalidOption` naming the one that is wrong.

    * `domain` or `api_prefix`: where the API lives (`$JS.API.` without either).
    * `timeout`: seconds for one API request; None takes the connection's `request_timeout`.
    * `on_request(subject, payload)`, `on_response(subject, payload)`: see every API request and
      reply. They run in the task that asks, and what they raise reaches it.
    * `publish_async_max_pending`: how many acknowledgements may be outstanding.
    * `publish_ack_timeout`: seconds until an outstanding one fails with `PublishTimeout`; None
      takes the time of one API request (`timeout`), `math.inf` waits as long as the connection
      lasts.
    * `on_publish_error(future, error)`, `on_publish_ack(future, ack)`: hear of each of them. They
      must not wait; one that raises is logged.
    """

    domain: str | None = None
    api_prefix: str | None = None
    timeout: float | None = None
    on_request: TraceHook | None = field(default=None, repr=False)
    on_response: TraceHook | None = field(default=None, repr=False)
    publish_async_max_pending: int = 4000
    publish_ack_timeout: float | None = None
    on_publish_error: Callable[[PublishFuture, Exception], object] | None = field(
        default=None, repr=False
    )
    on_publish_ack: Callable[[PublishFuture, PubAck], object] | None = field(
        default=None, repr=False
    )

    def __post_init__(self) -> None:
        if self.domain is not None and self.api_prefix is not None:
            raise InvalidOption("domain and api_prefix exclude each other; give one of them")
        for name in ("domain", "api_prefix"):
            value = getattr(self, name)
            if value is not None and not_in_subject(
                value.rstrip(".") if isinstance(value, str) else ""
            ):
                raise InvalidOption(
                    f"{name} {value!r} is empty or no subject; give words separated by dots"
                )
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        if self.publish_ack_timeout is not None and self.publish_ack_timeout != math.inf:
            check_seconds("publish_ack_timeout", self.publish_ack_timeout)
        check_count("publish_async_max_pending", self.publish_async_max_pending)
        for name in ("on_request", "on_response", "on_publish_error", "on_publish_ack"):
            value = getattr(self, name)
            if value is not None:
                check_callback(name, value)

    @property
    def prefix(self) -> str:
        """Of every API subject, with its final dot."""
        if self.domain is not None:
            return f"$JS.{self.domain}.API."
        if self.api_prefix is not None:
            return self.api_prefix.rstrip(".") + "."
        return "$JS.API."
