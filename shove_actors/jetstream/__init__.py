"""A Trio-native NATS JetStream client. Usable alone; knows nothing of topics or brokers."""

from shove_actors._errors import AlreadyAcked as AlreadyAcked
from shove_actors._errors import AlreadyConsuming as AlreadyConsuming
from shove_actors._errors import ApiError as ApiError
from shove_actors._errors import ApiMessageTooLarge as ApiMessageTooLarge
from shove_actors._errors import ApiStreamFull as ApiStreamFull
from shove_actors._errors import AtomicBatchError as AtomicBatchError
from shove_actors._errors import AuthenticationError as AuthenticationError
from shove_actors._errors import BadBucket as BadBucket
from shove_actors._errors import BadObjectMeta as BadObjectMeta
from shove_actors._errors import BadRequest as BadRequest
from shove_actors._errors import BrokerClosed as BrokerClosed
from shove_actors._errors import BucketExists as BucketExists
from shove_actors._errors import BucketNotFound as BucketNotFound
from shove_actors._errors import CantGetBucket as CantGetBucket
from shove_actors._errors import ConfigError as ConfigError
from shove_actors._errors import ConnectionClosed as ConnectionClosed
from shove_actors._errors import ConnectionError as ConnectionError
from shove_actors._errors import ConsumerCreateFailed as ConsumerCreateFailed
from shove_actors._errors import ConsumerDeleted as ConsumerDeleted
from shove_actors._errors import ConsumerDoesNotExist as ConsumerDoesNotExist
from shove_actors._errors import ConsumerExists as ConsumerExists
from shove_actors._errors import ConsumerInvalidReset as ConsumerInvalidReset
from shove_actors._errors import ConsumerMismatch as ConsumerMismatch
from shove_actors._errors import ConsumerNotFound as ConsumerNotFound
from shove_actors._errors import DigestMismatch as DigestMismatch
from shove_actors._errors import Disconnected as Disconnected
from shove_actors._errors import FetchDisconnected as FetchDisconnected
from shove_actors._errors import FetchTimeout as FetchTimeout
from shove_actors._errors import FilterError as FilterError
from shove_actors._errors import HeaderError as HeaderError
from shove_actors._errors import HistoryTooLarge as HistoryTooLarge
from shove_actors._errors import InvalidAck as InvalidAck
from shove_actors._errors import InvalidKey as InvalidKey
from shove_actors._errors import InvalidName as InvalidName
from shove_actors._errors import InvalidOption as InvalidOption
from shove_actors._errors import IteratorClosed as IteratorClosed
from shove_actors._errors import JetStreamError as JetStreamError
from shove_actors._errors import JetStreamNotEnabled as JetStreamNotEnabled
from shove_actors._errors import JetStreamNotEnabledForAccount as JetStreamNotEnabledForAccount
from shove_actors._errors import KeyExists as KeyExists
from shove_actors._errors import KeyNotFound as KeyNotFound
from shove_actors._errors import KeyRevisionMismatch as KeyRevisionMismatch
from shove_actors._errors import KvError as KvError
from shove_actors._errors import LeadershipChanged as LeadershipChanged
from shove_actors._errors import MarkerTtlNotSupported as MarkerTtlNotSupported
from shove_actors._errors import MaxBytesExceeded as MaxBytesExceeded
from shove_actors._errors import MaxConsumersReached as MaxConsumersReached
from shove_actors._errors import MessageDeleteFailed as MessageDeleteFailed
from shove_actors._errors import MessageNotFound as MessageNotFound
from shove_actors._errors import MessageTooLarge as MessageTooLarge
from shove_actors._errors import NoHeartbeat as NoHeartbeat
from shove_actors._errors import NoLinkToDeleted as NoLinkToDeleted
from shove_actors._errors import NoLinkToLink as NoLinkToLink
from shove_actors._errors import NoResponders as NoResponders
from shove_actors._errors import NoStreamResponse as NoStreamResponse
from shove_actors._errors import NotConnected as NotConnected
from shove_actors._errors import NotJetStreamMessage as NotJetStreamMessage
from shove_actors._errors import NotPullConsumer as NotPullConsumer
from shove_actors._errors import NotPushConsumer as NotPushConsumer
from shove_actors._errors import ObjectChanged as ObjectChanged
from shove_actors._errors import ObjectCorrupt as ObjectCorrupt
from shove_actors._errors import ObjectError as ObjectError
from shove_actors._errors import ObjectExists as ObjectExists
from shove_actors._errors import ObjectNotFound as ObjectNotFound
from shove_actors._errors import PermissionDenied as PermissionDenied
from shove_actors._errors import PinIdMismatch as PinIdMismatch
from shove_actors._errors import PublisherClosed as PublisherClosed
from shove_actors._errors import PublishTimeout as PublishTimeout
from shove_actors._errors import RequestLimitExceeded as RequestLimitExceeded
from shove_actors._errors import RequestTimeout as RequestTimeout
from shove_actors._errors import ScheduleError as ScheduleError
from shove_actors._errors import ServerShutdown as ServerShutdown
from shove_actors._errors import ServerTooOld as ServerTooOld
from shove_actors._errors import ShoveError as ShoveError
from shove_actors._errors import StreamFull as StreamFull
from shove_actors._errors import StreamMismatch as StreamMismatch
from shove_actors._errors import StreamNameInUse as StreamNameInUse
from shove_actors._errors import StreamNotFound as StreamNotFound
from shove_actors._errors import StreamSealed as StreamSealed
from shove_actors._errors import TLSError as TLSError
from shove_actors._errors import TooManyStalled as TooManyStalled
from shove_actors._errors import UnavailableError as UnavailableError
from shove_actors._errors import UpdateMetaDeleted as UpdateMetaDeleted
from shove_actors._errors import UsageError as UsageError
from shove_actors._errors import WrongLastMsgId as WrongLastMsgId
from shove_actors._errors import WrongLastSequence as WrongLastSequence

