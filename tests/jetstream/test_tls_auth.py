"""Who we are and whom we trust, on servers that ask."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio
import trustme

from shove_actors._errors import AuthenticationError, ConnectionError, TLSError
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import ConnectionEvent, NatsConfig, connect
from tests.secured import PASSWORD, TOKEN, USERNAME, SecuredServer, write_certificate

from .kit import connected, fake_server, shown_by, until_it_ends

FAST: dict[str, Any] = {
    "reconnect_wait": 0.02,
    "reconnect_jitter": 0.0,
    "reconnect_jitter_tls": 0.0,
}


async def gets_in(config: NatsConfig) -> None:
    async with connect(config) as js:
        await js.account_info()


# ------------------------------------------------------------------------------ credentials


async def test_password(password_server: SecuredServer) -> None:
    await gets_in(password_server.config(**FAST))


async def test_password_in_the_url(password_server: SecuredServer) -> None:
    encoded = quote(PASSWORD, safe="")
    for userinfo in (f"{USERNAME}:{encoded}", f"{USERNAME}:{PASSWORD}"):
        url = f"nats://{userinfo}@{password_server.address}"
        await gets_in(NatsConfig(url, **FAST))


async def test_token(token_server: SecuredServer) -> None:
    await gets_in(token_server.config(**FAST))
    await gets_in(NatsConfig(f"nats://{TOKEN}@{token_server.address}", **FAST))


async def test_nkey(nkey_server: SecuredServer) -> None:
    await gets_in(nkey_server.config(**FAST))


async def test_credentials_file(creds_server: SecuredServer) -> None:
    async with connect(creds_server.config(**FAST)) as js:
        assert (await js.connection.request("nobody")).status == (503, "")


async def test_wrong_password(
    password_server: SecuredServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(AuthenticationError, match="Authorization Violation") as caught:
        await gets_in(password_server.config(password="wr0ng-secret", **FAST))
    shown = shown_by(caught.value) + caplog.text
    assert "_dialer.py" in shown
    assert "wr0ng-secret" not in shown
    assert password_server.address in str(caught.value)


async def test_no_credentials_where_some_are_needed(token_server: SecuredServer) -> None:
    with pytest.raises(AuthenticationError):
        await gets_in(token_server.config(token=None, **FAST))


async def test_the_first_connect_tells_of_the_refusal(
    password_server: SecuredServer, own_server: ServerProcess
) -> None:
    """Not of the dead server that was tried last."""
    await trio.to_thread.run_sync(own_server.kill)
    config = password_server.config(
        url_or_urls=[f"nats://{password_server.address}", own_server.url],
        password="wrong",
        dont_randomize=True,
        **FAST,
    )
    with pytest.raises(AuthenticationError):
        await gets_in(config)


async def test_the_same_refusal_twice_ends_it(password_server: SecuredServer) -> None:
    """Also when the policy would go on for ever."""
    config = password_server.config(**FAST)
    events: list[ConnectionEvent] = []

    async def change() -> None:
        # The credentials are those of the start; the server's change.
        process = password_server.process
        await trio.to_thread.run_sync(replace_config, process, PASSWORD, "another")

    with pytest.raises(AuthenticationError):
        await until_it_ends(config, events, change)
    assert (events[0].kind, events[-1].kind) == ("disconnected", "closed")
    assert sum(e.kind == "error" and isinstance(e.error, AuthenticationError) for e in events) == 2


async def test_a_credentials_file_that_is_being_rewritten(creds_server: SecuredServer) -> None:
    """nats-py reads such a file for ever, and nothing else runs meanwhile (PC-016)."""
    path = trio.Path(creds_server.settings["creds_file"])
    text = await path.read_text()
    async with connected(creds_server.config(**FAST)) as (js, events):
        await path.write_text("")
        await trio.to_thread.run_sync(creds_server.process.restart)
        await events.wait("error", 3)
        assert "creds_file" in str(events.of("error")[-1].error)
        await path.unlink()
        await events.wait("error", len(events.of("error")) + 2)
        await path.write_text(text)
        await events.wait("reconnected")
        assert (await js.connection.request("nobody")).status == (503, "")


def replace_config(process: ServerProcess, old: str, new: str) -> None:
    """Restart a server with another configuration text."""
    (path,) = [a for a in process._launch.command() if a.endswith(".conf")]
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))
    process.restart()


# ------------------------------------------------------------------------------ TLS


async def test_tls(tls_server: SecuredServer) -> None:
    async with connected(tls_server.config(**FAST)) as (js, events):
        await js.account_info()
        await trio.to_thread.run_sync(tls_server.process.restart)
        await events.wait("reconnected")
        await js.account_info()
        payloads: list[bytes] = []
        js.connection.subscribe(b"tls.large", lambda s, r, h, p: payloads.append(p))
        large = os.urandom(1 << 20)
        js.connection.publish(b"tls.large", large)
        await js.connection.flush()
        assert payloads == [large]
    assert events.kinds == ["disconnected", "reconnected", "closed"]


async def test_tls_with_a_client_certificate(mutual_tls_server: SecuredServer) -> None:
    await gets_in(mutual_tls_server.config(**FAST))


async def test_tls_without_the_client_certificate(mutual_tls_server: SecuredServer) -> None:
    """With TLS 1.3 the handshake succeeds here and the refusal comes in place of the PONG."""
    config = mutual_tls_server.config(tls_client_cert=None, tls_client_key=None, **FAST)
    with pytest.raises(TLSError, match="tls_client_cert"):
        await gets_in(config)


async def test_c03_tls_is_not_silently_dropped(server: ServerProcess) -> None:
    url = server.url.replace("nats://", "tls://")
    with pytest.raises(TLSError, match="does not offer TLS"):
        await gets_in(NatsConfig(url, **FAST))


async def test_c03_nothing_is_sent_in_the_clear() -> None:
    async with fake_server() as fake:
        url = fake.url.replace("nats://", "tls://user:s3cret@")
        with pytest.raises(TLSError) as caught:
            await gets_in(NatsConfig(url, **FAST))
        assert fake.sessions == 1
        assert fake.received == []
        assert "s3cret" not in shown_by(caught.value)


async def test_unknown_authority(tls_server: SecuredServer) -> None:
    with pytest.raises(TLSError, match=r"(?i)certificate verify failed"):
        await gets_in(tls_server.config(tls_ca_cert=None, **FAST))


async def test_wrong_host_name(tls_server: SecuredServer) -> None:
    with pytest.raises(TLSError, match=r"(?i)certificate.*other\.example"):
        await gets_in(tls_server.config(tls_hostname="other.example", **FAST))


async def test_tls_hostname_replaces_the_host(tmp_path: Path) -> None:
    """The certificate has one name only, and the URL says another."""
    ca = trustme.CA()
    cert, key = write_certificate(ca, tmp_path, "server", "nats.example")
    ca_file = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(str(ca_file))
    with ServerProcess(config=f'tls {{ cert_file: "{cert}", key_file: "{key}" }}') as process:
        config = NatsConfig(process.url, tls_ca_cert=str(ca_file), **FAST)
        with pytest.raises(TLSError, match=r"127\.0\.0\.1"):
            await gets_in(config)
        config.tls_hostname = "nats.example"
        await gets_in(config)


async def test_a_handshake_that_is_cut_off_is_no_refusal() -> None:
    """A server that is just going down must not end the connection for good."""

    async def serve_and_cut(stream: trio.SocketStream) -> None:
        await stream.send_all(b'INFO {"tls_required":true}\r\n')
        await stream.receive_some()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve_and_cut, listeners)
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises(ConnectionError) as caught:
            await gets_in(NatsConfig(f"tls://127.0.0.1:{port}", **FAST))
        nursery.cancel_scope.cancel()
    assert not isinstance(caught.value, TLSError)


async def test_a_certificate_that_was_replaced_by_a_foreign_one(
    tls_server: SecuredServer, tmp_path: Path
) -> None:
    events: list[ConnectionEvent] = []

    async def change() -> None:
        write_certificate(trustme.CA(), tmp_path, "server", "127.0.0.1")
        await trio.to_thread.run_sync(tls_server.process.restart)

    with pytest.raises(TLSError, match=r"(?i)certificate"):
        await until_it_ends(tls_server.config(**FAST), events, change)
    assert (events[0].kind, events[-1].kind) == ("disconnected", "closed")


def test_the_context_verifies(tls_server: SecuredServer) -> None:
    context = tls_server.config().validate().ssl_context
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
