"""`patiently`: what is asked again, and until when. The answers are those of real servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from shove_actors import ConnectionError
from shove_actors._errors import (
    ApiError,
    AuthenticationError,
    JetStreamNotEnabled,
    RequestTimeout,
    StreamNotFound,
)
from shove_actors.backends.nats._patience import ATTEMPTS, NOT_NOW_S, patiently
from shove_actors.jetstream import Connection, NatsConfig


class Asked:
    """Answers with failures, the last one again and again; None is an answer."""

    def __init__(self, *failures: Callable[[], Exception] | None) -> None:
        self.failures = list(failures)
        self.times = 0

    async def __call__(self) -> str:
        self.times += 1
        failure = self.failures.pop(0) if len(self.failures) > 1 else self.failures[0]
        if failure is not None:
            raise failure()
        return "answer"


def never_connected() -> Connection:
    return Connection(NatsConfig())


def api_error(code: int, err_code: int) -> Callable[[], Exception]:
    return lambda: ApiError(code, err_code, "not now")


@pytest.mark.parametrize(
    "failure",
    [
        api_error(503, 10008),
        api_error(503, 10023),
        api_error(500, 10028),
        api_error(503, 0),
        lambda: RequestTimeout("silence"),
        lambda: ConnectionError("lost"),
    ],
    ids=["10008", "10023", "10028", "503", "silence", "lost"],
)
async def test_what_passes_is_asked_again_and_has_an_end(
    failure: Callable[[], Exception], autojump_clock: trio.testing.MockClock
) -> None:
    once = Asked(failure, failure, None)
    assert await patiently(once, never_connected()) == "answer"
    assert once.times == 3
    for_ever = Asked(failure)
    with pytest.raises(type(failure())):
        await patiently(for_ever, never_connected())
    assert for_ever.times >= ATTEMPTS
    assert trio.current_time() < 2 * NOT_NOW_S


@pytest.mark.parametrize(
    "failure",
    [
        lambda: StreamNotFound(404, 10059, "none"),
        api_error(400, 10003),
        lambda: AuthenticationError("no"),
        lambda: JetStreamNotEnabled("none"),
    ],
    ids=["404", "400", "credentials", "no-jetstream"],
)
async def test_what_is_final_is_raised_at_once(failure: Callable[[], Exception]) -> None:
    asked = Asked(failure, None)
    with pytest.raises(type(failure())):
        await patiently(asked, never_connected())
    assert asked.times == 1
