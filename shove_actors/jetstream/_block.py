"""What is used as `async with`, and says so when it is not.

A context manager of the standard library knows nothing of what it would hand out, so
`consumer.messages().receive()` would be an `AttributeError` about a class that nobody has heard of.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar

from shove_actors._errors import UsageError

T = TypeVar("T")
P = ParamSpec("P")


class Block(AbstractAsyncContextManager[T]):
    """`inner`, which hands out a `kind`; `call` is how it was made, for the error's text."""

    def __init__(self, inner: AbstractAsyncContextManager[T], kind: type, call: str) -> None:
        self._inner = inner
        self._kind = kind
        self._call = call

    def __repr__(self) -> str:
        return f"<block of {self._call}>"

    async def __aenter__(self) -> T:
        return await self._inner.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(kind, exc, traceback)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        raise self._not_entered()

    def __aiter__(self) -> NoReturn:
        raise self._not_entered()

    def within(self, outer: Callable[[Block[T]], AbstractAsyncContextManager[T]]) -> Block[T]:
        """The same block with something around it."""
        return Block(outer(self), self._kind, self._call)

    def _not_entered(self) -> UsageError:
        return UsageError(
            f"{self._call} is a block: use it as `async with x.{self._call} as y:`; inside, y is "
            f"the {self._kind.__name__}"
        )


def block(
    kind: type, call: str
) -> Callable[[Callable[P, AsyncIterator[T]]], Callable[P, Block[T]]]:
    """`asynccontextmanager`, with the error for whoever forgets `async with`."""

    def decorate(function: Callable[P, AsyncIterator[T]]) -> Callable[P, Block[T]]:
        manager = asynccontextmanager(function)

        def made(*args: P.args, **kwargs: P.kwargs) -> Block[T]:
            return Block(manager(*args, **kwargs), kind, call)

        return made

    return decorate
