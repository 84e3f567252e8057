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
"""

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
from ._errors import HandlerError as HandlerError
from ._errors import HeaderError as HeaderError
from ._errors import JetStreamNotEnabled as JetStreamNotEnabled
from ._errors import MessageTooLarge as MessageTooLarge
from ._errors import NotConnected as NotConnected
from ._errors import PublishError as PublishError
from ._errors import PublishRefused as PublishRefused
from ._errors import PublishUnknown as PublishUnknown
from ._errors import RequestTimeout as RequestTimeout
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
from .messaging import BytesCodec as BytesCodec
from .messaging import Codec as Codec
from .messaging import DeadMetadata as DeadMetadata
from .messaging import DeathReason as DeathReason
from .messaging import Defer as Defer
from .messaging import JsonCodec as JsonCodec
from .messaging import MessageMetadata as MessageMetadata
from .messaging import NatsStreamConfig as NatsStreamConfig
from .messaging import Outcome as Outcome
from .messaging import Reject as Reject
from .messaging import Retention as Retention
from .messaging import Retry as Retry
from .messaging import SequencedTopic as SequencedTopic
from .messaging import SequenceFailure as SequenceFailure
from .messaging import Storage as Storage
from .messaging import Topic as Topic
from .messaging import Topology as Topology
from .messaging import TopologyBuilder as TopologyBuilder
from .runtime import Broker as Broker
from .runtime import ConsumerGroup as ConsumerGroup
from .runtime import ConsumerSupervisor as ConsumerSupervisor
from .runtime import ExitCode as ExitCode
from .runtime import Pipeline as Pipeline
from .runtime import Publisher as Publisher
from .runtime import PublishReceipt as PublishReceipt
from .runtime import SupervisorOutcome as SupervisorOutcome
from .runtime import open_broker as open_broker

__all__ = [
    "RAW",
    "ActorError",
    "AuthenticationError",
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
    "DeadMetadata",
    "DeathReason",
    "DecodeError",
    "Defer",
    "EmbeddedServer",
    "EmbeddedServerError",
    "EncodeError",
    "ExitCode",
    "HandlerError",
    "HeaderError",
    "JetStreamNotEnabled",
    "JsonCodec",
    "MemoryConfig",
    "MemoryServer",
    "MessageMetadata",
    "MessageTooLarge",
    "NatsConfig",
    "NatsStreamConfig",
    "NotConnected",
    "Outcome",
    "Pipeline",
    "PublishError",
    "PublishReceipt",
    "PublishRefused",
    "PublishUnknown",
    "Publisher",
    "Reject",
    "RequestTimeout",
    "Retention",
    "Retry",
    "SequenceFailure",
    "SequencedTopic",
    "ShoveError",
    "Storage",
    "StreamFull",
    "SupervisorOutcome",
    "TLSError",
    "Topic",
    "TopicNotDeclared",
    "Topology",
    "TopologyBuilder",
    "TopologyError",
    "UnavailableError",
    "UsageError",
    "actors",
    "embedded_server",
    "jetstream",
    "open_broker",
]
