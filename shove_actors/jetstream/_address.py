"""Server addresses: parsed from what users write, shown without credentials.

The userinfo of a URL ends at the *last* `@`, because passwords are often pasted in raw and may
contain `@`, `:` and `/`. NATS URLs have no path, so nothing after the host can contain one.
No message here repeats any part of the text: a forgotten `@` puts a password where the host or
the port is expected.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from ._problem import Problem
from ._redact import MASK

DEFAULT_PORT = 4222
_SCHEMES = {"nats": False, "tls": True, "nats+tls": True}
_FIELD = "url_or_urls"
# In a comma-separated string a comma surely ends a URL if a scheme follows.
_BEFORE_SCHEME = re.compile(r",\s*(?=[A-Za-z][A-Za-z0-9+.\-]*://)")
_NOT_IN_HOST = re.compile(r"[\s\x00-\x1f\x7f/\\?#@,\[\]:%<>\"'`{}|^]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """One server, and the credentials its URL carried, if any (percent-decoded)."""

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def has_credentials(self) -> bool:
        return self.username is not None or self.token is not None

    @property
    def redacted(self) -> str:
        """The address for people: `nats://***@host:4222`, or without `***@` if it had none."""
        scheme = "tls" if self.tls else "nats"
        host = f"[{self.host}]" if ":" in self.host else self.host
        userinfo = f"{MASK}@" if self.has_credentials else ""
        return f"{scheme}://{userinfo}{host}:{self.port}"

    def at(self, host: str, port: int) -> ServerAddress:
        """Another server of the same cluster: same credentials, same encryption."""
        return replace(self, host=host, port=port)

    def __repr__(self) -> str:
        return f"<ServerAddress {self.redacted}>"

    def __str__(self) -> str:
        return self.redacted

    def __reduce__(self) -> tuple[object, ...]:
        if self.has_credentials:
            raise TypeError("a ServerAddress with credentials cannot be pickled")
        return (_address, (self.host, self.port, self.tls))


def _address(host: str, port: int, tls: bool) -> ServerAddress:
    return ServerAddress(host=host, port=port, tls=tls)


def split_urls(value: object) -> list[str] | Problem:
    """The single URLs of a URL, a comma-separated string or a sequence of URLs."""
    if isinstance(value, str):
        urls: list[str] = []
        for chunk in _BEFORE_SCHEME.split(value):
            if "," in chunk[: chunk.rfind("@") + 1]:
                return Problem(
                    f"{_FIELD}: a comma stands before an `@`, so it is unclear whether it belongs "
                    "to a credential. Write it as %2C, give each server its scheme, or pass a list"
                )
            urls += chunk.split(",")
        # A trailing comma is a habit, not a server.
        while len(urls) > 1 and not urls[-1].strip():
            urls.pop()
        return urls
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
        return Problem(
            f"{_FIELD} is of type {type(value).__name__}; give a URL, a comma-separated string of "
            "URLs, or a list of URLs"
        )
    for number, item in enumerate(value, start=1):
        if not isinstance(item, str):
            return Problem(
                f"{_FIELD}: entry {number} is of type {type(item).__name__}; "
                "every entry must be a string"
            )
    return list(value)


def parse_servers(value: object) -> tuple[ServerAddress, ...] | Problem:
    """All servers, or the first thing that is wrong."""
    urls = split_urls(value)
    if isinstance(urls, Problem):
        return urls
    if not urls:
        return Problem(f"{_FIELD} is empty; give at least one server, such as nats://host:4222")
    servers: list[ServerAddress] = []
    for number, url in enumerate(urls, start=1):
        server = parse_url(url)
        if isinstance(server, Problem):
            where = f"{_FIELD}: entry {number}" if len(urls) > 1 else _FIELD
            return Problem(f"{where} {server.text}")
        servers.append(server)
    return tuple(servers)


def raw_userinfo(url: str) -> str:
    """The userinfo as it was typed, empty if there is none."""
    rest = url.partition("://")[2] if "://" in url else url
    return rest.rpartition("@")[0].strip()


def parse_url(url: str) -> ServerAddress | Problem:
    """One server; a problem reads on from the name of the field."""
    text = url.strip()
    if not text:
        return Problem("is empty; give a server, such as nats://host:4222")
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "nats", text
    scheme = scheme.lower()
    if scheme in ("ws", "wss"):
        return Problem(
            f"has the scheme {scheme}://, and WebSocket is not supported. Connect to the server's "
            "client port with nats:// or tls://"
        )
    if scheme not in _SCHEMES:
        return Problem("has an unknown scheme; use nats://, tls:// or nats+tls://")
    userinfo, at, location = rest.rstrip("/").rpartition("@")
    host_and_port = _host_and_port(location)
    if isinstance(host_and_port, Problem):
        return host_and_port
    host, port = host_and_port
    tls = _SCHEMES[scheme]
    if not at:
        return ServerAddress(host=host, port=port, tls=tls)
    name, colon, password = userinfo.partition(":")
    if not name:
        return Problem("has an `@` but no username or token before it")
    if not colon:
        return ServerAddress(host=host, port=port, tls=tls, token=unquote(name))
    if not password:
        return Problem("has a username without a password; write user:password@host")
    return ServerAddress(
        host=host, port=port, tls=tls, username=unquote(name), password=unquote(password)
    )


def _host_and_port(location: str) -> tuple[str, int] | Problem:
    if location.startswith("["):
        host, bracket, after = location[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            return Problem("has an unfinished IPv6 address; write [address]:port")
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return Problem("has something in brackets that is no IPv6 address")
        port_text = after[1:] if after else None
    else:
        if location.count(":") > 1:
            return Problem(
                "has more than one `:` after the userinfo; put an IPv6 address in brackets"
            )
        host, colon, after = location.partition(":")
        port_text = after if colon else None
        if not host:
            return Problem("has no host; write nats://host:4222")
        if _NOT_IN_HOST.search(host):
            return Problem(
                "has a character in its host that no host name has. NATS URLs have no path or "
                "query; a credential must come before an `@`"
            )
    if port_text is None:
        return host, DEFAULT_PORT
    if re.match(r"[0-9]{1,5}[/?#]", port_text):
        return Problem(
            "has something after its port, and NATS URLs have no path or query; end it with the "
            "port (an account or a domain is not chosen by the URL)"
        )
    # At most five digits, so that no text of any length becomes a number.
    if not re.fullmatch(r"[0-9]{1,5}", port_text) or not 1 <= int(port_text) <= 65535:
        return Problem("has a bad port; it must be a number from 1 to 65535")
    return host, int(port_text)
