"""The JetStream API over a connection: streams, consumers, stored messages."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
import trio

from shove_actors._errors import (
    ApiError,
    JetStreamNotEnabled,
    MessageNotFound,
    NoResponders,
    RequestTimeout,
)

from ._api_errors import NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT, api_error
from ._clock import ServerClock
from ._connection import Connection
from ._consumer import ConsumerConfig, ConsumerInfo
from ._stream import StreamConfig, StreamInfo
from ._wire import check_name

#: A deletion failed, for whatever reason; there is no such sequence (any more).
_DELETE_FAILED = frozenset({10057, 10043})

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class RawMessage:
    """A stored message, read without consuming it. `data` is always bytes."""

    subject: str
    sequence: int
    data: bytes
    header_block: bytes | None
    time: str


class JetStream:
    """JetStream's management API. Every call is one request with the connection's time-out.

    `domain` or `api_prefix` select where the API lives; giving both is a `ValueError`.
    Errors: `ApiError` and its subclasses for what the server refuses, `JetStreamNotEnabled` when
    nobody answers for JetStream, `RequestTimeout`, `ConnectionError`. Cancelling a call may leave
    it carried out.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        domain: str | None = None,
        api_prefix: str | None = None,
        timeout: float | None = None,
    ) -> None:
        if domain is not None and api_prefix is not None:
            raise ValueError("domain and api_prefix exclude each other; give one of them")
        self.connection = connection
        self.timeout = timeout
        #: Fed by every answer that carries the server's time.
        self.clock = ServerClock()
        if domain is not None:
            self.prefix = f"$JS.{domain}.API."
        elif api_prefix is not None:
            self.prefix = api_prefix if api_prefix.endswith(".") else api_prefix + "."
        else:
            self.prefix = "$JS.API."

    async def api(self, op: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One API request. Raises the exception for the answer's `error`."""
        payload = _encode(body) if body is not None else b""
        sent_at = trio.current_time()
        reply = await self.connection.request(self.prefix + op, payload, timeout=self.timeout)
        status = reply.status
        if status is not None and status[0] == 503:
            raise NoResponders(f"nobody answers {self.prefix}{op}")
        try:
            answer = _decode(reply.payload)
        except msgspec.DecodeError:
            # Somebody who is not JetStream listens on its subjects, or a status without a meaning.
            code = status[0] if status is not None else 0
            raise ApiError(code, 0, f"the answer to {self.prefix}{op} makes no sense") from None
        error = answer.get("error")
        if error is not None:
            exc = api_error(error)
            if exc.err_code in (NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT):
                raise self._not_enabled() from exc
            raise exc
        stamp = answer.get("ts")
        if isinstance(stamp, str):
            self.clock.observe(stamp, sent_at, trio.current_time())
        return answer

    async def call(self, op: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """As `api`, with silence explained: is it JetStream that is missing?"""
        try:
            return await self.api(op, body)
        except NoResponders as exc:
            raise self._not_enabled() from exc

    def _not_enabled(self) -> JetStreamNotEnabled:
        return JetStreamNotEnabled(
            f"the server {self.connection.server} has no JetStream (or it is not ready yet); "
            "start nats-server with the -js flag"
        )

    async def account_info(self) -> dict[str, Any]:
        return await self.call("INFO")

    # ------------------------------------------------------------------ streams

    async def create_stream(self, config: StreamConfig) -> StreamInfo:
        """Idempotent for an equal configuration; another one raises `StreamNameInUse`."""
        check_name(config.name, "stream")
        return StreamInfo.read(await self.call(f"STREAM.CREATE.{config.name}", config.wire()))

    async def update_stream(self, config: StreamConfig) -> StreamInfo:
        """Replaces the whole configuration: what is left out returns to its default."""
        check_name(config.name, "stream")
        return StreamInfo.read(await self.call(f"STREAM.UPDATE.{config.name}", config.wire()))

    async def stream_info(self, name: str) -> StreamInfo:
        check_name(name, "stream")
        return StreamInfo.read(await self.call(f"STREAM.INFO.{name}"))

    async def delete_stream(self, name: str) -> None:
        check_name(name, "stream")
        await self.call(f"STREAM.DELETE.{name}")

    async def purge_stream(self, name: str) -> int:
        """Returns how many messages were removed."""
        check_name(name, "stream")
        return int((await self.call(f"STREAM.PURGE.{name}")).get("purged", 0))

    async def stream_names(self, subject: str | None = None) -> AsyncGenerator[str, None]:
        """Names of all streams (that bind `subject`), page by page.

        Use it in `contextlib.aclosing` if you may leave the loop early.
        """
        offset = 0
        while True:
            body: dict[str, Any] = {"offset": offset}
            if subject is not None:
                body["subject"] = subject
            page = await self.call("STREAM.NAMES", body)
            names = page.get("streams") or []
            for name in names:
                yield name
            offset += len(names)
            if not names or offset >= page.get("total", 0):
                return

    async def stream_name_by_subject(self, subject: str) -> str | None:
        async with aclosing(self.stream_names(subject)) as names:
            async for name in names:
                return name
        return None

    async def get_message(self, stream: str, sequence: int) -> RawMessage:
        """Raises `MessageNotFound`."""
        check_name(stream, "stream")
        return self._raw(await self.call(f"STREAM.MSG.GET.{stream}", {"seq": sequence}))

    async def get_last_message(self, stream: str, subject: str) -> RawMessage:
        check_name(stream, "stream")
        return self._raw(await self.call(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject}))

    async def next_message(
        self, stream: str, sequence: int, subject: str = ">"
    ) -> RawMessage | None:
        """The first message on `subject` (wildcards allowed) at or after `sequence`, or None.

        Answered by the stream's leader, so what was acknowledged before is seen.
        """
        check_name(stream, "stream")
        body = {"seq": sequence, "next_by_subj": subject}
        try:
            return self._raw(await self.call(f"STREAM.MSG.GET.{stream}", body))
        except MessageNotFound:
            return None

    async def delete_message(self, stream: str, sequence: int) -> bool:
        """Remove one message for good, without overwriting its bytes. False: it was not there."""
        check_name(stream, "stream")
        body = {"seq": sequence, "no_erase": True}
        try:
            answer = await self.call(f"STREAM.MSG.DELETE.{stream}", body)
        except MessageNotFound:
            return False
        except ApiError as exc:
            if exc.err_code not in _DELETE_FAILED:
                raise
            # For other reasons than that it is gone, too.
            try:
                await self.get_message(stream, sequence)
            except MessageNotFound:
                return False
            raise
        return bool(answer.get("success"))

    @staticmethod
    def _raw(answer: Mapping[str, Any]) -> RawMessage:
        message = answer["message"]
        block = message.get("hdrs")
        return RawMessage(
            subject=message["subject"],
            sequence=message["seq"],
            data=base64.b64decode(message.get("data", "")),
            header_block=base64.b64decode(block) if block else None,
            time=message.get("time", ""),
        )

    # ------------------------------------------------------------------ consumers

    async def create_consumer(
        self, stream: str, config: ConsumerConfig, *, action: str | None = "create"
    ) -> ConsumerInfo:
        """`action`: "create", "update", or None for create-or-update.

        The action needs nats-server 2.10; an older server does not know it and treats every
        call as create-or-update.
        """
        name = config.name or config.durable_name
        check_name(stream, "stream")
        check_name(name or "", "consumer")
        body: dict[str, Any] = {"stream_name": stream, "config": config.wire()}
        if action is not None:
            body["action"] = action
        op = f"CONSUMER.CREATE.{stream}.{name}"
        if config.filter_subject:
            op += f".{config.filter_subject}"
        return ConsumerInfo.read(await self.call(op, body))

    async def consumer_info(self, stream: str, name: str) -> ConsumerInfo:
        check_name(stream, "stream")
        check_name(name, "consumer")
        return ConsumerInfo.read(await self.call(f"CONSUMER.INFO.{stream}.{name}"))

    async def list_consumers(self, stream: str) -> AsyncGenerator[ConsumerInfo, None]:
        """Infos of all consumers of a stream, page by page (256 each)."""
        check_name(stream, "stream")
        offset = 0
        while True:
            page = await self.call(f"CONSUMER.LIST.{stream}", {"offset": offset})
            found = page.get("consumers") or []
            for raw in found:
                yield ConsumerInfo.read(raw)
            offset += len(found)
            if not found or offset >= page.get("total", 0):
                return

    async def delete_consumer(self, stream: str, name: str) -> None:
        check_name(stream, "stream")
        check_name(name, "consumer")
        await self.call(f"CONSUMER.DELETE.{stream}.{name}")

    async def pause_consumer(self, stream: str, name: str, until: str) -> None:
        check_name(stream, "stream")
        check_name(name, "consumer")
        await self.call(f"CONSUMER.PAUSE.{stream}.{name}", {"pause_until": until})


__all__ = ["ApiError", "JetStream", "RawMessage", "RequestTimeout"]
