"""The JetStream context: options, prefixes, hooks, and what it says when JetStream is missing."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields

import pytest
import trio

from shove_actors._errors import (
    ApiError,
    InvalidOption,
    JetStreamError,
    JetStreamNotEnabled,
    NoStreamResponse,
    RequestTimeout,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Connection, JetStream, JetStreamOptions, NatsConfig, connect
from shove_actors.jetstream._api_errors import BY_ERR_CODE, api_error
from shove_actors.jetstream._settings import ConnectionSettings, ConnectSettings

from .kit import fast


def test_keywords_are_the_options() -> None:
    of_the_context = set(ConnectSettings.__annotations__) - set(ConnectionSettings.__annotations__)
    assert of_the_context == {f.name for f in fields(JetStreamOptions)}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"domain": "a", "api_prefix": "b"}, "exclude each other"),
        ({"domain": ""}, "domain"),
        ({"domain": "a b"}, "domain"),
        ({"domain": "a.>"}, "domain"),
        ({"api_prefix": ""}, "api_prefix"),
        ({"api_prefix": "."}, "api_prefix"),
        ({"api_prefix": "a.*"}, "api_prefix"),
        ({"timeout": 0.0}, "timeout"),
        ({"timeout": -1.0}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"publish_ack_timeout": 0.0}, "publish_ack_timeout"),
        ({"publish_async_max_pending": 0}, "publish_async_max_pending"),
        ({"publish_async_max_pending": 1.5}, "publish_async_max_pending"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_contradictory_and_senseless_options(options: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidOption, match=match) as caught:
        JetStream(Connection(NatsConfig()), **options)  # type: ignore[arg-type]
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, JetStreamError)


@pytest.mark.parametrize(
    ("options", "prefix"),
    [
        ({}, "$JS.API."),
        ({"domain": "hub"}, "$JS.hub.API."),
        ({"api_prefix": "imported.js"}, "imported.js."),
        ({"api_prefix": "imported.js."}, "imported.js."),
    ],
    ids=["default", "domain", "prefix", "dot"],
)
def test_prefixes(options: dict[str, str], prefix: str) -> None:
    js = JetStream(Connection(NatsConfig()), **options)  # type: ignore[arg-type]
    assert js.prefix == prefix
    assert js.options.prefix == prefix
    with pytest.raises(FrozenInstanceError):
        js.options.timeout = 3.0  # type: ignore[misc]


async def test_an_api_that_was_imported_from_another_account() -> None:
    text = """
        jetstream: enabled
        accounts {
            OWNER: {
                jetstream: enabled
                users: [ { user: owner, password: owner } ]
                exports: [ { service: "$JS.API.>" , response_type: stream } ]
            }
            GUEST: {
                users: [ { user: guest, password: guest } ]
                imports: [ { service: { account: OWNER, subject: "$JS.API.>" }, to: "theirs.>" } ]
            }
        }
    """
    with ServerProcess(config=text) as process:
        async with connect(fast(process.url, username="owner", password="owner")) as owner:
            await owner.create_stream(name="S", subjects=["s"])
            await owner.publish("s", b"x")
        guest_config = fast(process.url, username="guest", password="guest")
        async with connect(guest_config, api_prefix="theirs") as guest:
            stream = await guest.stream("S")
            assert (await stream.get_message(1)).data == b"x"
            with pytest.raises(JetStreamNotEnabled):
                await JetStream(guest.connection).account_info()


async def test_hooks_see_every_api_request(server: ServerProcess) -> None:
    seen: list[tuple[str, str, bytes]] = []
    async with connect(
        fast(server.url),
        on_request=lambda subject, payload: seen.append(("request", subject, payload)),
        on_response=lambda subject, payload: seen.append(("response", subject, payload)),
    ) as js:
        await js.account_info()
        with pytest.raises(ApiError):
            await js.api("STREAM.INFO.missing", {"deleted_details": True})
    assert [(kind, subject) for kind, subject, _ in seen] == [
        ("request", "$JS.API.INFO"),
        ("response", "$JS.API.INFO"),
        ("request", "$JS.API.STREAM.INFO.missing"),
        ("response", "$JS.API.STREAM.INFO.missing"),
    ]
    assert json.loads(seen[1][2])["type"].endswith("account_info_response")
    assert seen[2][2] == b'{"deleted_details":true}'
    assert b"10059" in seen[3][2]


async def test_a_hook_that_raises_reaches_the_caller(server: ServerProcess) -> None:
    def refuse(subject: str, payload: bytes) -> None:
        raise KeyError("mine")

    async with connect(fast(server.url), on_request=refuse) as js:
        with pytest.raises(KeyError, match="mine"):
            await js.account_info()


async def test_account(own_server: ServerProcess) -> None:
    async with connect(fast(own_server.url)) as js:
        await js.create_stream(name="S", subjects=["s"])
        await js.publish("s", b"x")
        info = await js.account_info()
        assert (info.streams, info.consumers, info.domain) == (1, 0, None)
        assert info.storage > 0
        assert info.limits.max_streams == -1
        assert info.api.level >= 1
        assert info.api.total >= 1
        assert info.tiers == {}


async def test_a_shorter_time_of_the_caller_s(server: ServerProcess) -> None:
    async with connect(fast(server.url), api_prefix="mute", timeout=0.05) as js:
        js.connection.subscribe(b"mute.>", lambda *message: None)
        with pytest.raises(RequestTimeout) as caught:
            await js.account_info()
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value, JetStreamError)
        patient = JetStream(js.connection, api_prefix="mute")
        with trio.move_on_after(0.05) as scope:
            await patient.stream("S")
        assert scope.cancelled_caught


def test_pc012_every_number_has_one_class() -> None:
    """A10: the server's number decides; unknown ones stay plain."""
    for number, kind in BY_ERR_CODE.items():
        error = api_error({"code": 400, "err_code": number, "description": "why"})
        assert type(error) is kind
        assert (error.code, error.err_code, error.description) == (400, number, "why")
        assert isinstance(error, JetStreamError)
    plain = api_error({"code": 500, "err_code": 1, "description": "why"})
    assert type(plain) is ApiError
    assert type(api_error({"err_code": "no number"})) is ApiError


async def test_pc012_without_jetstream() -> None:
    """Told apart from a stream that is missing, and from nobody answering a publish."""
    with ServerProcess(jetstream=False) as process:
        async with connect(fast(process.url)) as js:
            for call in (js.account_info, js.stream_names().receive):
                with pytest.raises(JetStreamNotEnabled, match="-js"):
                    await call()
            with pytest.raises(NoStreamResponse):
                await js.publish("s", b"x", retry_wait=0.01)
