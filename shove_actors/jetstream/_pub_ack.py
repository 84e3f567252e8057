"""A stream's acknowledgement of a publish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from shove_actors._errors import InvalidAck, NoStreamResponse

from ._api_errors import api_error
from ._wire import status_of


class _Raw(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    domain: str | None = None
    val: str | int | None = None
    batch: str | None = None
    count: int | None = None
    error: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Raw).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class PubAck:
    """The message is stored: in `stream`, as number `sequence`.

    * `duplicate`: it was there already, with that sequence; nothing was stored now.
    * `value`: the counter after this message, on streams that count.
    * `batch`, `count`: of an atomic batch, its id and how many messages it had.
    """

    stream: str
    sequence: int
    duplicate: bool = False
    domain: str | None = None
    value: int | None = None
    batch: str | None = None
    count: int | None = None


def read_ack(subject: str, header_block: bytes | None, payload: bytes) -> PubAck | Exception:
    """What a reply to a publish means: the acknowledgement, or the exception to raise."""
    if not payload:
        status = status_of(header_block)
        if status is not None and status[0] == 503:
            return NoStreamResponse(
                f"no stream takes {subject!r}, or its leader does not answer; check the subjects "
                "of the streams"
            )
        return InvalidAck(f"the reply to a publish to {subject!r} is empty")
    try:
        raw = _decode(payload)
    except msgspec.DecodeError:
        return InvalidAck(
            f"what answers on {subject!r} is no stream; somebody else listens on that subject"
        )
    if raw.error is not None:
        return api_error(raw.error)
    if not raw.stream:
        return InvalidAck(
            f"what answers on {subject!r} is no stream; somebody else listens on that subject"
        )
    return PubAck(
        stream=raw.stream,
        sequence=raw.seq,
        duplicate=raw.duplicate,
        domain=raw.domain,
        value=_whole(raw.val),
        batch=raw.batch,
        count=raw.count,
    )


def _whole(text: str | int | None) -> int | None:
    # As text on the wire, because it is not bounded.
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def is_no_responders(header_block: bytes | None, payload: bytes) -> bool:
    """Whether nobody listens on the subject: worth another try, a leader may be being elected."""
    status = None if payload else status_of(header_block)
    return status is not None and status[0] == 503
