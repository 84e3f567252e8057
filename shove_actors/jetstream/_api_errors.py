"""The server's error codes as exceptions."""

from __future__ import annotations

from collections.abc import Mapping

from shove_actors._errors import (
    ApiError,
    ApiMessageTooLarge,
    ApiStreamFull,
    AtomicBatchError,
    BadRequest,
    ConsumerCreateFailed,
    ConsumerDoesNotExist,
    ConsumerExists,
    ConsumerInvalidReset,
    ConsumerNotFound,
    FilterError,
    MaxConsumersReached,
    MessageDeleteFailed,
    MessageNotFound,
    ScheduleError,
    StreamMismatch,
    StreamNameInUse,
    StreamNotFound,
    StreamSealed,
    WrongLastMsgId,
    WrongLastSequence,
)

#: JetStream's error numbers that have a class of their own; the others stay plain `ApiError`.
BY_ERR_CODE: Mapping[int, type[ApiError]] = {
    10003: BadRequest,
    10012: ConsumerCreateFailed,
    10014: ConsumerNotFound,
    10026: MaxConsumersReached,
    10037: MessageNotFound,
    10043: MessageDeleteFailed,
    10054: ApiMessageTooLarge,
    10057: MessageDeleteFailed,
    10058: StreamNameInUse,
    10059: StreamNotFound,
    10060: StreamMismatch,
    10070: WrongLastMsgId,
    10071: WrongLastSequence,
    10077: ApiStreamFull,
    10105: ConsumerExists,
    10109: StreamSealed,
    10136: FilterError,
    10138: FilterError,
    10139: FilterError,
    10148: ConsumerExists,
    10149: ConsumerDoesNotExist,
    10164: WrongLastSequence,
    10174: AtomicBatchError,
    10176: AtomicBatchError,
    10179: AtomicBatchError,
    10186: ScheduleError,
    10187: ScheduleError,
    10188: ScheduleError,
    10189: ScheduleError,
    10190: ScheduleError,
    10191: ScheduleError,
    10192: ScheduleError,
    10199: AtomicBatchError,
    10201: AtomicBatchError,
    10203: ScheduleError,
    10204: ConsumerInvalidReset,
    10210: AtomicBatchError,
}

#: What the server's description leaves out.
_ADVICE: Mapping[int, str] = {
    10210: "too many batches are open at once (50 per stream by default); publish this one again "
    "when others have ended, which abandoned ones do ten seconds after their last message",
}

NOT_ENABLED = 10076
NOT_ENABLED_FOR_ACCOUNT = 10039
#: "JetStream system temporarily unavailable", "insufficient resources": worth another try.
TEMPORARY = frozenset({10008, 10023, 10028})


def api_error(error: Mapping[str, object]) -> ApiError:
    """The exception for an `error` object of an API answer."""

    def number(name: str) -> int:
        value = error.get(name, 0)
        return value if isinstance(value, int) else 0

    err_code = number("err_code")
    kind = BY_ERR_CODE.get(err_code, ApiError)
    exc = kind(number("code"), err_code, str(error.get("description", "")))
    if err_code in _ADVICE:
        exc.args = (f"{exc}: {_ADVICE[err_code]}",)
    return exc
