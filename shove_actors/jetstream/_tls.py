"""Builds the TLS context of a connection: always verified, host name included."""

from __future__ import annotations

import ssl

from ._credentials import read_text
from ._problem import Problem


def build_context(
    *, ca_cert: str | None, client_cert: str | None, client_key: str | None
) -> ssl.SSLContext | Problem:
    """A client context that verifies the server, or what is wrong with a file."""
    for path, name in (
        (ca_cert, "tls_ca_cert"),
        (client_cert, "tls_client_cert"),
        (client_key, "tls_client_key"),
    ):
        if path is not None:
            text = read_text(path, name)
            if isinstance(text, Problem):
                return text
    try:
        context = ssl.create_default_context(cafile=ca_cert)
    except (ssl.SSLError, OSError):
        return Problem(f"tls_ca_cert: {ca_cert!r} holds no readable PEM certificate")
    if client_cert is not None and client_key is not None:
        try:
            # Without a callback OpenSSL would ask for a passphrase on the terminal and wait.
            context.load_cert_chain(client_cert, client_key, password=lambda: b"")
        except (ssl.SSLError, OSError, ValueError) as error:
            return Problem(_why_unusable(client_cert, client_key, error))
    return context


def _why_unusable(cert: str, key: str, error: Exception) -> str:
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"tls_client_key: {key!r} is not the key of tls_client_cert {cert!r}"
    return (
        f"tls_client_cert: {cert!r} with tls_client_key {key!r} cannot be used; both must be PEM, "
        "the key belonging to the certificate and not encrypted"
    )
