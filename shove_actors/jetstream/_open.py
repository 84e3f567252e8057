"""`jetstream.connect`: the client on its own, for code that wants no broker."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import trio

from shove_actors._errors import ConnectionError
from shove_actors._groups import unwrapped
from shove_actors._real_clock import require_trio

from ._config import NatsConfig
from ._connection import Connection
from ._context import JetStream
from ._context_options import JetStreamOptions

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._settings import ConnectionSettings, ConnectSettings

_DEFAULT = "nats://127.0.0.1:4222"
_OF_THE_CONTEXT = frozenset(item.name for item in fields(JetStreamOptions))


@asynccontextmanager
async def open_connection(
    servers: NatsConfig | str | Sequence[str] = _DEFAULT, **settings: Unpack[ConnectionSettings]
) -> AsyncIterator[Connection]:
    """Connect to one of `servers`: a URL, several with commas between, a list, or a `NatsConfig`.

        async with open_connection("nats://a:4222, nats://b:4222", name="billing") as connection:
            async with JetStream(connection) as js:
                ...

    Settings are the fields of `NatsConfig`. Raises `ConfigError`, or `ConnectionError` when the
    connection cannot be had. When it is given up for good later, the block is cancelled and
    `ConnectionError` leaves it, alone, also when something in the block has failed because of it
    (such as a reader with `ConnectionClosed`). An exception of the block leaves it as it is; if
    both happen, a group with both. Leaving the block flushes for at most two seconds; no task,
    socket or asyncio loop is left.
    """
    require_trio("jetstream.connect")
    connection = Connection(_config(servers, settings))
    given_up: list[ConnectionError] = []

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        try:
            await connection.run(task_status=task_status)
        except ConnectionError as exc:
            given_up.append(exc)
            raise

    with _one_cause(given_up), unwrapped(layers=1):
        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            try:
                yield connection
            finally:
                connection.close()
                with trio.CancelScope(shield=True):
                    await connection.wait_ended()


@asynccontextmanager
async def connect(
    config: NatsConfig | str | Sequence[str] = _DEFAULT, **settings: Unpack[ConnectSettings]
) -> AsyncIterator[JetStream]:
    """Connect, hand out the JetStream API, and leave nothing behind.

        async with jetstream.connect("nats://localhost:4222") as js:
            print(await js.account_info())

    Settings are the fields of `NatsConfig` and the options of `JetStream`. Otherwise as
    `open_connection`; the connection is `js.connection`.
    """
    all_of_them: dict[str, Any] = dict(settings)
    options = {name: all_of_them.pop(name) for name in list(settings) if name in _OF_THE_CONTEXT}
    JetStreamOptions(**options)  # what is wrong with them shows before anybody is connected to
    async with open_connection(config, **all_of_them) as connection:
        async with JetStream(connection, **options) as js:
            yield js


@contextmanager
def _one_cause(given_up: list[ConnectionError]) -> Iterator[None]:
    """A connection that is given up fails whoever waits for it, in the same pass. That is one
    failure, and it leaves the block as such."""
    try:
        yield
    except BaseExceptionGroup as group:
        if not given_up or not all(isinstance(one, ConnectionError) for one in _leaves(group)):
            raise
        error = given_up[0]
    else:
        return
    raise error


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _config(servers: NatsConfig | str | Sequence[str], settings: Any) -> NatsConfig:
    if isinstance(servers, NatsConfig):
        return replace(servers, **settings) if settings else servers
    return NatsConfig(servers, **settings)
