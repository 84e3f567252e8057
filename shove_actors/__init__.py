"""shove_actors: reliable messaging on NATS JetStream as supervised Trio actors.

    publish -> egress -> JetStream -> ingress -> consumer -> handler
                                                    |
                                    verdict = route(outcome, ...)      (a pure function)
                                                    |
                        ack  |  hop to hold queue  |  hop to DLQ  |  delayed nak

Floors; imports go down only, and import-linter holds it:

    face        this module, __main__, cli, embedded, testing
    runtime     broker, publisher, consumers, groups, hold movers, leases
    backends    the port; nats; memory
    messaging   topics, topologies, codecs, outcomes, routing          (pure)
    jetstream   the Trio-native client                                 (usable alone)
    actors      supervision                                            (usable alone)
    errors

Importing the package loads none of these floors: each name is fetched from its home the first time
it is asked for (PEP 562). So `import shove_actors.actors`, which needs only Trio, does not load the
NATS client, and a program pays for what it uses. Type checkers and editors see plain imports.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from . import actors as actors
    from . import jetstream as jetstream
    from ._errors import ActorError as ActorError
    from ._errors import AuthenticationError as AuthenticationError
    from ._errors import BatchError as BatchError
    from ._errors import BrokerClosed as BrokerClosed
    from ._errors import CodecError as CodecError
    from ._errors import ConfigError as ConfigError
    from ._errors import ConnectionError as ConnectionError
    from ._errors import DecodeError as DecodeError
    from ._errors import EmbeddedServerError as EmbeddedServerError
    from ._errors import EncodeError as EncodeError
    from ._errors import FeatureUnavailable as FeatureUnavailable
    from ._errors import HandlerError as HandlerError
    from ._errors import HeaderError as HeaderError
    from ._errors import JetStreamNotEnabled as JetStreamNotEnabled
    from ._errors import MessageTooLarge as MessageTooLarge
    from ._errors import NotConnected as NotConnected
    from ._errors import PermissionDenied as PermissionDenied
    from ._errors import PublishError as PublishError
    from ._errors import PublishForbidden as PublishForbidden
    from ._errors import PublishRefused as PublishRefused
    from ._errors import PublishUnknown as PublishUnknown
    from ._errors import RequestTimeout as RequestTimeout
    from ._errors import ReshardTimeout as ReshardTimeout
    from ._errors import ReshardUnderWay as ReshardUnderWay
    from ._errors import ShoveError as ShoveError
    from ._errors import StreamFull as StreamFull
    from ._errors import TLSError as TLSError
    from ._errors import TopicNotDeclared as TopicNotDeclared
    from ._errors import TopologyError as TopologyError
    from ._errors import UnavailableError as UnavailableError
    from ._errors import UsageError as UsageError
    from .backends.memory import MemoryConfig as MemoryConfig
    from .backends.memory import MemoryServer as MemoryServer
    from .backends.nats import NatsConfig as NatsConfig
    from .embedded import EmbeddedServer as EmbeddedServer
    from .embedded import embedded_server as embedded_server
    from .messaging import RAW as RAW
    from .messaging import AuditRecord as AuditRecord
    from .messaging import BytesCodec as BytesCodec
    from .messaging import Codec as Codec
    from .messaging import DeadMetadata as DeadMetadata
    from .messaging import DeathReason as DeathReason
    from .messaging import Defer as Defer
    from .messaging import JsonCodec as JsonCodec
    from .messaging import MessageMetadata as MessageMetadata
    from .messaging import MsgpackCodec as MsgpackCodec
    from .messaging import NatsStreamConfig as NatsStreamConfig
    from .messaging import Outcome as Outcome
    from .messaging import PoisonedKey as PoisonedKey
    from .messaging import Reject as Reject
    from .messaging import Retention as Retention
    from .messaging import Retry as Retry
    from .messaging import SequencedTopic as SequencedTopic
    from .messaging import SequenceFailure as SequenceFailure
    from .messaging import Storage as Storage
    from .messaging import Topic as Topic
    from .messaging import Topology as Topology
    from .messaging import TopologyBuilder as TopologyBuilder
    from .runtime import AuditEntry as AuditEntry
    from .runtime import AuditLog as AuditLog
    from .runtime import AutoscalerConfig as AutoscalerConfig
    from .runtime import Broker as Broker
    from .runtime import ConsumerGroup as ConsumerGroup
    from .runtime import ConsumerSupervisor as ConsumerSupervisor
    from .runtime import DeadLetter as DeadLetter
    from .runtime import DeadLettersDone as DeadLettersDone
    from .runtime import ExitCode as ExitCode
    from .runtime import LetterFilter as LetterFilter
    from .runtime import Load as Load
    from .runtime import Pipeline as Pipeline
    from .runtime import ProportionalStrategy as ProportionalStrategy
    from .runtime import Publisher as Publisher
    from .runtime import PublishReceipt as PublishReceipt
    from .runtime import ScalingStrategy as ScalingStrategy
    from .runtime import SupervisorOutcome as SupervisorOutcome
    from .runtime import Telemetry as Telemetry
    from .runtime import ThresholdStrategy as ThresholdStrategy
    from .runtime import audited as audited
    from .runtime import open_broker as open_broker

__all__ = [
    "RAW",
    "ActorError",
    "AuditEntry",
    "AuditLog",
    "AuditRecord",
    "AuthenticationError",
    "AutoscalerConfig",
    "BatchError",
    "Broker",
    "BrokerClosed",
    "BytesCodec",
    "Codec",
    "CodecError",
    "ConfigError",
    "ConnectionError",
    "ConsumerGroup",
    "ConsumerSupervisor",
    "DeadLetter",
    "DeadLettersDone",
    "DeadMetadata",
    "DeathReason",
    "DecodeError",
    "Defer",
    "EmbeddedServer",
    "EmbeddedServerError",
    "EncodeError",
    "ExitCode",
    "FeatureUnavailable",
    "HandlerError",
    "HeaderError",
    "JetStreamNotEnabled",
    "JsonCodec",
    "LetterFilter",
    "Load",
    "MemoryConfig",
    "MemoryServer",
    "MessageMetadata",
    "MessageTooLarge",
    "MsgpackCodec",
    "NatsConfig",
    "NatsStreamConfig",
    "NotConnected",
    "Outcome",
    "PermissionDenied",
    "Pipeline",
    "PoisonedKey",
    "ProportionalStrategy",
    "PublishError",
    "PublishForbidden",
    "PublishReceipt",
    "PublishRefused",
    "PublishUnknown",
    "Publisher",
    "Reject",
    "RequestTimeout",
    "ReshardTimeout",
    "ReshardUnderWay",
    "Retention",
    "Retry",
    "ScalingStrategy",
    "SequenceFailure",
    "SequencedTopic",
    "ShoveError",
    "Storage",
    "StreamFull",
    "SupervisorOutcome",
    "TLSError",
    "Telemetry",
    "ThresholdStrategy",
    "Topic",
    "TopicNotDeclared",
    "Topology",
    "TopologyBuilder",
    "TopologyError",
    "UnavailableError",
    "UsageError",
    "actors",
    "audited",
    "embedded_server",
    "jetstream",
    "open_broker",
]

#: Where each name lives. `tests/test_lazy_import.py` holds this, `__all__` and the imports above
#: together.
_HOMES = {
    ".": (
        "actors",
        "jetstream",
    ),
    "._errors": (
        "ActorError",
        "AuthenticationError",
        "BatchError",
        "BrokerClosed",
        "CodecError",
        "ConfigError",
        "ConnectionError",
        "DecodeError",
        "EmbeddedServerError",
        "EncodeError",
        "FeatureUnavailable",
        "HandlerError",
        "HeaderError",
        "JetStreamNotEnabled",
        "MessageTooLarge",
        "NotConnected",
        "PermissionDenied",
        "PublishError",
        "PublishForbidden",
        "PublishRefused",
        "PublishUnknown",
        "RequestTimeout",
        "ReshardTimeout",
        "ReshardUnderWay",
        "ShoveError",
        "StreamFull",
        "TLSError",
        "TopicNotDeclared",
        "TopologyError",
        "UnavailableError",
        "UsageError",
    ),
    ".backends.memory": (
        "MemoryConfig",
        "MemoryServer",
    ),
    ".backends.nats": ("NatsConfig",),
    ".embedded": (
        "EmbeddedServer",
        "embedded_server",
    ),
    ".messaging": (
        "RAW",
        "AuditRecord",
        "BytesCodec",
        "Codec",
        "DeadMetadata",
        "DeathReason",
        "Defer",
        "JsonCodec",
        "MessageMetadata",
        "MsgpackCodec",
        "NatsStreamConfig",
        "Outcome",
        "PoisonedKey",
        "Reject",
        "Retention",
        "Retry",
        "SequencedTopic",
        "SequenceFailure",
        "Storage",
        "Topic",
        "Topology",
        "TopologyBuilder",
    ),
    ".runtime": (
        "AuditEntry",
        "AuditLog",
        "AutoscalerConfig",
        "Broker",
        "ConsumerGroup",
        "ConsumerSupervisor",
        "DeadLetter",
        "DeadLettersDone",
        "ExitCode",
        "LetterFilter",
        "Load",
        "Pipeline",
        "ProportionalStrategy",
        "PublishReceipt",
        "Publisher",
        "ScalingStrategy",
        "SupervisorOutcome",
        "Telemetry",
        "ThresholdStrategy",
        "audited",
        "open_broker",
    ),
}

if not TYPE_CHECKING:
    # Hidden from type checkers: to them a module with `__getattr__` has every name there is.

    _HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

    def __getattr__(name):
        if name == "__version__":
            return _version()
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if home == ".":
            value = import_module(f".{name}", __name__)
        else:
            value = getattr(import_module(home, __name__), name)
        # Asked once: the next look-up finds it without coming here.
        globals()[name] = value
        return value

    def _version():
        from importlib import metadata

        try:
            return metadata.version("shove-actors")
        except metadata.PackageNotFoundError:
            return "0+unknown"  # a folder on the path, which nobody installed

    def __dir__():
        return sorted({*globals(), *__all__, "__version__"})
