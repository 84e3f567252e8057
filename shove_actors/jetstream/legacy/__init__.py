"""The names of nats.go's legacy JetStream API (`nc.JetStream()`), over the new one.

For porting programs line by line. Every method names what to write instead in new code; nothing
here warns at run time. Key-value buckets and object stores are the same in both and not repeated.

    async with legacy.connect("nats://localhost:4222", publish_async_max_pending=256) as js:
        await js.add_stream(name="ORDERS", subjects=["ORDERS.*"])
        async with js.subscribe_sync("ORDERS.*", durable="MONITOR", max_deliver=3) as sub:
            message = await sub.next_msg(timeout=5.0)
"""

from __future__ import annotations

from ._config import ConsumerConfig as ConsumerConfig
from ._context import JetStreamContext as JetStreamContext
from ._context import ack_sync as ack_sync
from ._context import connect as connect
from ._options import PullOptions as PullOptions
from ._options import QueueOptions as QueueOptions
from ._options import SubscribeOptions as SubscribeOptions
from ._subscription import PullSubscription as PullSubscription
from ._subscription import PushSubscription as PushSubscription
from ._subscription import SyncSubscription as SyncSubscription

__all__ = [
    "ConsumerConfig",
    "JetStreamContext",
    "PullOptions",
    "PullSubscription",
    "PushSubscription",
    "QueueOptions",
    "SubscribeOptions",
    "SyncSubscription",
    "ack_sync",
    "connect",
]
