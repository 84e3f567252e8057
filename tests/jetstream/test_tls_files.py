"""TLS files: what cannot work is refused before a connection is made."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest
import trustme

from shove_actors.jetstream._config import NatsConfig
from tests.secured import SecuredServer, write_certificate

from .hiding import refusal


@pytest.fixture
def tls_files(tmp_path: Path) -> dict[str, str]:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    cert, key = write_certificate(ca, tmp_path, "client", "me@example.org")
    return {
        "tls_ca_cert": str(tmp_path / "ca.pem"),
        "tls_client_cert": cert,
        "tls_client_key": key,
    }


def test_a_tls_context_verifies(tls_files: dict[str, str]) -> None:
    resolved = NatsConfig("tls://h", **tls_files).validate()
    assert resolved.ssl_context is not None
    assert resolved.ssl_context.verify_mode is ssl.CERT_REQUIRED
    assert resolved.ssl_context.check_hostname
    assert resolved.ssl_context.get_ca_certs()
    assert resolved.tls


@pytest.mark.parametrize(
    "name", ["tls_ca_cert", "tls_client_cert", "tls_client_key", "tls_hostname"]
)
@pytest.mark.parametrize("url", ["nats://h", "h", "a,nats://b"])
def test_pc134_tls_options_on_a_plain_url(tls_files: dict[str, str], name: str, url: str) -> None:
    value = {**tls_files, "tls_hostname": "h"}[name]
    error = str(refusal(NatsConfig(url, **{name: value})))
    assert name in error
    assert "tls://" in error


@pytest.mark.parametrize(
    ("present", "missing"),
    [("tls_client_cert", "tls_client_key"), ("tls_client_key", "tls_client_cert")],
)
def test_pc134_certificate_without_key_and_the_reverse(
    tls_files: dict[str, str], present: str, missing: str
) -> None:
    error = str(refusal(NatsConfig("tls://h", **{present: tls_files[present]})))
    assert f"{present} is set without {missing}" in error


@pytest.mark.parametrize("name", ["tls_ca_cert", "tls_client_cert", "tls_client_key"])
@pytest.mark.parametrize("damage", ["missing", "directory", "empty", "garbage", "NUL"])
def test_pc134_an_unusable_file_is_named(
    tmp_path: Path, tls_files: dict[str, str], name: str, damage: str
) -> None:
    path = tmp_path / "damaged"
    if damage == "directory":
        path.mkdir()
    elif damage == "empty":
        path.write_text("")
    elif damage == "garbage":
        path.write_text("-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n")
    tls_files[name] = "a\0b" if damage == "NUL" else str(path)
    assert name in str(refusal(NatsConfig("tls://h", **tls_files)))


def test_pc134_a_key_of_another_certificate(tmp_path: Path, tls_files: dict[str, str]) -> None:
    _, tls_files["tls_client_key"] = write_certificate(trustme.CA(), tmp_path, "other", "h")
    assert "tls_client_key" in str(refusal(NatsConfig("tls://h", **tls_files)))


def test_pc134_an_encrypted_key_is_refused_and_asks_for_nothing(
    tmp_path: Path, tls_files: dict[str, str]
) -> None:
    from cryptography.hazmat.primitives import serialization as pem

    key = pem.load_pem_private_key(Path(tls_files["tls_client_key"]).read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"passphrase")
        )
    )
    tls_files["tls_client_key"] = str(locked)
    assert "not encrypted" in str(refusal(NatsConfig("tls://h", **tls_files)))


@pytest.mark.parametrize(
    ("hostname", "accepted"), [("127.0.0.1", True), ("localhost", True), ("other.example", False)]
)
def test_pc134_the_host_name_is_verified(
    tls_server: SecuredServer, hostname: str, accepted: bool
) -> None:
    context = tls_server.config().validate().ssl_context
    assert context is not None
    process = tls_server.process
    with socket.create_connection((process.host, process.port), 5) as connection:
        assert connection.recv(4096).startswith(b"INFO")
        if not accepted:
            with pytest.raises(ssl.SSLCertVerificationError):
                context.wrap_socket(connection, server_hostname=hostname)
            return
        with context.wrap_socket(connection, server_hostname=hostname) as encrypted:
            assert encrypted.version() in ("TLSv1.2", "TLSv1.3")


def test_pc134_an_unknown_authority_is_refused(tls_server: SecuredServer, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    context = tls_server.config(tls_ca_cert=str(other)).validate().ssl_context
    assert context is not None
    process = tls_server.process
    with socket.create_connection((process.host, process.port), 5) as connection:
        connection.recv(4096)
        with pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(connection, server_hostname="127.0.0.1")
