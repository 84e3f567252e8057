"""Actors written as classes: one object per incarnation, one method call per message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Protocol, TypeVar, runtime_checkable

from ._callables import receiver_factory
from ._context import Context

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


@runtime_checkable
class Receiver(Protocol[M_contra]):
    """What a class needs to be an actor: nothing to inherit, one method.

    Set-up and clean-up are an ordinary async context manager on the class (`__aenter__` and
    `__aexit__`), or on nothing at all. There are no further callbacks: a clean-up that is
    skipped on one of the ways out is the classic bug of actor classes.
    """

    def receive(self, message: M_contra, /) -> Awaitable[None]:
        """Handle one message. An exception crashes the incarnation."""
        ...


def of_class(
    make: Callable[[Context[M]], Receiver[M]],
) -> Callable[[Context[M]], Awaitable[None]]:
    """A `start` function that makes one object per incarnation and feeds it messages.

    The state of an object that has raised is suspect, so a restart makes a new one. If the object
    is an async context manager it is entered before `ctx.started()` and left whatever happens.

    Example::

        class Counter:
            def __init__(self, ctx: Context[str]) -> None:
                self.ctx, self.seen = ctx, 0

            async def receive(self, message: str) -> None:
                self.seen += 1
                self.ctx.reply(self.seen)

        ChildSpec(id="counter", start=of_class(Counter))

    Raises `UsageError` at once for a class without an async `receive`, or one not made of a ctx.
    """

    receiver_factory("of_class(make): make", make)

    async def start(ctx: Context[M]) -> None:
        async with AsyncExitStack() as stack:
            actor = make(ctx)
            if isinstance(actor, AbstractAsyncContextManager):
                await stack.enter_async_context(actor)
            ctx.started()
            async for message in ctx:
                await actor.receive(message)

    return start
