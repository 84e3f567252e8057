"""Streams and their stored messages.

Two layers. Methods that give a `Stream` are for applications. Those that take a stream's *name* and
give a record (`stream_info`, `get_message`, ...) are one request each; the messaging runtime uses
them, and so may whoever wants to know exactly what is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, cast

from shove_actors._errors import (
    ApiError,
    InvalidOption,
    MessageDeleteFailed,
    MessageNotFound,
    NoResponders,
    ServerTooOld,
    StreamNameInUse,
    StreamNotFound,
)

from ._context_core import ContextCore
from ._lister import Lister
from ._options import check_count, check_flag, check_kind
from ._raw_message import RawMessage
from ._stream import StreamConfig
from ._stream_handle import Stream
from ._stream_info import StreamInfo
from ._wire import check_name, check_subject

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._context import JetStream
    from ._stream import StreamSettings

#: A deletion failed, for whatever reason; there is no such sequence (any more).
_DELETE_FAILED = frozenset({10057, 10043})
#: What a stream is made for, when it is asked for; and which server understands it.
_NEWER = {
    "subject_transform": "2.10",
    "compression": "2.10",
    "first_seq": "2.10",
    "allow_msg_ttl": "2.11",
    "subject_delete_marker_ttl": "2.11",
    "allow_msg_counter": "2.12",
    "allow_atomic": "2.12",
    "allow_msg_schedules": "2.12",
    "allow_batched": "2.14",
}
_DEFAULTS = {item.name: item.default for item in fields(StreamConfig)}


class StreamsApi(ContextCore):
    """The part of `JetStream` that is about streams."""

    # ------------------------------------------------------------------ handles

    async def create_stream(
        self, config: StreamConfig | None = None, /, **settings: Unpack[StreamSettings]
    ) -> Stream:
        """Make a stream. Settings may come as a `StreamConfig`, as keywords, or both.

            stream = await js.create_stream(name="ORDERS", subjects=["ORDERS.*"])

        Idempotent for an equal configuration; a stream of that name with another one raises
        `StreamNameInUse`. `ServerTooOld`: the stream exists, but without what the server does not
        know. Other errors: `ApiError`, `RequestTimeout`, `JetStreamNotEnabled`.
        """
        return await self._store_stream("CREATE", _merged(config, settings))

    async def update_stream(
        self, config: StreamConfig | None = None, /, **settings: Unpack[StreamSettings]
    ) -> Stream:
        """Replace a stream's **whole** configuration.

        What is left out returns to its default: an update with only a name and `max_bytes=8`
        takes the stream's subjects away, and the limit may delete messages. Start from
        `stream.config`, or use `edit_stream`, which changes what is named and keeps the rest.
        Raises `StreamNotFound` for a missing one.
        """
        return await self._store_stream("UPDATE", _merged(config, settings))

    async def create_or_update_stream(
        self, config: StreamConfig | None = None, /, **settings: Unpack[StreamSettings]
    ) -> Stream:
        """`update_stream`, or `create_stream` when there is none yet.

        Two requests, so somebody else may come in between; that is tried once more.
        """
        wanted = _merged(config, settings)
        for last in (False, True):
            try:
                return await self._store_stream("UPDATE", wanted)
            except StreamNotFound:
                pass
            try:
                return await self._store_stream("CREATE", wanted)
            except (StreamNameInUse, StreamNotFound):
                if last:
                    raise
        raise AssertionError("not reached")

    async def edit_stream(self, name: str, /, **changes: Unpack[StreamSettings]) -> Stream:
        """Change the named settings and keep all others, also those this version does not know.

            await js.edit_stream("ORDERS", max_bytes=1_000_000)

        Reads, then writes: a change by somebody else in between is overwritten. Raises
        `StreamNotFound`; `InvalidOption` for a change of the name.
        """
        if changes.get("name", name) != name:
            raise InvalidOption("a stream cannot be renamed; leave out name")
        StreamConfig(**{"name": name, **changes})  # type: ignore[arg-type]  # before it is read
        current = (await self.stream_info(name)).config
        return await self._store_stream("UPDATE", replace(current, **changes))  # type: ignore[arg-type]

    async def stream(self, name: str) -> Stream:
        """The handle of an existing stream. Raises `StreamNotFound`."""
        return self._handle(await self.stream_info(name))

    def list_streams(self, subject: str | None = None) -> Lister[StreamInfo]:
        """Infos of all streams (that bind `subject`), page by page of 256."""
        body = _subject_filter(subject)

        async def page(offset: int) -> tuple[list[StreamInfo], int, int]:
            answer = await self.call("STREAM.LIST", {**body, "offset": offset})
            found = [StreamInfo.read(raw) for raw in answer.get("streams") or ()]
            return found, len(found), answer.get("total", 0)

        return Lister(page)

    def stream_names(self, subject: str | None = None) -> Lister[str]:
        """Names of all streams (that bind `subject`), page by page of 1024."""
        body = _subject_filter(subject)

        async def page(offset: int) -> tuple[list[str], int, int]:
            answer = await self.call("STREAM.NAMES", {**body, "offset": offset})
            found = answer.get("streams") or []
            return found, len(found), answer.get("total", 0)

        return Lister(page)

    async def stream_name_by_subject(self, subject: str) -> str | None:
        """The (first) stream that takes what is published to `subject`; None without one."""
        check_subject(subject)
        async with aclosing(self.stream_names(subject)) as names:
            async for name in names:
                return name
        return None

    async def delete_stream(self, name: str) -> None:
        """With its messages and consumers. Raises `StreamNotFound`."""
        check_name(name, "stream")
        await self.call(f"STREAM.DELETE.{name}")

    def _handle(self, info: StreamInfo) -> Stream:
        return Stream(cast("JetStream", self), info)

    async def _store_stream(self, verb: str, config: StreamConfig) -> Stream:
        check_name(config.name, "stream")
        answer = await self.call(f"STREAM.{verb}.{config.name}", config.wire())
        info = StreamInfo.read(answer)
        _check_understood(config, info.config)
        return self._handle(info)

    # ------------------------------------------------------------------ by name

    async def stream_info(
        self, name: str, *, deleted_details: bool = False, subject_filter: str | None = None
    ) -> StreamInfo:
        """As `Stream.info`, by name."""
        check_name(name, "stream")
        check_flag("deleted_details", deleted_details)
        if subject_filter is None and not deleted_details:
            return StreamInfo.read(await self.call(f"STREAM.INFO.{name}"))
        body: dict[str, Any] = {}
        if deleted_details:
            body["deleted_details"] = True
        if subject_filter is None:
            return StreamInfo.read(await self.call(f"STREAM.INFO.{name}", body))
        check_subject(subject_filter)
        # The counts come in pages of 100 000 subjects.
        subjects: dict[str, int] = {}
        while True:
            body |= {"subjects_filter": subject_filter, "offset": len(subjects)}
            answer = await self.call(f"STREAM.INFO.{name}", body)
            page = answer["state"].get("subjects") or {}
            known = len(subjects)
            subjects.update(page)
            # A page that brings nothing new ends it: the list may shrink while it is read.
            if len(subjects) == known or len(subjects) >= answer.get("total", 0):
                break
        info = StreamInfo.read(answer)
        return replace(info, state=replace(info.state, subjects=subjects))

    async def purge_stream(
        self,
        name: str,
        *,
        subject: str | None = None,
        before: int | None = None,
        keep: int | None = None,
    ) -> int:
        """As `Stream.purge`, by name."""
        check_name(name, "stream")
        body = _purge_request(subject, before, keep)
        if before is not None and before <= 1:
            return 0  # nothing is below the first; the server takes a 0 for "everything"
        return int((await self.call(f"STREAM.PURGE.{name}", body or None)).get("purged", 0))

    async def get_message(self, stream: str, sequence: int) -> RawMessage:
        """From the stream's leader. Raises `MessageNotFound`."""
        return await self.stored_message(stream, {"seq": check_count("sequence", sequence)})

    async def get_last_message(self, stream: str, subject: str) -> RawMessage:
        """From the stream's leader. Raises `MessageNotFound`."""
        check_subject(subject)
        return await self.stored_message(stream, {"last_by_subj": subject})

    async def next_message(
        self, stream: str, sequence: int, subject: str = ">"
    ) -> RawMessage | None:
        """The first message on `subject` (wildcards allowed) at or after `sequence`, or None.

        Answered by the stream's leader, so what was acknowledged before is seen.
        """
        check_count("sequence", sequence, least=0)
        check_subject(subject)
        try:
            return await self.stored_message(stream, {"seq": sequence, "next_by_subj": subject})
        except MessageNotFound:
            return None

    async def stored_message(
        self, stream: str, which: Mapping[str, Any], *, direct: bool = False
    ) -> RawMessage:
        """`which` in the server's words: `seq`, `next_by_subj`, `last_by_subj`.

        `direct`: from any replica, which the stream must allow (`NoResponders` otherwise). Raises
        `MessageNotFound`.
        """
        check_name(stream, "stream")
        check_kind("which", which, Mapping, "a mapping such as {'seq': 1}")
        if check_flag("direct", direct):
            op = f"DIRECT.GET.{stream}"
            reply = await self.ask_api(op, which)
            if reply.status is not None and reply.status[0] == 503:
                raise NoResponders(
                    f"nobody answers {self.prefix}{op}: the stream is gone, or it does not have "
                    "allow_direct any more"
                )
            return RawMessage.read_direct(reply)
        return RawMessage.read(await self.call(f"STREAM.MSG.GET.{stream}", which))

    async def remove_message(self, stream: str, sequence: int, *, secure: bool = False) -> None:
        """As `Stream.delete_message`, by name."""
        check_name(stream, "stream")
        body: dict[str, Any] = {"seq": check_count("sequence", sequence)}
        if not check_flag("secure", secure):
            body["no_erase"] = True
        answer = await self.call(f"STREAM.MSG.DELETE.{stream}", body)
        if not answer.get("success"):
            raise MessageDeleteFailed(0, 0, f"message {sequence} was not deleted")

    async def delete_message(self, stream: str, sequence: int) -> bool:
        """Remove one message for good, without overwriting its bytes. False: it was not there."""
        try:
            await self.remove_message(stream, sequence)
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
        return True


