"""A checked configuration: what the connection works with."""

from __future__ import annotations

import logging
import math
import random
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shove_actors._errors import ConfigError
from shove_actors._log import about

from ._address import ServerAddress
from ._credentials import check_creds_file
from ._given_credentials import Credentials, ask
from ._problem import Problem

logger = logging.getLogger("shove_actors.jetstream")


@dataclass(frozen=True, kw_only=True, eq=False)
class Resolved:
    """The outcome of `NatsConfig.validate`. Its `repr` shows redacted addresses only."""

    servers: tuple[ServerAddress, ...]
    ssl_context: ssl.SSLContext | None
    tls_hostname: str | None
    client_cert: bool
    name: str | None
    username: str | None
    password: str | None
    token: str | None
    nkey_seed: str | None
    creds_file: str | None
    max_reconnect_attempts: int | None
    reconnect_wait: float
    reconnect_jitter: float
    custom_reconnect_delay: Callable[[int], float] | None
    dont_randomize: bool
    allow_reconnect: bool
    connect_timeout: float
    request_timeout: float
    ping_interval: float
    max_outstanding_pings: int
    tls_handshake_first: bool = False
    credentials: Callable[[], Credentials] | None = None
    remember: Callable[[tuple[str, ...]], None] | None = None
    retry_first_connect: bool = False
    choose_server: Callable[[Sequence[str], int], tuple[str, float]] | None = None
    ignore_auth_errors: bool = False
    secrets: tuple[str, ...] = field(default=())

    @property
    def tls(self) -> bool:
        """Whether every server must be reached with TLS; mixed lists are refused."""
        return self.servers[0].tls

    def reconnect_delay(self, rounds: int, rng: random.Random) -> float:
        """Seconds to wait after `rounds` completed rounds over all servers (from 1 on).

        `reconnect_wait` plus up to the jitter, or what `custom_reconnect_delay` says. A custom
        function that raises, or returns no usable number, is reported in the log and the default
        is used: a reconnect must not fail because of it, nor spin.
        """
        default = self.reconnect_wait + rng.uniform(0, self.reconnect_jitter)
        if self.custom_reconnect_delay is None:
            return default
        try:
            delay = float(self.custom_reconnect_delay(rounds))
        except Exception:
            logger.exception(
                "custom_reconnect_delay raised; waiting %.3g s instead",
                default,
                extra=about("reconnect_delay_wrong"),
            )
            return default
        if not (math.isfinite(delay) and delay >= 0):
            logger.error(
                "custom_reconnect_delay returned %r; it must be 0 or more seconds",
                delay,
                extra=about("reconnect_delay_wrong"),
            )
            return default
        return delay

    def client_options(self, server: ServerAddress) -> dict[str, Any]:
        """The keyword arguments for nats-py's `connect` that depend on this configuration.

        Credentials of the address are given as options, because nats-py does not percent-decode
        the userinfo of a URL. A credentials file is read each time, so that a reconnect takes what
        has been put there meanwhile (PC-016); `ConfigError` when it is unusable now.
        """
        options: dict[str, Any] = {
            "name": self.name,
            "connect_timeout": self.connect_timeout,
            "ping_interval": self.ping_interval,
            "max_outstanding_pings": self.max_outstanding_pings,
        }
        if self.tls_handshake_first:
            options["tls_handshake_first"] = True
        if self.credentials is not None:
            given = ask(self.credentials)
            if self.remember is not None:
                self.remember(given.secrets())
            checked_options = given.client_options()
            if isinstance(checked_options, Problem):
                raise ConfigError(checked_options.text)
            return options | checked_options
        if server.username is not None:
            options |= {"user": server.username, "password": server.password}
        elif server.token is not None:
            options["token"] = server.token
        elif self.username is not None:
            options |= {"user": self.username, "password": self.password}
        elif self.token is not None:
            options["token"] = self.token
        elif self.nkey_seed is not None:
            options["nkeys_seed_str"] = self.nkey_seed
        elif self.creds_file is not None:
            checked = check_creds_file(self.creds_file, "creds_file")
            if isinstance(checked, Problem):
                raise ConfigError(checked.text)
            options |= checked.callbacks()
        return options

    def __repr__(self) -> str:
        return f"<Resolved {', '.join(server.redacted for server in self.servers)}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a resolved configuration cannot be pickled; pickle how it was made")
