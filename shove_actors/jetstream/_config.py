"""`NatsConfig`: how to reach NATS, as whom, and how patiently.

Attributes are plain and may be set one by one, so nothing is checked until `validate`, which the
connection calls once (in a thread, since it reads files). No way of showing a configuration shows a
credential: `repr`, errors, tracebacks with local variables (see `_problem`), and pickling, which
is refused while there is something to hide.
Tests: `test_pc131_*`, `test_pc134_*`.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace

from shove_actors._errors import ConfigError

from ._address import ServerAddress as ServerAddress
from ._address import parse_servers, parse_url, raw_userinfo, split_urls
from ._config_checks import check_settings
from ._credentials import check_creds_file, check_seed
from ._events import ConnectionEvent
from ._given_credentials import Credentials
from ._problem import Problem
from ._redact import MASK, redact
from ._resolved import Resolved as Resolved
from ._tls import build_context

ConnectionCallback = Callable[[ConnectionEvent], object]
#: Servers as "host:port" and the number of attempts so far; one of them, and a pause in seconds.
ChooseServer = Callable[[Sequence[str], int], "tuple[str, float]"]
#: So many secrets of earlier attempts are still taken out of texts.
_REMEMBERED = 64

_CREDENTIALS = ("username", "password", "token", "nkey_seed")
_TLS_FILES = ("tls_ca_cert", "tls_client_cert", "tls_client_key")
_TLS_OPTIONS = (*_TLS_FILES, "tls_hostname", "tls_context")


@dataclass(slots=True)
class NatsConfig:
    """Settings of one connection. Durations are seconds.

        config = NatsConfig("tls://nats.example.com", creds_file="/run/secrets/app.creds")
        config.name = "billing"

    * `url_or_urls`: one URL, several separated by commas, or a list. Schemes `nats`, `tls`,
      `nats+tls`; defaults `nats` and port 4222. A URL may carry `user:password@` or `token@`.
      In the comma-separated form a comma inside a credential is written `%2C`.
    * one kind of credentials at most: `username` with `password`, `token`, `nkey_seed`,
      `creds_file` (needs the extra `nkeys`), or the URL's own.
    * `tls_*`: for `tls://` URLs only. `tls_ca_cert` replaces the system's authorities;
      `tls_hostname` is the name the server's certificate must have, if not the URL's host.
    * `max_reconnect_attempts`: per server and outage; None tries until all servers have refused us.
    * `reconnect_wait` plus a random part of `reconnect_jitter` (`reconnect_jitter_tls` with TLS)
      between rounds; `custom_reconnect_delay(rounds)` replaces both.
    * `connect_timeout`: for one attempt on one server. `request_timeout`: for one API request.
    * `on_*`: called with a `ConnectionEvent`; they must not wait (`Connection.events` may).
    * `credentials`: called in a worker thread for each attempt; in place of all other kinds.
    * `tls_context`: in place of the files. `tls_handshake_first`: do not wait for the server to
      speak first; the server must be set up so, too.
    * `retry_first_connect`: the first connect is tried as often as a reconnect.
    * `choose_server(servers, attempts)`: which of `servers` ("host:port") to try next after a
      loss, and after how many seconds; `attempts` were made since. Replaces order and pauses.
    * `ignore_auth_errors`: go on after every server has refused the credentials twice.

    Constructing and changing it never fails; `validate` raises `ConfigError`. Copies are
    independent. Pickling one that holds credentials raises `ConfigError`.
    """

    url_or_urls: str | Sequence[str] = "nats://127.0.0.1:4222"
    _: KW_ONLY
    username: str | None = None
    password: str | None = None
    token: str | None = None
    nkey_seed: str | None = None
    creds_file: str | os.PathLike[str] | None = None
    tls_ca_cert: str | os.PathLike[str] | None = None
    tls_client_cert: str | os.PathLike[str] | None = None
    tls_client_key: str | os.PathLike[str] | None = None
    tls_hostname: str | None = None
    name: str | None = None
    max_reconnect_attempts: int | None = None
    reconnect_wait: float = 2.0
    reconnect_jitter: float = 0.1
    reconnect_jitter_tls: float = 1.0
    custom_reconnect_delay: Callable[[int], float] | None = None
    dont_randomize: bool = False
    connect_timeout: float = 2.0
    request_timeout: float = 5.0
    ping_interval: float = 20.0
    max_outstanding_pings: int = 2
    allow_reconnect: bool = True
    on_disconnected: ConnectionCallback | None = None
    on_reconnected: ConnectionCallback | None = None
    on_closed: ConnectionCallback | None = None
    on_error: ConnectionCallback | None = None
    on_connected: ConnectionCallback | None = None
    on_discovered: ConnectionCallback | None = None
    on_lame_duck: ConnectionCallback | None = None
    credentials: Callable[[], Credentials] | None = field(default=None, repr=False)
    tls_context: ssl.SSLContext | None = None
    tls_handshake_first: bool = False
    retry_first_connect: bool = False
    choose_server: ChooseServer | None = None
    ignore_auth_errors: bool = False
    _from_files: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    def validate(self) -> Resolved:
        """Checks everything that can be checked without connecting; reads the named files.

        Raises `ConfigError` naming the field, the rule and the fix; never a credential.
        """
        problem = check_settings(self)
        servers = parse_servers(self.url_or_urls)
        if problem is None and isinstance(servers, Problem):
            problem = servers
        if problem is None and not isinstance(servers, Problem):
            problem = self._tls_problem(servers) or self._auth_problem(servers)
        if problem is not None or isinstance(servers, Problem):
            raise ConfigError(problem.text if problem is not None else "url_or_urls is unusable")
        if not servers[0].tls:
            return self._resolved(servers, None)
        context: ssl.SSLContext | Problem | None = self.tls_context
        if context is None:
            context = build_context(
                ca_cert=_path(self.tls_ca_cert),
                client_cert=_path(self.tls_client_cert),
                client_key=_path(self.tls_client_key),
            )
        if isinstance(context, Problem):
            raise ConfigError(context.text)
        return self._resolved(servers, context)

    def secrets(self) -> tuple[str, ...]:
        """Every credential this configuration holds, to take out of texts. Never show it.

        Those of a credentials file are among them once `validate` has read it. User names are
        not: they are removed from URLs, but otherwise often are everyday words.
        """
        found = {value for value in (self.password, self.token, self.nkey_seed) if value}
        found.update(value.strip() for value in tuple(found))
        found.update(self._from_files)
        urls = split_urls(self.url_or_urls)
        if isinstance(urls, Problem):
            # Unclear where a credential ends: all of it is one.
            urls, whole = [], self.url_or_urls
            found.update([whole] if isinstance(whole, str) else _texts(whole))
        for url in urls:
            userinfo = raw_userinfo(url)
            server = parse_url(url)
            if isinstance(server, Problem):
                found.update((url.strip(), userinfo))
            else:
                found.update(filter(None, (server.password, server.token)))
                found.add(userinfo.partition(":")[2] or userinfo)
        return tuple(sorted(filter(None, found)))

    def redact(self, text: str) -> str:
        """`text` without the userinfo of any URL and without any of `secrets()`."""
        return redact(text, self.secrets())

    def __repr__(self) -> str:
        shown = [f"url_or_urls={self._shown_urls()!r}"]
        for setting in fields(self)[1:]:
            value = getattr(self, setting.name)
            if setting.repr and value != setting.default:
                hidden = setting.name in _CREDENTIALS
                shown.append(f"{setting.name}={MASK if hidden else value!r}")
        return f"NatsConfig({', '.join(shown)})"

    def __copy__(self) -> NatsConfig:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, object]) -> NatsConfig:
        # Everything but a list of URLs is immutable or, as callbacks are, shared on purpose.
        urls = self.url_or_urls
        return replace(self, url_or_urls=urls if isinstance(urls, str) else list(urls))

    def __reduce_ex__(self, protocol: object) -> str | tuple[object, ...]:
        if self.username or self.secrets():
            raise ConfigError(
                "a NatsConfig that holds credentials is not pickled, because they would be "
                "readable in the result. Build it where it is used, or use creds_file"
            )
        return object.__reduce_ex__(self, 2)

    def _shown_urls(self) -> list[str]:
        urls = split_urls(self.url_or_urls)
        if isinstance(urls, Problem):
            return ["<unusable>"]
        shown = []
        for url in urls:
            server = parse_url(url)
            # Of what does not parse nobody knows which part is the password.
            shown.append("<unusable>" if isinstance(server, Problem) else server.redacted)
        return shown

    def _remember(self, secrets: tuple[str, ...]) -> None:
        """What has been learnt while connecting is taken out of texts, too."""
        self._from_files = tuple(dict.fromkeys((*secrets, *self._from_files)))[:_REMEMBERED]

    def _resolved(
        self, servers: tuple[ServerAddress, ...], context: ssl.SSLContext | None
    ) -> Resolved:
        return Resolved(
            servers=servers,
            ssl_context=context,
            tls_hostname=self.tls_hostname,
            # Whether a context of the user's has one cannot be seen; the server will tell.
            client_cert=self.tls_client_cert is not None or self.tls_context is not None,
            tls_handshake_first=self.tls_handshake_first,
            credentials=self.credentials,
            remember=self._remember,
            retry_first_connect=self.retry_first_connect,
            choose_server=self.choose_server,
            ignore_auth_errors=self.ignore_auth_errors,
            name=self.name,
            username=self.username,
            password=self.password,
            token=self.token,
            nkey_seed=self.nkey_seed.strip() if self.nkey_seed is not None else None,
            creds_file=_path(self.creds_file),
            max_reconnect_attempts=self.max_reconnect_attempts,
            reconnect_wait=self.reconnect_wait,
            reconnect_jitter=self.reconnect_jitter_tls if servers[0].tls else self.reconnect_jitter,
            custom_reconnect_delay=self.custom_reconnect_delay,
            dont_randomize=self.dont_randomize,
            allow_reconnect=self.allow_reconnect,
            connect_timeout=self.connect_timeout,
            request_timeout=self.request_timeout,
            ping_interval=self.ping_interval,
            max_outstanding_pings=self.max_outstanding_pings,
            secrets=self.secrets(),
        )

    def _tls_problem(self, servers: tuple[ServerAddress, ...]) -> Problem | None:
        encrypted = {server.tls for server in servers}
        if len(encrypted) > 1:
            return Problem(
                "url_or_urls mixes tls:// and nats:// servers; a reconnect could lose encryption. "
                "Use one scheme for all"
            )
        options = [name for name in _TLS_OPTIONS if getattr(self, name) is not None]
        if self.tls_handshake_first:
            options.append("tls_handshake_first")
        if options and not servers[0].tls:
            return Problem(
                f"{options[0]} is set but url_or_urls is not encrypted, so it would be ignored. "
                f"Use tls:// instead of nats://, or remove {', '.join(options)}"
            )
        files = [name for name in options if name in _TLS_FILES]
        if self.tls_context is not None and files:
            return Problem(f"tls_context and {files[0]} are set; load the files into the context")
        if self.tls_client_cert is not None and self.tls_client_key is None:
            return Problem("tls_client_cert is set without tls_client_key; set both or neither")
        if self.tls_client_key is not None and self.tls_client_cert is None:
            return Problem("tls_client_key is set without tls_client_cert; set both or neither")
        return None

    def _auth_problem(self, servers: tuple[ServerAddress, ...]) -> Problem | None:
        kinds = [
            name
            for name in ("username", "password", "token", "nkey_seed", "creds_file", "credentials")
            if getattr(self, name) is not None
        ]
        if kinds and any(server.has_credentials for server in servers):
            return Problem(
                f"{kinds[0]} is set and url_or_urls carries credentials too; remove one of them"
            )
        if "username" in kinds and "password" not in kinds:
            return Problem("username is set without password; set both, or use token")
        if "password" in kinds and "username" not in kinds:
            return Problem("password is set without username; set both, or use token")
        if len([name for name in kinds if name != "password"]) > 1:
            return Problem(
                f"{' and '.join(kinds)} are set; choose one kind of credentials: username with "
                "password, token, nkey_seed, creds_file or credentials"
            )
        if self.nkey_seed is not None:
            return check_seed(self.nkey_seed, "nkey_seed")
        path = _path(self.creds_file)
        if path is not None:
            checked = check_creds_file(path, "creds_file")
            if isinstance(checked, Problem):
                return checked
            self._from_files = checked.values
        return None


def _path(value: str | os.PathLike[str] | None) -> str | None:
    return None if value is None else os.fspath(value)


def _texts(value: object) -> list[str]:
    items = value if isinstance(value, Sequence) else ()
    return [item for item in items if isinstance(item, str)]
