"""A stream, as an object: what nats.go calls `jetstream.Stream`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._options import check_count
from ._raw_message import RawMessage
from ._stream import StreamConfig
from ._stream_consumers import StreamConsumers
from ._stream_info import StreamInfo
from ._wire import check_subject

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._context import JetStream
    from ._stream import StreamSettings


class Stream(StreamConsumers):
    """One stream. Made by `JetStream.stream`, `create_stream` and their like, never by hand.

    Errors of every method: `StreamNotFound` once it is deleted, `ApiError` for what the server
    refuses, `JetStreamNotEnabled`, `RequestTimeout`, `ConnectionError`. Cancelling a call may leave
    it carried out.
    """

    def __init__(self, js: JetStream, info: StreamInfo) -> None:
        self._js = js
        self.name = info.config.name
        self._info = info

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    @property
    def cached_info(self) -> StreamInfo:
        """What the last answer told; asks nobody. `info` and `edit` refresh it."""
        return self._info

    @property
    def config(self) -> StreamConfig:
        """The configuration of `cached_info`."""
        return self._info.config

    async def info(
        self, *, deleted_details: bool = False, subject_filter: str | None = None
    ) -> StreamInfo:
        """Ask the server. Refreshes `cached_info`, but for the details asked for here.

        `deleted_details` lists the sequences that are gone in the middle (`state.deleted`);
        `subject_filter` counts the messages of each subject that matches it (`state.subjects`),
        however many there are.
        """
        info = await self._js.stream_info(
            self.name, deleted_details=deleted_details, subject_filter=subject_filter
        )
        if not deleted_details and subject_filter is None:
            self._info = info
        return info

    async def edit(self, **changes: Unpack[StreamSettings]) -> StreamInfo:
        """Change the named settings, keep all others; see `JetStream.edit_stream`."""
        self._info = (await self._js.edit_stream(self.name, **changes)).cached_info
        return self._info

    async def purge(
        self, *, subject: str | None = None, before: int | None = None, keep: int | None = None
    ) -> int:
        """Delete messages; how many were deleted.

        All of them, or those on `subject` (wildcards allowed); of these all, or those with a
        sequence below `before`, or all but the newest `keep`. `before` together with `keep` raises
        `InvalidOption`.
        """
        return await self._js.purge_stream(self.name, subject=subject, before=before, keep=keep)

    async def get_message(self, sequence: int, *, next_for: str | None = None) -> RawMessage:
        """The message of that sequence; with `next_for`, the first at or after it on that subject.

        Asks any replica when the stream has `allow_direct`, else the leader. Raises
        `MessageNotFound`.
        """
        least = 1 if next_for is None else 0
        which: dict[str, object] = {"seq": check_count("sequence", sequence, least=least)}
        if next_for is not None:
            check_subject(next_for)
            which["next_by_subj"] = next_for
        return await self._js.stored_message(self.name, which, direct=self.config.allow_direct)

    async def get_last_message(self, subject: str) -> RawMessage:
        """The newest message on `subject` (wildcards allowed). Raises `MessageNotFound`."""
        check_subject(subject)
        return await self._js.stored_message(
            self.name, {"last_by_subj": subject}, direct=self.config.allow_direct
        )

    async def delete_message(self, sequence: int, *, secure: bool = False) -> None:
        """Delete one message; `secure` has its bytes overwritten, which takes longer.

        Raises `MessageDeleteFailed` when it is not there, or may not be deleted.
        """
        await self._js.remove_message(self.name, sequence, secure=secure)
