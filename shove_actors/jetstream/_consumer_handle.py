"""A pull consumer, as an object: what nats.go calls `jetstream.Consumer`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import trio

from shove_actors._errors import (
    ConsumerNotFound,
    FetchTimeout,
    InvalidOption,
    NotPullConsumer,
    ShoveError,
    StreamNotFound,
)

from ._consume import Consuming, Handler, check_handler, consuming
from ._consumer import ConsumerConfig
from ._consumer_info import ConsumerInfo
from ._fetch import MAX_WAIT_S, FetchBatch, FetchOptions, fetch_options, no_wait_options
from ._message import Message
from ._messages import MessageIterator, reading
from ._pull_options import (
    ConsumeSettings,
    FetchSettings,
    GroupOptions,
    GroupSettings,
    MessagesSettings,
    reading_options,
)
from ._puller import Puller
from ._typed import check_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._context import JetStream

#: A consumer that is said to be missing is looked for once more after this long.
AGAIN_S = 0.25


class ConsumerHandle:
    """What pull and push consumers have in common."""

    def __init__(self, js: JetStream, info: ConsumerInfo) -> None:
        self._js = js
        self.stream_name = info.stream
        self.name = info.name
        self._info = info

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of stream {self.stream_name}>"

    @property
    def cached_info(self) -> ConsumerInfo:
        """What the last answer told; asks nobody. `info` refreshes it."""
        return self._info

    @property
    def config(self) -> ConsumerConfig:
        """The configuration of `cached_info`."""
        return self._info.config

    async def info(self) -> ConsumerInfo:
        """Ask the server. Raises `ConsumerNotFound`."""
        self._info = await self._js.consumer_info(self.stream_name, self.name)
        return self._info

    @property
    def _label(self) -> str:
        return f"consumer {self.name} of stream {self.stream_name}"


class Consumer(ConsumerHandle):
    """One pull consumer. Made by `create_consumer`, `consumer` and their like, never by hand.

    Reading it: `fetch` (and `fetch_no_wait`, `fetch_list`, `next`) asks once; `messages` and
    `consume` ask ahead, for ever. All of them may go on at the same time, in this process and in
    others; each message goes to one of them.
    """

    def __init__(self, js: JetStream, info: ConsumerInfo) -> None:
        super().__init__(js, info)
        self._pins: dict[str, bytes] = {}

    @property
    def pin_id(self) -> str | None:
        """With the policy "pinned_client": what the server calls us while we are pinned.

        All readings from this handle share it."""
        for pin in self._pins.values():
            return pin.decode()
        return None

    # ------------------------------------------------------------------ one-off

    def fetch(
        self,
        count: int | None = None,
        *,
        max_bytes: int | None = None,
        max_wait: float = MAX_WAIT_S,
        **settings: Unpack[FetchSettings],
    ) -> FetchBatch:
        """One request for `count` messages, or for `max_bytes` of them; use it as a block.

            async with consumer.fetch(10, max_wait=2.0) as batch:
                async for message in batch:
                    await message.ack()

        It is over when all have come, or after `max_wait` seconds (default 30), whichever is
        first; a nearer deadline of the caller's shortens the wait, so that the server answers
        before it. `heartbeat` (default 5 s from a wait of 10 s on) notices a silent server early.
        Bytes count subject, reply subject, headers and payload. Raises `InvalidOption`; see
        `FetchBatch` for everything else.
        """
        check_settings(FetchSettings, settings)
        return self._fetch(
            fetch_options(
                count,
                max_bytes=max_bytes,
                max_wait=max_wait,
                heartbeat=settings.get("heartbeat"),
                groups=self._groups(settings),
            )
        )

    def fetch_no_wait(self, count: int, **settings: Unpack[GroupSettings]) -> FetchBatch:
        """As `fetch`, but only what is there now."""
        check_settings(GroupSettings, settings)
        return self._fetch(no_wait_options(count, groups=self._groups(settings)))

    async def fetch_list(
        self,
        count: int | None = None,
        *,
        max_bytes: int | None = None,
        max_wait: float = MAX_WAIT_S,
        **settings: Unpack[FetchSettings],
    ) -> list[Message]:
        """As `fetch`, all of it at once; what `FetchBatch.error` would be is raised.

        Cancelled, what has come is not settled and comes again after `ack_wait`.
        """
        batch = self.fetch(count, max_bytes=max_bytes, max_wait=max_wait, **settings)
        async with batch:
            found = [message async for message in batch]
        if batch.error is not None:
            raise batch.error
        return found

    async def next(
        self, max_wait: float = MAX_WAIT_S, **settings: Unpack[FetchSettings]
    ) -> Message:
        """The next message. Raises `FetchTimeout` when none came, or what `fetch` ended with.

        A scope of the caller's that ends before `max_wait` is over ends it, as it ends any call.
        """
        asked_at = trio.current_time()
        found = await self.fetch_list(1, max_wait=max_wait, **settings)
        if not found:
            # Cut short by a nearer deadline of the caller's: that one is to be heard.
            if trio.current_effective_deadline() < asked_at + max_wait:
                await trio.sleep_until(trio.current_effective_deadline())
            raise FetchTimeout(f"no message from {self._label} within {max_wait:g} s")
        return found[0]

    # ------------------------------------------------------------------ continuous

    def messages(
        self, **settings: Unpack[MessagesSettings]
    ) -> AbstractAsyncContextManager[MessageIterator]:
        """Messages for as long as the block lasts, asked for ahead of time.

            async with consumer.messages() as messages:
                async for message in messages:
                    await message.ack()

        * `max_messages` (default 500): how many may be asked for or buffered; more are asked for
          below `threshold_messages` (default: half). `request_max_bytes` limits each request.
        * `max_bytes`: the same in bytes, in place of messages, with `threshold_bytes`.
        * `expiry` (default 30 s): how long a request stays with the server. `heartbeat` (default:
          half of it): after two missed ones the requests are sent again.
        * `stop_after`: end after so many, and never ask for more.
        * `on_error(error)` hears of what went wrong and was mended: missed heartbeats, another
          leader, a server going down. One that raises ends the reading with that.
        * `raise_on_missing_heartbeat`: reading raises `NoHeartbeat`; it may be gone on with.
        * `nak_on_stop`: what is buffered when it ends is delivered again at once.
        * `eager=False`: ask when the first message is read.
        * `group` and what follows: for consumers with priority groups, which need it.

        Raises `InvalidOption` at once; waits for the connection when entered.
        """
        puller = self._puller(MessagesSettings, settings)
        return reading(puller, eager=settings.get("eager", True))

    def consume(
        self, handler: Handler, **settings: Unpack[ConsumeSettings]
    ) -> AbstractAsyncContextManager[Consuming]:
        """Call `await handler(message)` for one message at a time, in order.

            async def handle(message: Message) -> None:
                print(message.data)
                await message.ack()

            async with consumer.consume(handle):
                await trio.sleep_forever()

        Nothing is acknowledged by itself. An exception of the handler ends the loop and leaves the
        block, and so does a terminal error (see `MessageIterator.receive`), of which `on_error`
        hears first. Leaving the block lets the handler at work finish. Options: see `messages`;
        a message counts as buffered until its handler has returned.
        """
        check_handler(handler)
        return consuming(self._puller(ConsumeSettings, settings), handler)

    # ------------------------------------------------------------------ parts

    def _groups(self, settings: GroupSettings) -> GroupOptions:
        group, known = settings.get("group"), self._info.config.priority_groups
        if group is None and known:
            raise InvalidOption(
                f"{self._label} has priority groups; name one of them: group={known[0]!r}"
            )
        if group is not None and group not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise InvalidOption(f"{self._label} has no priority group {group!r}; {has}")
        return GroupOptions(
            group=group,
            min_pending=settings.get("min_pending"),
            min_ack_pending=settings.get("min_ack_pending"),
            priority=settings.get("priority"),
        )

    @property
    def _next_subject(self) -> bytes:
        return f"{self._js.prefix}CONSUMER.MSG.NEXT.{self.stream_name}.{self.name}".encode()

    def _fetch(self, options: FetchOptions) -> FetchBatch:
        return FetchBatch(
            self._js.connection, self._next_subject, options, name=self._label, pins=self._pins
        )

    def _puller(self, kind: type, settings: ConsumeSettings | MessagesSettings) -> Puller:
        asked: MessagesSettings = {**settings}
        return Puller(
            self._js.connection,
            self._next_subject,
            reading_options(kind, settings, groups=self._groups(settings)),
            name=self._label,
            look_up=self._look_up,
            pins=self._pins,
            on_error=settings.get("on_error"),
            nak_on_stop=settings.get("nak_on_stop", False),
            raise_on_missing_heartbeat=asked.get("raise_on_missing_heartbeat", False),
        )

    async def _look_up(self) -> Exception | None:
        """Is it there, and one to pull from? A cluster that is electing may say no at first."""
        try:
            try:
                info = await self.info()
            except (ConsumerNotFound, StreamNotFound):
                await trio.sleep(AGAIN_S)
                info = await self.info()
        except ShoveError as exc:
            return exc
        if info.config.deliver_subject:
            return NotPullConsumer(f"{self._label} is a push consumer; use push_consumer")
        return None
