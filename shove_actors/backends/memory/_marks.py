"""Marks beside a queue, as a key-value bucket with a history of one keeps them."""

from __future__ import annotations

from collections.abc import Callable

from shove_actors.backends._port import Mark

_NEVER = Mark(None, 0)


class Marks:
    """All marks of a server, by queue. They outlive their queues, as buckets do."""

    __slots__ = ("_queues", "_revisions", "_watchers")

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, Mark]] = {}
        self._revisions: dict[str, int] = {}
        self._watchers: dict[str, list[Callable[[], None]]] = {}

    def make(self, queue: str) -> None:
        """A place for its marks, if there is none."""
        self._queues.setdefault(queue, {})

    def exist(self, queue: str) -> bool:
        return queue in self._queues

    def delete(self, queue: str) -> None:
        """An operator deletes the bucket. Nobody is told."""
        self._queues.pop(queue, None)
        self._revisions.pop(queue, None)

    def read(self, queue: str, name: str) -> Mark:
        return self._queues.get(queue, {}).get(name, _NEVER)

    def write(self, queue: str, name: str, value: bytes | None, revision: int) -> bool:
        if self.read(queue, name).revision != revision:
            return False
        latest = self._revisions[queue] = self._revisions.get(queue, 0) + 1
        self._queues.setdefault(queue, {})[name] = Mark(value, latest)
        for told in self._watchers.get(queue, ()):
            told()
        return True

    def watch(self, queue: str, told: Callable[[], None]) -> Callable[[], None]:
        """`told` on the server's side; what is returned ends it."""
        watchers = self._watchers.setdefault(queue, [])
        watchers.append(told)
        return lambda: watchers.remove(told)

    def all(self, queue: str) -> list[tuple[str, Mark]]:
        found = self._queues.get(queue, {})
        return [(name, found[name]) for name in sorted(found) if found[name].value is not None]
