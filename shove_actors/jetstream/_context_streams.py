"""Streams and their stored messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from shove_actors._errors import ApiError, MessageNotFound

from ._context_core import ContextCore
from ._raw_message import RawMessage
from ._stream import StreamConfig, StreamInfo
from ._wire import check_name

#: A deletion failed, for whatever reason; there is no such sequence (any more).
_DELETE_FAILED = frozenset({10057, 10043})


class StreamsApi(ContextCore):
    """The part of `JetStream` that is about streams."""

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
        return RawMessage.read(await self.call(f"STREAM.MSG.GET.{stream}", {"seq": sequence}))

    async def get_last_message(self, stream: str, subject: str) -> RawMessage:
        check_name(stream, "stream")
        return RawMessage.read(
            await self.call(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        )

    async def next_message(
        self, stream: str, sequence: int, subject: str = ">"
    ) -> RawMessage | None:
        """The first message on `subject` (wildcards allowed) at or after `sequence`, or None.

        Answered by the stream's leader, so what was acknowledged before is seen.
        """
        check_name(stream, "stream")
        body = {"seq": sequence, "next_by_subj": subject}
        try:
            return RawMessage.read(await self.call(f"STREAM.MSG.GET.{stream}", body))
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
