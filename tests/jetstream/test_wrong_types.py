"""A value of a wrong type is named at the call, and nothing of it is sent."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime, timezone
from typing import Any

import pytest
import trio

from shove_actors import jetstream
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import (
    At,
    Cron,
    Every,
    InvalidName,
    InvalidOption,
    JetStream,
    PubMessage,
    UsageError,
    connect,
    legacy,
    open_connection,
)

from .wrong_types import (
    HANDLES,
    NAMED,
    PALETTE,
    RECORDS,
    Parameter,
    accepted,
    calls,
    coroutine_function,
    parameters,
)

#: What makes a call right but for the parameter in question.
GOOD: dict[str, Any] = {
    "stream": "TYPES",
    "name": "pull",
    "subject": "types.a",
    "subject_filter": "types.>",
    "bucket": "types",
    "key": "key",
    "value": b"v",
    "data": b"",
    "revision": 1,
    "sequence": 1,
    "count": 1,
    "batch": 1,
    "until": datetime.now(timezone.utc),
    "when": datetime.now(timezone.utc),
    "seconds": 5.0,
    "expression": "@hourly",
    "group": "g",
    "handler": coroutine_function,
    "callback": coroutine_function,
    "queue": "q",
    "op": "INFO",
    "which": {"seq": 1},
    "source": b"content",
    "path": "/nowhere/at/all",
    "max_wait": 1.0,
    "api": "$JS.x.API",
    "messages": [],
    "message": PubMessage(subject="types.a"),
    "schedule": Every(5.0),
    "schedule_target": "types.target",
    "listener": print,
    "config": jetstream.ConsumerConfig(name="pull"),
}
#: Parameters that mean something only beside another one.
BESIDE: dict[str, dict[str, Any]] = {
    "schedule": {"schedule_target": "types.target"},
    "schedule_target": {"schedule": Every(5.0)},
    "schedule_source": {"schedule": Every(5.0), "schedule_target": "types.target"},
    "schedule_ttl": {"schedule": Every(5.0), "schedule_target": "types.target"},
    "max_wait": {"count": 1},
    "heartbeat": {"count": 1},
    "expect_last_subject": {"expect_last_subject_sequence": 1},
}
#: The same by method: settings without which there is nothing to make.
WITH: dict[str, dict[str, Any]] = {
    "create_stream": {"name": "TYPES"},
    "update_stream": {"name": "TYPES"},
    "add_stream": {"name": "TYPES"},
    "create_or_update_stream": {"name": "TYPES"},
    "create_kv": {"bucket": "types"},
    "update_kv": {"bucket": "types"},
    "create_or_update_kv": {"bucket": "types"},
    "create_object_store": {"bucket": "types"},
    "update_object_store": {"bucket": "types"},
    "create_or_update_object_store": {"bucket": "types"},
    "create_push_consumer": {"deliver_subject": "types_push"},
    "update_push_consumer": {"deliver_subject": "types_push", "name": "push"},
    "create_or_update_push_consumer": {"deliver_subject": "types_push"},
    "update_consumer": {"name": "pull"},
    "edit_stream": {"name": "TYPES"},
}


class Bench:
    """One handle of each kind, and what a second client has seen passing by."""

    def __init__(self, js: JetStream, spy: JetStream) -> None:
        self.js = js
        self.seen: list[bytes] = []
        self.handles: dict[str, Any] = {}
        self._spy = spy
        spy.connection.subscribe(b">", self._see)

    def _see(self, subject: bytes, *rest: object) -> None:
        # Replies, deliveries and heartbeats are the server's.
        if not subject.startswith((b"_INBOX.", b"types_push", b"$JS.EVENT.")):
            self.seen.append(subject)

    async def settle(self) -> None:
        """What was written has been seen."""
        await self.js.connection.flush()
        await self._spy.connection.flush()


@asynccontextmanager
async def bench(server: ServerProcess, kind: str = "") -> AsyncIterator[Bench]:
    async with connect(server.url) as js, connect(server.url) as spy, AsyncExitStack() as stack:
        table = Bench(js, spy)
        enter = stack.enter_async_context
        stream = await js.create_stream(
            name="TYPES", subjects=["types.>"], allow_atomic=True, allow_direct=True
        )
        future = await js.publish_async("types.a", b"one")
        await future.wait()
        pull = await stream.create_consumer(durable_name="pull")
        push = await stream.create_push_consumer(durable_name="push", deliver_subject="types_push")
        kv = await js.create_kv(bucket="types")
        await kv.put("key", b"v")
        store = await js.create_object_store(bucket="types")
        await store.put("name", b"content")
        message = await pull.next(5)
        old = legacy.JetStreamContext(js)
        made = [js, stream, pull, push, message, future, kv, store, js.connection, old]
        # Readers ask by themselves from time to time, so only the one in question is there.
        readers: dict[str, Callable[[], AbstractAsyncContextManager[Any]]] = {
            "OrderedConsumer": stream.ordered_consumer,
            "MessageIterator": lambda: pull.messages(expiry=600.0),
            "FetchBatch": lambda: pull.fetch(1, max_wait=600),
            "AtomicBatch": js.batch,
            "ObjectReader": lambda: store.get("name"),
            "PullSubscription": lambda: old.pull_subscribe("types.>", "old"),
            "SyncSubscription": lambda: old.subscribe_sync("types.>"),
        }
        if kind in readers:
            made.append(await enter(readers[kind]()))
        GOOD["store"], GOOD["target"] = store, await store.info("name")
        table.handles = {type(handle).__name__: handle for handle in made}
        try:
            yield table
        finally:
            for name in ("TYPES", "KV_types", "OBJ_types"):
                await js.delete_stream(name)


def arguments(
    function: Any, parameter: Parameter | None, value: object
) -> tuple[list[Any], dict[str, Any]]:
    """All that is required, and `value` for the parameter in question."""
    args: list[Any] = []
    kwargs = dict(WITH.get(function.__name__, {}))
    if parameter is not None:
        beside = BESIDE.get(parameter.name, {})
        known = {item.name for item in parameters(function)}
        kwargs |= {name: value for name, value in beside.items() if name in known}
    for item in parameters(function):
        if parameter is not None and item.name == parameter.name:
            given = value
        elif item.required:
            given = kwargs.pop(item.name, None) or GOOD[item.name]
        else:
            continue
        if item.how == "keyword":
            kwargs[item.name] = given
        else:
            args.append(given)
    return args, kwargs


async def call(function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """To the end: a coroutine is awaited, a block entered, a list read from."""
    result = function(*args, **kwargs)
    if inspect.isawaitable(result):
        await result
    elif hasattr(result, "__aenter__"):
        async with result as inner:
            if hasattr(inner, "receive"):
                await inner.receive()


def test_every_handle_is_looked_at() -> None:
    """A class of the client with methods that take something is in the table, or a record."""
    named = {kind.__name__ for kind in HANDLES}
    records = {kind.__name__ for kind in RECORDS}
    # What is read from answers, or not called by those who use the client.
    others = {"NatsConfig", "ServerAddress", "Headers", "ServerClock", "PullLedger", "PullLine"}
    for module in (jetstream, legacy):
        for name in module.__all__:
            kind = getattr(module, name)
            if not inspect.isclass(kind) or issubclass(kind, (Exception, dict, str, tuple)):
                continue
            methods = [
                function
                for method, function in inspect.getmembers(kind, inspect.isfunction)
                if not method.startswith("_") and parameters(function)
            ]
            assert not methods or name in named | records | others, name


def _of(full: str) -> str:
    return full.partition(".")[0]


@pytest.mark.parametrize("kind", sorted({_of(full) for full, _ in calls()}))
async def test_a_wrong_type_is_named_and_nothing_is_sent(
    own_server: ServerProcess, kind: str
) -> None:
    """On a server of its own: a stream of another test that copies is heard on this one, too."""
    wrong: list[str] = []
    async with bench(own_server, kind) as table:
        handle = table.handles[kind]
        await table.settle()
        table.seen.clear()
        for full, function in calls():
            if _of(full) != kind:
                continue
            bound = getattr(handle, function.__name__)
            for parameter in parameters(function):
                fits = accepted(parameter)
                for label, value in PALETTE.items():
                    if label in fits:
                        continue
                    said = await _outcome(bound, function, parameter, value)
                    if said is not None:
                        wrong.append(f"{full}({parameter.name}: {label}): {said}")
            await table.settle()
            wrong += [f"{full}: sent to {subject.decode()}" for subject in table.seen]
            table.seen.clear()
    assert not wrong, "\n".join(wrong)


async def _outcome(bound: Any, function: Any, parameter: Parameter, value: object) -> str | None:
    """None for the right error; else what came in its place."""
    args, kwargs = arguments(function, parameter, value)
    try:
        with trio.fail_after(5):
            await call(bound, args, kwargs)
    except Exception as exc:
        if not isinstance(exc, UsageError) or not isinstance(exc, ValueError):
            return f"{type(exc).__name__}: {exc}"
        said = str(exc)
        if parameter.name not in said and NAMED.get(parameter.name, "\0") not in said:
            return f"does not name it: {said}"
        return None
    return "accepted"


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_a_record_of_wrong_types_is_not_made(kind: Any) -> None:
    wrong: list[str] = []
    for parameter in parameters(kind):
        for label, value in PALETTE.items():
            if label in accepted(parameter):
                continue
            args, kwargs = _made_of(kind, parameter, value)
            try:
                kind(*args, **kwargs)
            except Exception as exc:
                said = str(exc)
                if not (isinstance(exc, UsageError) and isinstance(exc, ValueError)):
                    wrong.append(f"{parameter.name}: {label}: {type(exc).__name__}: {exc}")
                elif parameter.name not in said and NAMED.get(parameter.name, "\0") not in said:
                    wrong.append(f"{parameter.name}: {label}: does not name it: {said}")
            else:
                wrong.append(f"{parameter.name}: {label}: accepted")
    assert not wrong, "\n".join(wrong)


def _made_of(kind: Any, parameter: Parameter, value: object) -> tuple[list[Any], dict[str, Any]]:
    kwargs = {item.name: GOOD.get(item.name) for item in parameters(kind) if item.required}
    kwargs[parameter.name] = value
    return [], kwargs


async def test_the_instances_that_were_found(server: ServerProcess) -> None:
    """Each as it was typed."""
    async with bench(server) as table:
        js, handles = table.js, table.handles
        stream, pull = handles["Stream"], handles["Consumer"]
        typed: Any = js
        for attempt in (
            lambda: typed.publish(5, b""),
            lambda: typed.publish("types.a", headers=[("a", "b")]),
            lambda: typed.publish("types.a", expect_last_sequence="x"),
            lambda: typed.publish("types.a", schedule="@hourly", schedule_target="types.b"),
            lambda: typed.pause_consumer("TYPES", "pull", "x"),
            lambda: typed.create_kv(bucket="b", mirror="x"),
            lambda: typed.create_stream("ORDERS"),
            lambda: typed.create_stream(name="ORDERS", subjects="q.x"),
            lambda: stream.get_last_message(""),
            lambda: stream.get_message("x"),
            lambda: handles["ObjectStore"].add_link("a", "b"),
            lambda: handles["ObjectStore"].put("a", b"", headers={"a": 5}),
            lambda: handles["ObjectStore"].put("a", b"", metadata={"a": 5}),
            lambda: handles["ObjectStore"].put("a", b"", description=5),
            lambda: handles["ObjectStore"].update_meta("name", headers={"a": 5}),
            lambda: call(pull.consume, [coroutine_function], {"on_error": 5}),
        ):
            with pytest.raises((InvalidOption, jetstream.HeaderError), match=r"give|empty|a str"):
                await attempt()
        for make in (lambda: At("x"), lambda: Cron(None), lambda: Every("x")):  # type: ignore[arg-type]
            with pytest.raises(InvalidOption, match="give"):
                make()


async def test_what_has_a_wildcard_or_nothing_in_it(server: ServerProcess) -> None:
    """The right type with nothing in it is as far from what was meant."""
    async with open_connection(server.url) as connection:
        js = JetStream(connection)
        for call_ in (js.get_last_message("TYPES", ""), js.next_message("TYPES", 1, "")):
            with pytest.raises(InvalidName, match="empty"):
                await call_
        with pytest.raises(InvalidOption, match="group is empty"):
            await js.unpin_consumer("TYPES", "pull", "")
        with pytest.raises(InvalidOption, match="action"):
            await js.put_consumer("TYPES", jetstream.ConsumerConfig(), "make")


@pytest.mark.parametrize(
    "settings",
    [{"timeout": "x"}, {"domain": 5}, {"on_publish_error": coroutine_function}, {"name": 5}],
    ids=lambda settings: next(iter(settings)),
)
async def test_settings_are_wrong_before_the_connection_is(
    closed_port: int, settings: dict[str, Any]
) -> None:
    with pytest.raises((InvalidOption, jetstream.ConfigError), match=next(iter(settings))):
        async with connect(f"nats://127.0.0.1:{closed_port}", **settings):
            pass
