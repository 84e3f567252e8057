"""Certificates that were good once, or are somebody else's: the server's and the client's."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from shove_actors._errors import ConnectionError, TLSError
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import ConnectionEvent, NatsConfig, connect
from tests.secured import SecuredServer, write_certificate

from .kit import connected, shown_by, until_it_ends

pytestmark = pytest.mark.server

FAST: dict[str, Any] = {
    "reconnect_wait": 0.02,
    "reconnect_jitter": 0.0,
    "reconnect_jitter_tls": 0.0,
}
YESTERDAY = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)


def write_expired(ca: trustme.CA, directory: Path, name: str, *identities: str) -> tuple[str, str]:
    """As `write_certificate`, good until yesterday."""
    before = YESTERDAY - datetime.timedelta(days=30)
    issued = ca.issue_cert(*identities, not_before=before, not_after=YESTERDAY)
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    issued.private_key_pem.write_to_path(str(key))
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return str(cert), str(key)


async def gets_in(config: NatsConfig) -> None:
    async with connect(config) as js:
        await js.account_info()


@contextmanager
def encrypted(directory: Path, cert: str, key: str, extra: str = "") -> Iterator[ServerProcess]:
    text = f'tls {{ cert_file: "{cert}", key_file: "{key}", timeout: 5 {extra} }}'
    with ServerProcess(config=text) as process:
        yield process


def trust(ca: trustme.CA, directory: Path) -> str:
    path = str(directory / "ca.pem")
    ca.cert_pem.write_to_path(path)
    return path


# ------------------------------------------------------------------ the server's


async def test_an_expired_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    ca = trustme.CA()
    cert, key = write_expired(ca, tmp_path, "server", "127.0.0.1")
    with encrypted(tmp_path, cert, key) as process:
        config = NatsConfig(
            f"tls://user:s3cret@127.0.0.1:{process.port}", tls_ca_cert=trust(ca, tmp_path), **FAST
        )
        with pytest.raises(TLSError, match=r"(?i)certificate has expired") as caught:
            await gets_in(config)
    assert f"127.0.0.1:{process.port}" in str(caught.value)
    assert "s3cret" not in shown_by(caught.value) + caplog.text


async def test_a_certificate_that_expires_between_two_connects(
    tls_server: SecuredServer, tmp_path: Path
) -> None:
    """Replaced on a server that restarts: the connection ends, and says why."""
    events: list[ConnectionEvent] = []

    async def change() -> None:
        assert tls_server.ca is not None
        write_expired(tls_server.ca, tmp_path, "server", "127.0.0.1")
        await trio.to_thread.run_sync(tls_server.process.restart)

    with pytest.raises(TLSError, match=r"(?i)certificate has expired"):
        await until_it_ends(tls_server.config(**FAST), events, change)
    assert (events[0].kind, events[-1].kind) == ("disconnected", "closed")


async def test_another_host_s_certificate_after_a_restart(
    tls_server: SecuredServer, tmp_path: Path
) -> None:
    events: list[ConnectionEvent] = []

    async def change() -> None:
        assert tls_server.ca is not None
        write_certificate(tls_server.ca, tmp_path, "server", "elsewhere.example")
        await trio.to_thread.run_sync(tls_server.process.restart)

    with pytest.raises(TLSError, match=r"127\.0\.0\.1"):
        await until_it_ends(tls_server.config(**FAST), events, change)


async def test_a_name_without_its_host_part(tmp_path: Path) -> None:
    """A certificate for a domain is none for hosts in it, and a wildcard is for one level."""
    ca = trustme.CA()
    cert, key = write_certificate(ca, tmp_path, "server", "*.nats.example")
    with encrypted(tmp_path, cert, key) as process:
        config = NatsConfig(process.url, tls_ca_cert=trust(ca, tmp_path), **FAST)
        for name in ("nats.example", "a.b.nats.example"):
            config.tls_hostname = name
            with pytest.raises(TLSError, match=r"(?i)certificate"):
                await gets_in(config)
        config.tls_hostname = "one.nats.example"
        await gets_in(config)


# ------------------------------------------------------------------ the client's


@pytest.mark.parametrize("fault", ["expired", "of another authority"])
async def test_a_client_certificate_that_the_server_refuses(
    mutual_tls_server: SecuredServer, tmp_path: Path, fault: str
) -> None:
    """With TLS 1.3 the server says so after our handshake, and its alert may be lost to a write:
    then the error names the setting to look at.
    """
    ca = mutual_tls_server.ca
    assert ca is not None
    if fault == "expired":
        cert, key = write_expired(ca, tmp_path, "bad", "client@example.org")
    else:
        cert, key = write_certificate(trustme.CA(), tmp_path, "bad", "client@example.org")
    config = mutual_tls_server.config(tls_client_cert=cert, tls_client_key=key, **FAST)
    with trio.fail_after(10), pytest.raises(ConnectionError) as caught:
        await gets_in(config)
    assert isinstance(caught.value, TLSError) or "tls_client_cert" in str(caught.value)


async def test_a_client_certificate_that_is_refused_later(
    mutual_tls_server: SecuredServer, tmp_path: Path
) -> None:
    """The server trusts another authority from its restart on."""
    events: list[ConnectionEvent] = []

    async def change() -> None:
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        await trio.to_thread.run_sync(mutual_tls_server.process.restart)

    with trio.fail_after(20), pytest.raises(TLSError):
        await until_it_ends(mutual_tls_server.config(**FAST), events, change)


# ------------------------------------------------------------------ after a loss


async def test_encrypted_again_after_each_restart(mutual_tls_server: SecuredServer) -> None:
    """With verification and our own certificate, every time."""
    async with connected(mutual_tls_server.config(**FAST)) as (js, events):
        for number in (1, 2):
            await trio.to_thread.run_sync(mutual_tls_server.process.restart)
            await events.wait("reconnected", number)
            await js.account_info()
            assert js.connection._link is not None
            assert js.connection._link.client.wire.encrypted
