"""A Trio-native NATS JetStream client. Usable alone; knows nothing of topics or brokers."""

from ._clock import ServerClock as ServerClock
from ._clock import parse_time_ns as parse_time_ns
from ._config import NatsConfig as NatsConfig
from ._connection import Connection as Connection
from ._consumer import ConsumerConfig as ConsumerConfig
from ._consumer import ConsumerInfo as ConsumerInfo
from ._context import JetStream as JetStream
from ._events import ConnectionEvent as ConnectionEvent
from ._open import connect as connect
from ._raw_message import RawMessage as RawMessage
from ._redact import redact as redact
from ._request import Reply as Reply
from ._stream import StreamConfig as StreamConfig
from ._stream import StreamInfo as StreamInfo
from ._wire import AckParts as AckParts
from ._wire import ack_numbers as ack_numbers
from ._wire import header_value as header_value
from ._wire import hpub as hpub
from ._wire import parse_ack as parse_ack
from ._wire import pub as pub
from ._wire import status_of as status_of

__all__ = [
    "AckParts",
    "Connection",
    "ConnectionEvent",
    "ConsumerConfig",
    "ConsumerInfo",
    "JetStream",
    "NatsConfig",
    "RawMessage",
    "Reply",
    "ServerClock",
    "StreamConfig",
    "StreamInfo",
    "ack_numbers",
    "connect",
    "header_value",
    "hpub",
    "parse_ack",
    "parse_time_ns",
    "pub",
    "redact",
    "status_of",
]
