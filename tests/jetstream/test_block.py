"""Blocks that are used without `async with` say so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shove_actors._errors import UsageError
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Message, connect

from .kit import fast
from .reading import Fresh


async def handle(message: Message) -> None:
    raise AssertionError("never called")


async def test_a_block_that_is_not_entered(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[name])
        pull = await stream.create_consumer(name="pull")
        push = await stream.create_push_consumer(name="push", deliver_subject=f"{name}-d")
        kv = await js.create_kv(bucket=name)
        store = await js.create_object_store(bucket=name)
        mistakes: list[tuple[str, Callable[[], object]]] = [
            (r"messages\(.*MessageIterator", lambda: pull.messages().receive),  # type: ignore[attr-defined]
            (r"messages\(", lambda: aiter(pull.messages())),  # type: ignore[arg-type]
            (r"consume\(.*Consuming", lambda: pull.consume(handle).stop),  # type: ignore[attr-defined]
            (r"messages\(", lambda: push.messages().receive),  # type: ignore[attr-defined]
            (r"consume\(", lambda: push.consume(handle).stop),  # type: ignore[attr-defined]
            (r"ordered_consumer\(", lambda: stream.ordered_consumer().messages),  # type: ignore[attr-defined]
            (r"watch\(.*Watcher", lambda: kv.watch().initial),  # type: ignore[attr-defined]
            (r"watch\(", lambda: store.watch().receive),  # type: ignore[attr-defined]
            (r"get\(.*ObjectReader", lambda: store.get("x").read_all),  # type: ignore[attr-defined]
        ]
        for text, mistake in mistakes:
            with pytest.raises(UsageError, match=f"(?s){text}") as caught:
                mistake()
            assert "async with" in str(caught.value)
        async with stream.ordered_consumer() as ordered:
            with pytest.raises(UsageError, match=r"fetch\("):
                _ = ordered.fetch(1).receive  # type: ignore[attr-defined]
            # Nothing was begun by the mistakes.
            async with ordered.messages() as messages:
                assert messages.buffered == 0


async def test_it_is_no_more_than_a_block(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue())
        block = kv.watch()
        assert "watch" in repr(block)
        assert not hasattr(block, "_push")
        assert not hasattr(block, "__enter__")
