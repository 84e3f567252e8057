"""Servers that want to know who connects, or want to be encrypted. Each is a context manager."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme

from shove_actors.embedded import ServerProcess
from shove_actors.jetstream._config import NatsConfig

from .nkey_jwt import OperatorMode, new_operator_mode, new_user_key

USERNAME, PASSWORD = "app", "pa:ss@wo/rd"
TOKEN = "t0ken-for-tests"


@dataclass(frozen=True, kw_only=True)
class SecuredServer:
    """A server, and the settings with which it lets one in."""

    process: ServerProcess
    settings: dict[str, Any] = field(repr=False)
    operator: OperatorMode | None = field(default=None, repr=False)
    ca: trustme.CA | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return f"{self.process.host}:{self.process.port}"

    def config(self, **changes: Any) -> NatsConfig:
        """A working configuration; `changes` replace settings, None removes one."""
        scheme = "tls" if self.ca is not None else "nats"
        url = changes.pop("url_or_urls", f"{scheme}://{self.address}")
        return NatsConfig(url, **{**self.settings, **changes})


@contextmanager
def password_server() -> Iterator[SecuredServer]:
    text = f'authorization {{ user: "{USERNAME}", password: "{PASSWORD}" }}'
    with ServerProcess(config=text) as process:
        yield SecuredServer(process=process, settings={"username": USERNAME, "password": PASSWORD})


@contextmanager
def token_server() -> Iterator[SecuredServer]:
    with ServerProcess(config=f'authorization {{ token: "{TOKEN}" }}') as process:
        yield SecuredServer(process=process, settings={"token": TOKEN})


@contextmanager
def nkey_server() -> Iterator[SecuredServer]:
    user = new_user_key()
    text = f"authorization {{ users: [ {{ nkey: {user.public} }} ] }}"
    with ServerProcess(config=text) as process:
        yield SecuredServer(process=process, settings={"nkey_seed": user.seed})


@contextmanager
def creds_server(directory: Path) -> Iterator[SecuredServer]:
    """Operator mode: users are known by their JWTs. `operator.creds()` makes further users."""
    operator = new_operator_mode()
    creds_file = directory / "app.creds"
    creds_file.write_text(operator.creds())
    with ServerProcess(config=operator.server_config()) as process:
        yield SecuredServer(
            process=process, settings={"creds_file": str(creds_file)}, operator=operator
        )


@contextmanager
def tls_server(
    directory: Path, *, mutual: bool = False, first: bool = False
) -> Iterator[SecuredServer]:
    """A server with a certificate for 127.0.0.1 and localhost; `mutual` wants one of the client.

    `first`: the client has to begin the handshake, before the server says a word.
    """
    ca = trustme.CA()
    files = write_certificate(ca, directory, "server", "127.0.0.1", "localhost")
    ca_file = directory / "ca.pem"
    ca.cert_pem.write_to_path(str(ca_file))
    settings = {"tls_ca_cert": str(ca_file)}
    verify = ""
    if mutual:
        cert, key = write_certificate(ca, directory, "client", "client@example.org")
        settings |= {"tls_client_cert": cert, "tls_client_key": key}
        verify = f'ca_file: "{ca_file}", verify: true,'
    if first:
        verify += " handshake_first: true,"
    text = f'tls {{ {verify} cert_file: "{files[0]}", key_file: "{files[1]}", timeout: 5 }}'
    with ServerProcess(config=text) as process:
        yield SecuredServer(process=process, settings=settings, ca=ca)


def write_certificate(
    ca: trustme.CA, directory: Path, name: str, *identities: str
) -> tuple[str, str]:
    """Writes `name.pem` and `name.key`; returns their paths."""
    issued = ca.issue_cert(*identities)
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    issued.private_key_pem.write_to_path(str(key))
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return str(cert), str(key)


def client_context(ca: trustme.CA) -> ssl.SSLContext:
    """A client context that trusts `ca` only, for raw sockets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.configure_trust(context)
    return context
