"""The server's error codes as exceptions."""

from __future__ import annotations

from collections.abc import Mapping

from shove_actors._errors import (
    ApiError,
    ConsumerCreateFailed,
    ConsumerExists,
    ConsumerNotFound,
    MessageNotFound,
    StreamNameInUse,
    StreamNotFound,
    WrongLastSequence,
)

#: JetStream's error numbers that have a class of their own; the others stay plain `ApiError`.
BY_ERR_CODE: Mapping[int, type[ApiError]] = {
    10012: ConsumerCreateFailed,
    10014: ConsumerNotFound,
    10037: MessageNotFound,
    10058: StreamNameInUse,
    10059: StreamNotFound,
    10071: WrongLastSequence,
    10105: ConsumerExists,
    10148: ConsumerExists,
    10164: WrongLastSequence,
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
    return kind(number("code"), err_code, str(error.get("description", "")))