from ._account import AccountInfo as AccountInfo
from ._account import AccountLimits as AccountLimits
from ._account import AccountTier as AccountTier
from ._account import ApiStats as ApiStats
from ._atomic_batch import AtomicBatch as AtomicBatch
from ._clock import ServerClock as ServerClock
from ._clock import parse_time_ns as parse_time_ns
from ._config import ChooseServer as ChooseServer
from ._config import NatsConfig as NatsConfig
from ._config import ServerAddress as ServerAddress
from ._connection import Connection as Connection
from ._consume import Consuming as Consuming
from ._consumer import AckPolicy as AckPolicy
from ._consumer import ConsumerConfig as ConsumerConfig
from ._consumer import DeliverPolicy as DeliverPolicy
from ._consumer import PriorityPolicy as PriorityPolicy
from ._consumer import ReplayPolicy as ReplayPolicy
from ._consumer_handle import Consumer as Consumer
from ._consumer_info import ConsumerInfo as ConsumerInfo
from ._consumer_info import PauseState as PauseState
from ._consumer_info import PriorityGroupState as PriorityGroupState
from ._consumer_info import SequencePair as SequencePair
from ._context import JetStream as JetStream
from ._context_options import JetStreamOptions as JetStreamOptions
from ._event_stream import EventStream as EventStream
from ._events import ConnectionEvent as ConnectionEvent
from ._events import ConnectionEventKind as ConnectionEventKind
from ._fetch import FetchBatch as FetchBatch
from ._given_credentials import Credentials as Credentials
from ._headers import Headers as Headers
from ._headers import encode_headers as encode_headers
from ._headers import parse_headers as parse_headers
from ._kv import KeyValue as KeyValue
from ._kv_config import KeyValueConfig as KeyValueConfig
from ._kv_entry import KeyOperation as KeyOperation
from ._kv_entry import KeyValueEntry as KeyValueEntry
from ._kv_status import KeyValueStatus as KeyValueStatus
from ._kv_watch import KeyLister as KeyLister
from ._lister import Lister as Lister
from ._message import Message as Message
from ._message import MessageMetadata as MessageMetadata
from ._messages import MessageIterator as MessageIterator
from ._object_config import ObjectStoreConfig as ObjectStoreConfig
from ._object_get import ObjectReader as ObjectReader
from ._object_info import ObjectInfo as ObjectInfo
from ._object_info import ObjectLink as ObjectLink
from ._object_source import ObjectSource as ObjectSource
from ._object_status import ObjectStoreStatus as ObjectStoreStatus
from ._object_store import ObjectStore as ObjectStore
from ._open import connect as connect
from ._open import open_connection as open_connection
from ._ordered import OrderedConsumer as OrderedConsumer
from ._pub_ack import PubAck as PubAck
from ._publish_future import PublishFuture as PublishFuture
from ._publish_options import PublishOptions as PublishOptions
from ._publish_options import PubMessage as PubMessage
from ._pull_ledger import PullLedger as PullLedger
from ._pull_line import PullLine as PullLine
from ._pull_status import Verdict as Verdict
from ._pull_status import verdict_of as verdict_of
from ._push import PushConsumer as PushConsumer
from ._raw_message import RawMessage as RawMessage
from ._redact import redact as redact
from ._request import Reply as Reply
from ._schedules import At as At
from ._schedules import Cron as Cron
from ._schedules import Every as Every
from ._settings import ConnectionSettings as ConnectionSettings
from ._settings import ConnectSettings as ConnectSettings
from ._store_watcher import Watcher as Watcher
from ._stream import Compression as Compression
from ._stream import DiscardPolicy as DiscardPolicy
from ._stream import PersistMode as PersistMode
from ._stream import RetentionPolicy as RetentionPolicy
from ._stream import StorageType as StorageType
from ._stream import StreamConfig as StreamConfig
from ._stream import StreamSettings as StreamSettings
from ._stream_handle import Stream as Stream
from ._stream_info import ClusterInfo as ClusterInfo
from ._stream_info import PeerInfo as PeerInfo
from ._stream_info import SourceInfo as SourceInfo
from ._stream_info import StreamAlternate as StreamAlternate
from ._stream_info import StreamInfo as StreamInfo
from ._stream_info import StreamState as StreamState
from ._stream_parts import ConsumerLimits as ConsumerLimits
from ._stream_parts import ExternalStream as ExternalStream
from ._stream_parts import Placement as Placement
from ._stream_parts import RePublish as RePublish
from ._stream_parts import StreamSource as StreamSource
from ._stream_parts import SubjectTransform as SubjectTransform
from ._wire import AckParts as AckParts
from ._wire import ack_numbers as ack_numbers
from ._wire import header_value as header_value
from ._wire import hpub as hpub
from ._wire import parse_ack as parse_ack
from ._wire import pub as pub
from ._wire import status_of as status_of

