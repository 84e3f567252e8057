"""What a running process sees of its own handlers: for `run --top` and `run --answer` only.

It takes the seat that OpenTelemetry's instruments have in a broker (`runtime/_instruments.py`), and
passes everything on to them if they are there. So nothing is measured, and nothing is in the way of
a handler, unless somebody asked to look.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from shove_actors import Broker
from shove_actors.backends import Delivery
from shove_actors.messaging import Dead, Discard, stored_of
from shove_actors.runtime._handler import Resolved

from ._percentiles import percentiles

if TYPE_CHECKING:
    from shove_actors.runtime._instruments import Instruments
    from shove_actors.runtime._observer import PublishWatch, TopicObserver

#: Of a topic's handlers, the latest so many are what percentiles are of.
KEPT: Final = 2048
#: Changes of the number of consumers that are remembered.
DECISIONS: Final = 20


class TopicWatch:
    """One registration's handlers. Satisfies what the runtime asks of a `TopicObserver`."""

    def __init__(
        self, name: str, busy: Callable[[], int], now_ns: Callable[[], int], inner: Any
    ) -> None:
        self.name = name
        self.busy = busy
        self.handler_s: deque[float] = deque(maxlen=KEPT)
        #: From being stored to being begun: of a retry, the time since it came back.
        self.waited_s: deque[float] = deque(maxlen=KEPT)
        self.attempts = 0
        self.dead: Counter[str] = Counter()
        self._now_ns = now_ns
        self._inner: TopicObserver | None = inner

    def around(self, inner: Resolved) -> Resolved:
        watched = inner if self._inner is None else self._inner.around(inner)
        attempt = watched.call

        async def call(message: Any, metadata: Any, context: Any) -> Any:
            began = trio.current_time()
            self.waited_s.append(
                max(0.0, (self._now_ns() - stored_of(metadata).timestamp_ns) / 1e9)
            )
            try:
                return await attempt(message, metadata, context)
            finally:
                self.attempts += 1
                self.handler_s.append(trio.current_time() - began)

        return Resolved(call, wants_metadata=True, in_thread=inner.in_thread, name=inner.name)

    def open(self) -> None:
        if self._inner is not None:
            self._inner.open()

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    @contextmanager
    def within(self, delivery: Delivery) -> Iterator[None]:
        if self._inner is None:
            yield
        else:
            with self._inner.within(delivery):
                yield

    def hopping(
        self, delivery: Delivery, destination: str, headers: MutableMapping[str, str]
    ) -> PublishWatch | None:
        return None if self._inner is None else self._inner.hopping(delivery, destination, headers)

    def settled(self, verdict: object) -> None:
        if isinstance(verdict, (Dead, Discard)):
            self.dead[verdict.reason.value] += 1
        if self._inner is not None:
            self._inner.settled(verdict)

    def stuck(self, backend: str) -> None:
        if self._inner is not None:
            self._inner.stuck(backend)

    def audit_failed(self, reason: str, again: bool) -> None:
        if self._inner is not None:
            self._inner.audit_failed(reason, again)

    def latency(self) -> dict[str, dict[str, float]]:
        return {"handler": percentiles(self.handler_s), "waited": percentiles(self.waited_s)}


class Watching:
    """In the place of a broker's instruments. `install` it before groups are served."""

    def __init__(self, broker: Broker) -> None:
        self.topics: dict[str, TopicWatch] = {}
        self.decisions: deque[tuple[float, str, int, int]] = deque(maxlen=DECISIONS)
        self.troubles: Counter[str] = Counter()
        self._broker = broker
        self._inner = broker.instruments

    @classmethod
    def install(cls, broker: Broker) -> Watching:
        watching = cls(broker)
        broker.instruments = cast("Instruments", watching)
        broker.backend.listen(watching._on_event)
        return watching

    def _on_event(self, event: Any) -> None:
        self.troubles[event.kind] += 1

    # What the runtime asks of `Instruments`.

    @property
    def publishers(self) -> Any:
        return None if self._inner is None else self._inner.publishers

    def topic(self, topic: str, group: str, busy: Callable[[], int]) -> TopicWatch:
        inner = None if self._inner is None else self._inner.topic(topic, group, busy)
        watch = TopicWatch(topic, busy, self._broker.backend.now_ns, inner)
        self.topics[topic] = watch
        return watch

    def backend_error(self, backend: str, kind: str) -> None:
        if self._inner is not None:
            self._inner.backend_error(backend, kind)

    def scaled(self, topic: str, before: int, after: int) -> None:
        self.decisions.append((trio.current_time(), topic, before, after))
        if self._inner is not None:
            self._inner.scaled(topic, before, after)
