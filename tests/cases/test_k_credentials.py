"""Section K of the cases: credentials and encryption, as far as the connection goes."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio

from shove_actors import ConfigError, ConnectionError, NatsConfig, TLSError, open_broker
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import ConnectionEvent, connect
from tests.jetstream.kit import connected, fake_server, fast, shown_by, until_it_ends
from tests.secured import PASSWORD, USERNAME, SecuredServer, write_certificate

FAST: dict[str, Any] = {
    "reconnect_wait": 0.02,
    "reconnect_jitter": 0.0,
    "reconnect_jitter_tls": 0.0,
}

SECRETS = ["pl41n-secret", "s3c@ret:wo/rd", "per%41cent", "com,ma-secret"]


def forms(secret: str) -> set[str]:
    return {secret, quote(secret, safe=""), quote(secret), repr(secret)[1:-1]}


def assert_hidden(secret: str, *texts: str) -> None:
    for text in texts:
        for form in forms(secret):
            assert form not in text


def records(caplog: pytest.LogCaptureFixture) -> str:
    """Everything of every record: message, arguments, extras, traceback text."""
    return caplog.text + " ".join(repr(record.__dict__) for record in caplog.records)


# ------------------------------------------------------------------ PC-131


@pytest.mark.parametrize("where", ["options", "url", "token", "token url", "list"])
@pytest.mark.parametrize("secret", SECRETS)
async def test_pc131_connection_refused_and_lost(
    secret: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """First connect refused by the server, by the network; a loss, failed attempts, giving up."""
    caplog.set_level(logging.DEBUG)
    encoded = quote(secret, safe="")
    async with fake_server() as fake:
        address = fake.url.removeprefix("nats://")
        config = {
            "options": lambda: NatsConfig(fake.url, username="me", password=secret, **FAST),
            "url": lambda: NatsConfig(f"nats://me:{encoded}@{address}", **FAST),
            "token": lambda: NatsConfig(fake.url, token=secret, **FAST),
            "token url": lambda: NatsConfig(f"nats://{encoded}@{address}", **FAST),
            "list": lambda: NatsConfig(
                f"nats://me:{encoded}@{address},nats://me:{encoded}@{address}", **FAST
            ),
        }[where]()
        config.max_reconnect_attempts = 1
        fake.info["auth_required"] = True
        events: list[ConnectionEvent] = []

        async def trouble() -> None:
            sent = b"".join(line for line in fake.received if line.startswith(b"CONNECT"))
            assert b"pass" in sent or b"auth_token" in sent
            # What a server may well do: repeat what it was given.
            fake.before_pong = f"-ERR 'Authorization Violation for {secret}'\r\n".encode()
            await fake.say(f"-ERR 'Permissions Violation for {secret} {encoded}'\r\n".encode())
            await fake.say(f"-ERR 'go away with {secret}'\r\n".encode())

        with pytest.raises(ConnectionError) as lost:
            await until_it_ends(config, events, trouble)
        with pytest.raises(ConnectionError) as refused:
            async with open_broker(config):
                pass
    with pytest.raises(ConnectionError) as unreachable:
        async with connect(config):
            pass
    kinds = [event.kind for event in events]
    assert kinds[:2] == ["error", "disconnected"]
    assert kinds[-1] == "closed"
    shown = [shown_by(error.value) for error in (lost, refused, unreachable)]
    shown += [repr(event) + str(event.error) for event in events]
    shown += [shown_by(event.error) for event in events if event.error is not None]
    assert "***" in shown[0] + shown[1]
    assert_hidden(secret, records(caplog), *shown)


async def test_pc131_log_records_of_a_life(
    password_server: SecuredServer, caplog: pytest.LogCaptureFixture
) -> None:
    """nats-py's own logger and asyncio's are among them."""
    caplog.set_level(logging.DEBUG)
    for name in ("nats", "nats.aio.client", "asyncio", "trio-asyncio", "shove_actors"):
        caplog.set_level(logging.DEBUG, logger=name)
    process = password_server.process
    url = f"nats://{USERNAME}:{quote(PASSWORD, safe='')}@{password_server.address}"
    async with connected(fast(url)) as (js, events):
        loop = js.connection._loop
        assert loop is not None

        def fail() -> None:
            raise ValueError(f"cannot use {url} with {PASSWORD}")

        loop.call_soon(fail)
        await events.wait("reconnected")
        await trio.to_thread.run_sync(process.kill)
        await events.wait("disconnected", 2)
        await events.wait("error")
        await trio.to_thread.run_sync(process.restart)
        await events.wait("reconnected", 2)
        texts = [repr(js.connection), js.connection.server, repr(js.connection._config)]
        texts += [f"{event!r} {event.error!s}" for event in events.all]
    assert caplog.records
    assert "***" in js.connection.server
    assert_hidden(PASSWORD, records(caplog), *texts)


# ------------------------------------------------------------------ PC-133


async def test_pc133_tls_lost_on_reconnect(tls_server: SecuredServer) -> None:
    """Restarted with TLS: goes on. Restarted without: ends, and nothing is sent in the clear."""
    process = tls_server.process
    events: list[ConnectionEvent] = []
    reconnected = trio.Event()

    def note(event: ConnectionEvent) -> None:
        if event.kind == "reconnected":
            reconnected.set()

    async def trouble() -> None:
        await trio.to_thread.run_sync(process.restart)
        await reconnected.wait()
        await trio.to_thread.run_sync(drop_tls, process)

    config = tls_server.config(on_reconnected=note, **FAST)
    with pytest.raises(TLSError, match="does not offer TLS"):
        await until_it_ends(config, events, trouble)
    kinds = [event.kind for event in events if event.kind != "error"]
    assert kinds == ["disconnected", "reconnected", "disconnected", "closed"]


def drop_tls(process: ServerProcess) -> None:
    """The same server, on the same port, without encryption."""
    (path,) = [a for a in process._launch.command() if a.endswith(".conf")]
    Path(path).write_text("")
    process.restart()


async def test_pc133_offer_removed_on_the_way() -> None:
    """Somebody in between speaks plainly: the credentials never leave, at first nor later."""
    async with fake_server() as fake:
        url = fake.url.replace("nats://", "tls://me:s3cret@")
        for _ in range(2):
            with pytest.raises(TLSError):
                async with open_broker(NatsConfig(url, **FAST)):
                    pass
        assert fake.received == []


# ------------------------------------------------------------------ PC-134


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tls_ca_cert": "ca.pem"}, "tls_ca_cert"),
        ({"tls_hostname": "x.example"}, "tls_hostname"),
        ({"tls_client_cert": "server.pem", "tls_client_key": "server.key"}, "tls_client_cert"),
    ],
)
async def test_pc134_tls_options_on_a_plain_url(
    change: dict[str, str], field: str, tls_server: SecuredServer, tmp_path: Path
) -> None:
    """Refused before any byte is sent: nobody has connected."""
    assert tls_server.ca is not None
    paths = {k: v if k == "tls_hostname" else str(tmp_path / v) for k, v in change.items()}
    async with fake_server() as fake:
        with pytest.raises(ConfigError, match=field):
            async with open_broker(NatsConfig(fake.url, **paths)):
                pass
        assert fake.sessions == 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tls_ca_cert": "missing.pem"}, "tls_ca_cert"),
        ({"tls_ca_cert": "server.key"}, "tls_ca_cert"),
        ({"tls_client_key": "server.key"}, "tls_client_key"),
        ({"tls_client_cert": "server.pem"}, "tls_client_cert"),
        ({"tls_client_cert": "server.pem", "tls_client_key": "other.key"}, "tls_client_key"),
    ],
)
async def test_pc134_files(
    change: dict[str, str], field: str, tls_server: SecuredServer, tmp_path: Path
) -> None:
    assert tls_server.ca is not None
    write_certificate(tls_server.ca, tmp_path, "other", "other.example")
    paths = {key: str(tmp_path / value) for key, value in change.items()}
    settings = {**tls_server.settings, **paths}
    async with fake_server() as fake:
        with pytest.raises(ConfigError, match=field):
            async with open_broker(NatsConfig(fake.url.replace("nats:", "tls:"), **settings)):
                pass
        assert fake.sessions == 0


async def test_pc134_wrong_host_name(tls_server: SecuredServer) -> None:
    """Names are verified, against the URL's host or `tls_hostname`."""
    for change in ({"tls_hostname": "other.example"}, {"tls_ca_cert": None}):
        with pytest.raises(TLSError, match=r"(?i)certificate"):
            async with connect(tls_server.config(**change, **FAST)):
                pass
    async with connect(tls_server.config(tls_hostname="localhost", **FAST)) as js:
        await js.account_info()


async def test_pc134_plain_url_to_a_server_with_tls(tls_server: SecuredServer) -> None:
    """Nobody vouches for that certificate, so it is refused and not used unverified."""
    with socket.socket() as probe:
        probe.settimeout(5)
        probe.connect((tls_server.process.host, tls_server.process.port))
        assert b"tls_required" in probe.recv(4096)
    config = NatsConfig(f"nats://{tls_server.address}", **FAST)
    with pytest.raises(TLSError, match=r"(?i)certificate"):
        async with open_broker(config):
            pass
