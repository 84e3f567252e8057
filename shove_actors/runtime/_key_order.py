"""Order of publishing, per key: the next message leaves when the one before it is stored.

Many messages may be under way at once, but never two of one key. Why not simply write them in
order: a publish can fail and be repeated (the connection is lost, no stream answers yet), and what
was written behind it may be stored meanwhile. Then the *stream* has the wrong order, and everything
downstream keeps it faithfully. With one under way per key, whatever happens to it happens before
the next exists on the wire.

A message that could not be stored ends its key: later ones are refused without being sent, so that
a key never has a hole that nobody decided on (SW-52).

Who is cancelled gives up: what waits for its turn is not sent any more. Sent after all, it would be
stored behind what the program publishes next.
"""

from __future__ import annotations

from collections import deque

from shove_actors._errors import PublishError, ShoveError
from shove_actors.backends import Post

from ._publish_service import Completion, PublishService
from ._receipt import PublishReceipt


class KeyOrder:
    """Submits posts of one batch or pipeline. Each post's place in the window is taken already."""

    __slots__ = ("_ended", "_given_up", "_service", "_under_way", "_waiting")

    def __init__(self, service: PublishService) -> None:
        self._service = service
        #: Keys with a message under way, and what waits behind it.
        self._waiting: dict[str, deque[Post]] = {}
        self._under_way: dict[str, Post] = {}
        self._ended: set[str] = set()
        self._given_up = False

    def submit(self, key: str, post: Post) -> None:
        """Now, or when its turn comes. Its completion hears of it in any case."""
        if self._given_up or key in self._ended:
            self._refuse(post)
            return
        behind = self._waiting.get(key)
        if behind is not None:
            behind.append(post)
            return
        self._waiting[key] = deque()
        self._send(key, post)

    def _send(self, key: str, post: Post) -> None:
        completion = post.tag
        assert callable(completion)
        post.tag = turn = _Turn(self, key, completion)
        self._under_way[key] = post
        try:
            self._service.submit(post)
        except ShoveError as exc:
            turn(exc)  # `submit` has given the place back

    def give_up(self) -> None:
        """Send nothing more. What is on its way may be stored or not, and is not repeated."""
        self._given_up = True
        for behind in self._waiting.values():
            while behind:
                self._refuse(behind.popleft())
        for post in list(self._under_way.values()):
            self._service.give_up(post)

    def _refuse(self, post: Post) -> None:
        self._service.window.give_back()
        completion = post.tag
        assert callable(completion)
        refusal = PublishError(
            "not sent: its caller was cancelled"
            if self._given_up
            else "not sent: an earlier message of its key was not stored"
        )
        if post.watch is not None:
            post.watch.done(refusal)
        completion(refusal)

    def _over(self, key: str, result: PublishReceipt | Exception) -> None:
        del self._under_way[key]
        if isinstance(result, Exception):
            self._ended.add(key)
            for post in self._waiting.pop(key):
                self._refuse(post)
            return
        behind = self._waiting[key]
        if behind:
            self._send(key, behind.popleft())
        else:
            del self._waiting[key]


class _Turn:
    """Completion of the message under way: the caller's first, then the next message's turn."""

    __slots__ = ("completion", "key", "order")

    def __init__(self, order: KeyOrder, key: str, completion: Completion) -> None:
        self.order = order
        self.key = key
        self.completion = completion

    def __call__(self, result: PublishReceipt | Exception) -> None:
        self.completion(result)
        self.order._over(self.key, result)