__all__ = [
    "AccountInfo",
    "AccountLimits",
    "AccountTier",
    "AckParts",
    "AckPolicy",
    "AlreadyAcked",
    "AlreadyConsuming",
    "ApiError",
    "ApiMessageTooLarge",
    "ApiStats",
    "ApiStreamFull",
    "At",
    "AtomicBatch",
    "AtomicBatchError",
    "AuthenticationError",
    "BadBucket",
    "BadObjectMeta",
    "BadRequest",
    "BrokerClosed",
    "BucketExists",
    "BucketNotFound",
    "CantGetBucket",
    "ChooseServer",
    "ClusterInfo",
    "Compression",
    "ConfigError",
    "ConnectSettings",
    "Connection",
    "ConnectionClosed",
    "ConnectionError",
    "ConnectionEvent",
    "ConnectionEventKind",
    "ConnectionSettings",
    "Consumer",
    "ConsumerConfig",
    "ConsumerCreateFailed",
    "ConsumerDeleted",
    "ConsumerDoesNotExist",
    "ConsumerExists",
    "ConsumerInfo",
    "ConsumerInvalidReset",
    "ConsumerLimits",
    "ConsumerMismatch",
    "ConsumerNotFound",
    "Consuming",
    "Credentials",
    "Cron",
    "DeliverPolicy",
    "DigestMismatch",
    "DiscardPolicy",
    "Disconnected",
    "EventStream",
    "Every",
    "ExternalStream",
    "FetchBatch",
    "FetchDisconnected",
    "FetchTimeout",
    "FilterError",
    "HeaderError",
    "Headers",
    "HistoryTooLarge",
    "InvalidAck",
    "InvalidKey",
    "InvalidName",
    "InvalidOption",
    "IteratorClosed",
    "JetStream",
    "JetStreamError",
    "JetStreamNotEnabled",
    "JetStreamNotEnabledForAccount",
    "JetStreamOptions",
    "KeyExists",
    "KeyLister",
    "KeyNotFound",
    "KeyOperation",
    "KeyRevisionMismatch",
    "KeyValue",
    "KeyValueConfig",
    "KeyValueEntry",
    "KeyValueStatus",
    "KvError",
    "LeadershipChanged",
    "Lister",
    "MarkerTtlNotSupported",
    "MaxBytesExceeded",
    "MaxConsumersReached",
    "Message",
    "MessageDeleteFailed",
    "MessageIterator",
    "MessageMetadata",
    "MessageNotFound",
    "MessageTooLarge",
    "NatsConfig",
    "NoHeartbeat",
    "NoLinkToDeleted",
    "NoLinkToLink",
    "NoResponders",
    "NoStreamResponse",
    "NotConnected",
    "NotJetStreamMessage",
    "NotPullConsumer",
    "NotPushConsumer",
    "ObjectChanged",
    "ObjectCorrupt",
    "ObjectError",
    "ObjectExists",
    "ObjectInfo",
    "ObjectLink",
    "ObjectNotFound",
    "ObjectReader",
    "ObjectSource",
    "ObjectStore",
    "ObjectStoreConfig",
    "ObjectStoreStatus",
    "OrderedConsumer",
    "PauseState",
    "PeerInfo",
    "PermissionDenied",
    "PersistMode",
    "PinIdMismatch",
    "Placement",
    "PriorityGroupState",
    "PriorityPolicy",
    "PubAck",
    "PubMessage",
    "PublishFuture",
    "PublishOptions",
    "PublishTimeout",
    "PublisherClosed",
    "PullLedger",
    "PullLine",
    "PushConsumer",
    "RawMessage",
    "RePublish",
    "ReplayPolicy",
    "Reply",
    "RequestLimitExceeded",
    "RequestTimeout",
    "RetentionPolicy",
    "ScheduleError",
    "SequencePair",
    "ServerAddress",
    "ServerClock",
    "ServerShutdown",
    "ServerTooOld",
    "ShoveError",
    "SourceInfo",
    "StorageType",
    "Stream",
    "StreamAlternate",
    "StreamConfig",
    "StreamFull",
    "StreamInfo",
    "StreamMismatch",
    "StreamNameInUse",
    "StreamNotFound",
    "StreamSealed",
    "StreamSettings",
    "StreamSource",
    "StreamState",
    "SubjectTransform",
    "TLSError",
    "TooManyStalled",
    "UnavailableError",
    "UpdateMetaDeleted",
    "UsageError",
    "Verdict",
    "Watcher",
    "WrongLastMsgId",
    "WrongLastSequence",
    "ack_numbers",
    "connect",
    "encode_headers",
    "header_value",
    "hpub",
    "open_connection",
    "parse_ack",
    "parse_headers",
    "parse_time_ns",
    "pub",
    "redact",
    "status_of",
    "verdict_of",
]
