"""Every public call of the client with its parameters, and values that they cannot take.

Read from the signatures, so that a new method or parameter is covered the day it is written; an
annotation that nobody has met before fails the test until its row is here.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from shove_actors import jetstream
from shove_actors.jetstream import legacy


async def coroutine_function(argument: object) -> None:
    """What is called and never awaited where a plain function is wanted."""


def plain_function(*arguments: object) -> None:
    """What would hold everybody up where a coroutine function is wanted."""


#: One value of each kind that people confuse.
PALETTE: dict[str, object] = {
    "none": None,
    "flag": True,
    "int": 5,
    "float": 2.5,
    "text": "x",
    "bytes": b"x",
    "numbers": [1],
    "texts": ["x"],
    "mapping of int": {"a": 5},
    "mapping of text": {"a": "b"},
    "moment": datetime.now(timezone.utc) + timedelta(seconds=60),
    "function": plain_function,
    "coroutine function": coroutine_function,
    "object": object(),
}

_FUNCTION = {"function"}
#: What of the palette fits an annotation (but for "| None", which is read). A name that is right,
#: but unknown to the server, counts as fitting here: it is not a matter of types.
FITS: dict[str, set[str]] = {
    "bool": {"flag"},
    "int": {"int"},
    "float": {"int", "float"},
    "str": {"text"},
    "bytes": {"bytes"},
    "datetime": {"moment"},
    "Data": {"text", "bytes"},
    "bytes | str": {"text", "bytes"},
    "str | PubMessage": {"text"},
    "PubMessage": set(),
    "float | Literal['never']": {"int", "float"},
    "Iterable[PubMessage]": set(),
    "Sequence[str]": {"texts"},
    "tuple[str, ...]": {"texts"},
    "Sequence[float]": {"numbers"},
    "tuple[float, ...]": {"numbers"},
    "tuple[str, str]": set(),
    "Sequence[StreamSource]": set(),
    "tuple[StreamSource, ...]": set(),
    "tuple[SubjectTransform, ...]": set(),
    "Mapping[str, Any]": {"mapping of int", "mapping of text"},
    "Mapping[str, str]": {"mapping of text"},
    "dict[str, str]": {"mapping of text"},
    "HeadersInput": {"mapping of text"},
    "ObjectHeaders": {"mapping of text"},
    "ObjectSource": {"text", "bytes"},
    "str | os.PathLike[str]": {"text"},
    "Handler": {"coroutine function"},
    "Callback": {"function", "coroutine function"},
    "OnError": _FUNCTION,
    "Listener": _FUNCTION,
    "TraceHook": _FUNCTION,
    "Callable[[Exception], object]": _FUNCTION,
    "Callable[[PublishFuture, Exception], object]": _FUNCTION,
    "Callable[[PublishFuture, PubAck], object]": _FUNCTION,
    # Words: the server knows which.
    "StorageType": {"text"},
    "RetentionPolicy": {"text"},
    "DiscardPolicy": {"text"},
    "Compression": {"text"},
    "PersistMode": {"text"},
    "DeliverPolicy": {"text"},
    "AckPolicy": {"text"},
    "ReplayPolicy": {"text"},
    "PriorityPolicy": {"text"},
    # Objects of ours.
    "Connection": set(),
    "ConsumerConfig": set(),
    "NewConsumerConfig": set(),
    "ConsumerLimits": set(),
    "ExternalStream": set(),
    "JetStream": set(),
    "KeyValueConfig": set(),
    "Message": set(),
    "ObjectInfo": set(),
    "ObjectStore": set(),
    "ObjectStoreConfig": set(),
    "Placement": set(),
    "PublishOptions": {"mapping of text", "mapping of int"},
    "RePublish": set(),
    "Schedule": set(),
    "StreamConfig": set(),
    "StreamSource": set(),
    "SubjectTransform": set(),
}

#: Where the text does not say the parameter's name, what it says instead.
NAMED = {
    "headers": "header",
    "data": "the message",
    "value": "the value",
    "patterns": "pattern",
    "config": "config",
    "next_for": "subject",
    "subject_filter": "subject",
    "schedule_target": "subject",
    "schedule_source": "subject",
    "expect_last_subject": "subject",
}

#: Handles, of which the methods are called. `__init__` of those is nobody's to call.
HANDLES = (
    jetstream.JetStream,
    jetstream.Stream,
    jetstream.Consumer,
    jetstream.PushConsumer,
    jetstream.OrderedConsumer,
    jetstream.MessageIterator,
    jetstream.Consuming,
    jetstream.FetchBatch,
    jetstream.Message,
    jetstream.PublishFuture,
    jetstream.AtomicBatch,
    jetstream.KeyValue,
    jetstream.KeyLister,
    jetstream.Watcher,
    jetstream.ObjectStore,
    jetstream.ObjectReader,
    jetstream.Lister,
    jetstream.Connection,
    legacy.JetStreamContext,
    legacy.PushSubscription,
    legacy.SyncSubscription,
    legacy.PullSubscription,
)

#: What people make by hand.
RECORDS = (
    jetstream.At,
    jetstream.Every,
    jetstream.Cron,
    jetstream.PubMessage,
    jetstream.StreamConfig,
    jetstream.ConsumerConfig,
    jetstream.ConsumerLimits,
    jetstream.ExternalStream,
    jetstream.Placement,
    jetstream.RePublish,
    jetstream.StreamSource,
    jetstream.SubjectTransform,
    jetstream.KeyValueConfig,
    jetstream.ObjectStoreConfig,
    jetstream.JetStream,
    jetstream.JetStreamOptions,
    legacy.ConsumerConfig,
)

#: Not called: the runtime's side of the connection, which moves bytes of the protocol, per message
#: and unchecked; and what says how the connection lives.
OF_THE_RUNTIME = {
    "Connection.drop_session",
    "Connection.forget_subscription",
    "Connection.move_subscription",
    "Connection.needs",
    "Connection.publish",
    "Connection.redirect",
    "Connection.run",
    "Connection.subscribe",
    "Connection.unlisten",
    "Connection.unsubscribe",
    "Connection.watch_reads",
    "Connection.write",
    "Connection.write_by",
    "Connection.write_through",
}


class Parameter(NamedTuple):
    name: str
    annotation: str
    required: bool
    #: How it is given: by position, as one of several, or by keyword.
    how: str


@functools.cache
def parameters(function: Any) -> list[Parameter]:
    """With the keywords of a `**settings: Unpack[...]` one by one."""
    found = []
    for item in inspect.signature(function).parameters.values():
        annotation = str(item.annotation)
        if item.name == "self":
            continue
        if item.kind is item.VAR_KEYWORD:
            settings = _settings(annotation, function)
            for name, hint in settings.__annotations__.items():
                text = hint.__forward_arg__ if isinstance(hint, typing.ForwardRef) else str(hint)
                found.append(Parameter(name, text, False, "keyword"))
            continue
        how = {
            item.POSITIONAL_ONLY: "position",
            item.VAR_POSITIONAL: "several",
        }.get(item.kind, "keyword")
        required = item.default is item.empty and item.kind is not item.VAR_POSITIONAL
        found.append(Parameter(item.name, annotation, required, how))
    return found


def _settings(annotation: str, function: Any) -> Any:
    name = annotation.removeprefix("Unpack[").removesuffix("]")
    for module in list(_MODULES):
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(f"{function.__qualname__}: where is {name}?")


def _modules() -> Iterator[Any]:
    # The legacy options come first: theirs is another `PullOptions`.
    names = sorted(sys.modules, key=lambda name: (".legacy" not in name, name))
    for name in names:
        if name.startswith("shove_actors.jetstream"):
            yield sys.modules[name]


_MODULES = tuple(_modules())


def accepted(parameter: Parameter) -> set[str]:
    """Which of the palette it takes."""
    annotation = parameter.annotation
    optional = annotation.endswith(" | None")
    fits = FITS[annotation.removesuffix(" | None")]
    return fits | {"none"} if optional else fits


def calls() -> list[tuple[str, Any]]:
    """Every public method that takes anything, as (`Class.method`, the function)."""
    found = []
    for kind in HANDLES:
        for name, function in inspect.getmembers(kind, inspect.isfunction):
            full = f"{kind.__name__}.{name}"
            if not name.startswith("_") and full not in OF_THE_RUNTIME and parameters(function):
                found.append((full, function))
    return sorted(found, key=lambda pair: pair[0])