def _merged(config: StreamConfig | None, settings: StreamSettings) -> StreamConfig:
    if config is None:
        if "name" not in settings:
            raise InvalidOption("a stream needs a name; give a StreamConfig or name=")
        return StreamConfig(**settings)  # type: ignore[arg-type]
    check_kind("config", config, StreamConfig, "a StreamConfig, or keywords such as name=")
    return replace(config, **settings) if settings else config  # type: ignore[arg-type]


def _subject_filter(subject: str | None) -> dict[str, Any]:
    if subject is None:
        return {}
    check_subject(subject)
    return {"subject": subject}


def _purge_request(subject: str | None, before: int | None, keep: int | None) -> dict[str, Any]:
    if before is not None and keep is not None:
        raise InvalidOption("before and keep exclude each other; give one of them")
    for name, value in (("before", before), ("keep", keep)):
        if value is not None:
            check_count(name, value, least=0)
    body: dict[str, Any] = {}
    if subject is not None:
        check_subject(subject)
        body["filter"] = subject
    if before is not None:
        body["seq"] = before
    if keep is not None:
        body["keep"] = keep
    return body


def _check_understood(wanted: StreamConfig, got: StreamConfig) -> None:
    """An old server leaves out, without a word, what it does not know."""
    missing = None
    for name, version in _NEWER.items():
        asked, default = getattr(wanted, name), _DEFAULTS[name]
        if name == "first_seq" and asked == 1:
            continue  # every stream begins there
        if asked != default and getattr(got, name) == default:
            missing = f"{name} (nats-server {version})"
    if len(wanted.sources) != len(got.sources) or any(
        asked.subject_transforms and not made.subject_transforms
        for asked, made in zip(wanted.sources, got.sources, strict=True)
    ):
        missing = "sources, or the subject_transforms of one (nats-server 2.10)"
    if missing is not None:
        raise ServerTooOld(
            f"stream {wanted.name!r} exists now, but the server has left out {missing}; delete the "
            "stream, or do without"
        )
