"""How far an ordered reading has come, and the consumer that goes on from there. No tasks."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict

import trio

from shove_actors._errors import InvalidOption, ShoveError, StreamNotFound

from ._consumer import ConsumerConfig, DeliverPolicy, ReplayPolicy
from ._consumer_info import ConsumerInfo
from ._message import Message
from ._options import check_count, check_seconds
from ._typed import check_settings
from ._wire import check_name

if TYPE_CHECKING:
    from ._context import JetStream

INACTIVE_S = 300.0
#: How long taking back a consumer may take; the server removes it by itself anyway.
DELETE_S = 2.0


class OrderedSettings(TypedDict, total=False):
    """The keyword arguments of `ordered_consumer`."""

    filter_subjects: Sequence[str]
    deliver_policy: DeliverPolicy
    opt_start_seq: int
    opt_start_time: datetime
    replay_policy: ReplayPolicy
    inactive_threshold: float
    headers_only: bool
    max_reset_attempts: int
    metadata: dict[str, str]
    name_prefix: str


class OrderedState:
    """Cursor and names. `create` makes the next consumer; what older ones send no longer counts."""

    def __init__(self, js: JetStream, stream: str, settings: OrderedSettings) -> None:
        self.js = js
        self.stream = stream
        check_settings(OrderedSettings, settings)
        self._filters = tuple(settings.get("filter_subjects", ()))
        policy = settings.get("deliver_policy", "all")
        start, since = settings.get("opt_start_seq"), settings.get("opt_start_time")
        if start is not None:
            check_count("opt_start_seq", start)
            policy = "by_start_sequence" if policy == "all" else policy
        if since is not None:
            policy = "by_start_time" if policy == "all" else policy
        if (policy == "by_start_sequence") != (start is not None):
            raise InvalidOption("opt_start_seq goes with deliver_policy 'by_start_sequence'")
        if (policy == "by_start_time") != (since is not None):
            raise InvalidOption("opt_start_time goes with deliver_policy 'by_start_time'")
        self._policy = policy
        self._start, self._since = start, since
        self._replay = settings.get("replay_policy", "instant")
        self._inactive_s = check_seconds(
            "inactive_threshold", settings.get("inactive_threshold", INACTIVE_S)
        )
        self._headers_only = settings.get("headers_only", False)
        self._metadata = settings.get("metadata")
        self.max_reset_attempts = settings.get("max_reset_attempts")
        if self.max_reset_attempts is not None:
            check_count("max_reset_attempts", self.max_reset_attempts)
        prefix = settings.get("name_prefix") or "oc" + secrets.token_hex(8)
        check_name(prefix, "name_prefix")
        self._prefix = prefix
        self._serial = 0
        #: Of the last message handed over, in the stream; 0: none yet.
        self.last_seq = 0
        #: Its number among the present consumer's deliveries.
        self.consumer_seq = 0
        self.name = ""
        #: Nothing was read from the present consumer yet.
        self.fresh = False
        self.info: ConsumerInfo | None = None

    @property
    def label(self) -> str:
        return f"ordered consumer {self.name} of stream {self.stream}"

    @property
    def next_subject(self) -> bytes:
        return f"{self.js.prefix}CONSUMER.MSG.NEXT.{self.stream}.{self.name}".encode()

    async def create(self) -> ConsumerInfo:
        """Make the consumer that goes on. Raises `ApiError`, `UnavailableError` kinds."""
        self._serial += 1
        self.name = f"{self._prefix}_{self._serial}"
        self.consumer_seq = 0
        policy, start, since = self._policy, self._start, self._since
        if self.last_seq:
            await self._check_stream()
            policy, start, since = "by_start_sequence", self.last_seq + 1, None
        filters = self._filters
        if policy == "last_per_subject" and not filters:
            filters = (">",)  # the server wants one
        config = ConsumerConfig(
            name=self.name,
            deliver_policy=policy,
            opt_start_seq=start,
            opt_start_time=since,
            ack_policy="none",
            replay_policy=self._replay,
            inactive_threshold=self._inactive_s,
            filter_subject=filters[0] if len(filters) == 1 else None,
            filter_subjects=filters if len(filters) > 1 else (),
            headers_only=self._headers_only,
            num_replicas=1,
            mem_storage=True,
            metadata=self._metadata,
        )
        self.info = info = await self.js.put_consumer(self.stream, config, "create")
        if policy == "new" and not self.last_seq:
            # Its place in the stream: what is stored before the first delivery must not be lost
            # if this consumer has to be replaced. Nothing of it was delivered, so 0 is right, too.
            self._policy, self._start = "by_start_sequence", info.delivered.stream_seq + 1
        self.fresh = True
        return info

    async def _check_stream(self) -> None:
        """Is it still the stream whose messages were read? A new one counts from 1 again, and a
        consumer that starts behind all of it would be silent for ever."""
        if (await self.js.stream_info(self.stream)).last_seq < self.last_seq:
            raise StreamNotFound(
                404, 10059, f"stream {self.stream} was deleted and made again while it was read"
            )

    def accept(self, message: Message) -> bool:
        """Is it the next one? False: something is missing, or it is an older consumer's."""
        meta = message.metadata
        if meta.consumer != self.name or meta.consumer_sequence != self.consumer_seq + 1:
            return False
        self.consumer_seq += 1
        self.last_seq = meta.stream_sequence
        return True

    async def delete(self, name: str) -> None:
        """Take a consumer back. Never raises but `trio.Cancelled`."""
        if name:
            with trio.move_on_after(DELETE_S):
                try:
                    await self.js.delete_consumer(self.stream, name)
                except ShoveError:
                    # It goes by itself after `inactive_threshold`.
                    pass
