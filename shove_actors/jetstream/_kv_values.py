"""Single keys: reading, writing, comparing and setting, deleting."""

from __future__ import annotations

from shove_actors._errors import (
    KeyExists,
    KeyNotFound,
    KeyRevisionMismatch,
    MessageNotFound,
    NoResponders,
    NoStreamResponse,
    ShoveError,
    StreamNotFound,
    WrongLastSequence,
)

from ._go_duration import whole_seconds
from ._kv_core import KeyValueCore
from ._kv_entry import OPERATION, KeyOperation, KeyValueEntry, entry_of
from ._options import as_bytes, check_count, check_seconds
from ._raw_message import RawMessage
from ._store_errors import no_bucket, of_bucket
from ._store_names import check_key

_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_ROLLUP = {"Nats-Rollup": "sub"}
_TTL = "Nats-TTL"


class KeyValueValues(KeyValueCore):
    """The part of `KeyValue` that is about one key at a time."""

    async def get(self, key: str, *, revision: int | None = None) -> KeyValueEntry:
        """The newest revision of a key, or that one, if it is the key's own.

        Raises `KeyNotFound`: never written, deleted, purged, expired, or no such revision;
        `BucketNotFound` when the bucket was deleted.
        """
        entry = await self._find(key, revision)
        if entry is None or entry.is_marker:
            raise KeyNotFound(
                f"{self.bucket}/{key} has no "
                + ("value" if revision is None else f"value of revision {revision}")
            )
        return entry

    async def put(self, key: str, value: bytes | str) -> int:
        """Set a key, whatever it was before. Returns the new revision.

        Raises `ApiError` (such as a bucket that is full, or a value too large for it),
        `BucketNotFound` when the bucket was deleted, `NoStreamResponse`, `RequestTimeout`,
        `ConnectionError`. Cancelled, it may be stored.
        """
        return await self._write(key, value)

    async def create(self, key: str, value: bytes | str, *, ttl: float | None = None) -> int:
        """Set a key that has no value: never written, deleted, purged or expired. New revision.

        `ttl`: seconds after which it expires (whole ones, rounded up; the bucket needs
        `limit_marker_ttl`). Raises `KeyExists`.
        """
        headers = {} if ttl is None else {_TTL: ttl_text(ttl)}
        expected = 0
        # Twice is normal (a marker is there); more often only if others write meanwhile.
        for _ in range(3):
            try:
                return await self._write(key, value, {**headers, _EXPECTED: str(expected)})
            except WrongLastSequence as exc:
                refusal = exc
            # From the leader: a replica may not have what the leader has just compared with.
            entry = await self._find(key, None, direct=False)
            if entry is not None and not entry.is_marker:
                break
            expected = 0 if entry is None else entry.revision
        raise KeyExists(f"{self.bucket}/{key} has a value already") from refusal

    async def update(self, key: str, value: bytes | str, revision: int) -> int:
        """Set a key whose newest revision is `revision` (0: that has none). Returns the new one.

        A life span that the key was created with ends with this. Raises `KeyRevisionMismatch`.
        """
        check_count("revision", revision, least=0)
        return await self._expecting(key, value, {}, revision)

    async def delete(self, key: str, *, last_revision: int | None = None) -> int:
        """Leave a marker in place of the value; history stays. Returns the marker's revision.

        An unknown key gets one, too. `last_revision` as in `update`: `KeyRevisionMismatch`.
        """
        headers = {OPERATION: KeyOperation.DELETE.value}
        return await self._expecting(key, b"", headers, last_revision)

    async def purge(
        self, key: str, *, last_revision: int | None = None, ttl: float | None = None
    ) -> int:
        """As `delete`, and remove all older revisions.

        `ttl`: the marker itself disappears after that many seconds (the bucket needs
        `limit_marker_ttl`).
        """
        headers = {OPERATION: KeyOperation.PURGE.value, **_ROLLUP}
        if ttl is not None:
            headers[_TTL] = ttl_text(ttl)
        return await self._expecting(key, b"", headers, last_revision)

    async def _find(
        self, key: str, revision: int | None, *, direct: bool = True
    ) -> KeyValueEntry | None:
        """Also a marker; None when nothing is stored."""
        subject = self._read_prefix + check_key(key)
        if revision is None:
            which: dict[str, object] = {"last_by_subj": subject}
        else:
            which = {"seq": check_count("revision", revision)}
        try:
            message = await self._stored(which, direct=direct and self._direct)
        except MessageNotFound:
            return None
        if message.subject != subject:
            return None
        return entry_of(self.bucket, key, message)

    async def _stored(self, which: dict[str, object], *, direct: bool) -> RawMessage:
        if direct:
            try:
                return await self._js.stored_message(self._stream, which, direct=True)
            except NoResponders:
                pass  # no replica answers just now, or the bucket was changed: ask the leader
        with of_bucket(self.bucket):
            return await self._js.stored_message(self._stream, which)

    async def _expecting(
        self, key: str, value: bytes | str, headers: dict[str, str], revision: int | None
    ) -> int:
        if revision is not None:
            headers = {**headers, _EXPECTED: str(check_count("last_revision", revision, least=0))}
        try:
            return await self._write(key, value, headers)
        except WrongLastSequence as exc:
            raise KeyRevisionMismatch(f"{self.bucket}/{key} is not at revision {revision}") from exc

    async def _write(
        self, key: str, value: bytes | str, headers: dict[str, str] | None = None
    ) -> int:
        subject = self._write_prefix + check_key(key)
        payload = as_bytes("the value", value)
        try:
            return (await self._js.publish(subject, payload, headers=headers)).sequence
        except NoStreamResponse:
            # Is there no leader, or no bucket? Whoever reads is told that, too.
            try:
                await self._js.call(f"STREAM.INFO.{self._stream}")
            except StreamNotFound as exc:
                raise no_bucket(self.bucket) from exc
            except ShoveError:
                pass
            raise


def ttl_text(seconds: float) -> str:
    """As the server reads it: whole seconds, and never less than asked for."""
    return whole_seconds(check_seconds("ttl", seconds, least=1.0))
