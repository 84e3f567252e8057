"""Opens sessions: the first one, and the next one after a loss.

Why the reconnect policy is ours and not nats-py's: nats-py's first connect goes round for minutes
(PC-015), expired credentials close it for good (PC-016), a dying read loop leaves it deaf (T2),
and none of its waits can be seen or cancelled from Trio. One attempt of nats-py is exact; the
loop around it is here.

Every exception raised here is made here, from redacted text: nats-py's own carry frames whose
local variables are the credentials (PC-131).
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import math
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import trio
import trio_asyncio
from nats import errors as nats_errors

from shove_actors._errors import AuthenticationError, ConfigError, ConnectionError, TLSError

from ._address import ServerAddress
from ._aio import Endpoint, SessionEvents, open_session
from ._config import ChooseServer
from ._crossing import cross
from ._framing import MessageSink
from ._link import Link
from ._pool import ServerPool
from ._resolved import Resolved

#: What a failed attempt raises: the network, the server, TLS, the resolver, nkeys.
_FAILURES = (
    OSError,
    nats_errors.Error,
    asyncio.TimeoutError,
    ssl.SSLError,
    ValueError,
    ModuleNotFoundError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DialerEvents:
    """What the connection hears. None of these may raise or wait."""

    on_message: MessageSink
    on_notice: Callable[[Exception], None]
    on_info: Callable[[dict[str, object]], None]
    on_failure: Callable[[ServerAddress, ConnectionError], None]


class Dialer:
    """The policy of one `Connection.run`: which server, when, and when to give up."""

    def __init__(
        self,
        resolved: Resolved,
        loop: trio_asyncio.TrioEventLoop,
        events: DialerEvents,
        text: Callable[[BaseException], str],
        rng: random.Random,
    ) -> None:
        self._resolved = resolved
        self._loop = loop
        self._events = events
        self._text = text
        self._rng = rng
        self._names: dict[ServerAddress, str] = {}
        self.pool = ServerPool(
            resolved.servers,
            limit=resolved.max_reconnect_attempts,
            shuffle=None if resolved.dont_randomize else rng,
        )

    async def first(self) -> Link:
        """Each server once. Raises what is most telling of why none took us."""
        errors: list[ConnectionError] = []
        for server in self.pool.known:
            try:
                return await self._attempt(server)
            except ConnectionError as exc:
                errors.append(exc)
        # A refusal of credentials or of a certificate says more than a server that is down.
        telling = [e for e in errors if isinstance(e, (AuthenticationError, TLSError))]
        raise (telling or errors)[-1]

    async def again(self, lost: ServerAddress, cause: Exception | None) -> Link:
        """After a loss: as long as the policy says. Raises `ConnectionError` when giving up."""
        why = f": {cause}" if cause is not None else ""
        if not self._resolved.allow_reconnect:
            raise ConnectionError(
                f"the connection to {lost.redacted} was lost{why}; allow_reconnect is off"
            )
        last: Exception | None = cause
        self.pool.lost(lost)
        if self._resolved.choose_server is not None:
            return await self._chosen(self._resolved.choose_server, cause)
        rounds = 0
        while servers := self.pool.round():
            rounds += 1
            for server in servers:
                if server is servers[-1]:
                    await trio.sleep(self._resolved.reconnect_delay(rounds, self._rng))
                self.pool.tried(server)
                try:
                    return await self._attempt(server)
                except ConnectionError as exc:
                    last = exc
                    self._events.on_failure(server, exc)
                    if self._is_final(server, exc):
                        raise
        raise self._given_up(last)

    def _is_final(self, server: ServerAddress, error: ConnectionError) -> bool:
        """Whether every server has refused us, and so often that asking again changes nothing."""
        ignored = isinstance(error, AuthenticationError) and self._resolved.ignore_auth_errors
        if ignored or not isinstance(error, (AuthenticationError, TLSError)):
            self.pool.failed(server)
            return False
        return self.pool.refused(server)

    async def _chosen(self, choose: ChooseServer, cause: Exception | None) -> Link:
        """`again`, where the program says which server is next."""
        attempts, last = 0, cause
        while servers := self.pool.round():
            server, pause = self._choice(choose, servers, attempts)
            await trio.sleep(pause)
            attempts += 1
            self.pool.tried(server)
            try:
                return await self._attempt(server)
            except ConnectionError as exc:
                last = exc
                self._events.on_failure(server, exc)
                if self._is_final(server, exc):
                    raise
        raise self._given_up(last)

    def _choice(
        self, choose: ChooseServer, servers: list[ServerAddress], attempts: int
    ) -> tuple[ServerAddress, float]:
        """A choice that cannot be used is reported, and replaced by the policy's own."""
        by_name = {f"{each.host}:{each.port}": each for each in servers}
        try:
            name, pause = choose(tuple(by_name), attempts)
            if name not in by_name:
                raise ValueError(f"choose_server chose {name!r}, which is not one of its servers")
            if not (math.isfinite(pause) and pause >= 0):
                raise ValueError(f"choose_server returned the pause {pause!r}")
            return by_name[name], pause
        except Exception as exc:
            server = servers[attempts % len(servers)]
            self._events.on_failure(server, ConnectionError(self._text(exc)))
            rounds = attempts // len(servers) + 1
            return server, self._resolved.reconnect_delay(rounds, self._rng)

    def _given_up(self, last: Exception | None) -> ConnectionError:
        return ConnectionError(
            f"gave up after {self.pool.limit} reconnect attempts to each of "
            f"{', '.join(s.redacted for s in self.pool.known)}; last error: "
            f"{last if last is not None else 'the connection was lost'}"
        )

    def learn(self, urls: object, current: ServerAddress) -> list[ServerAddress]:
        """Members of the cluster that `current` told of and that were not known."""
        found: list[ServerAddress] = []
        for url in urls if isinstance(urls, list) else ():
            host, _, port = str(url).rpartition(":")
            if not host or not port.isdecimal():
                continue
            server = current.at(host.strip("[]"), int(port))
            if self.pool.learn(server):
                found.append(server)
                if server.tls and _is_ip(server.host):
                    # Members announce their IP; the certificate has the cluster's name.
                    self._names[server] = self._name_of(current)
        return found

    def _name_of(self, server: ServerAddress) -> str:
        return self._resolved.tls_hostname or self._names.get(server, server.host)

    async def _attempt(self, server: ServerAddress) -> Link:
        """One attempt on one server, within `connect_timeout`. Raises `ConnectionError` kinds."""
        resolved = self._resolved
        link: Link | None = None
        failure: ConnectionError | None = None
        with trio.move_on_after(resolved.connect_timeout):
            try:
                link = await self._open(server)
            except ConfigError as exc:
                failure = ConnectionError(f"cannot authenticate to {server.redacted}: {exc}")
            except _FAILURES as exc:
                failure = self._classify(server, exc)
        if link is not None:
            return link
        if failure is None:
            failure = ConnectionError(
                f"{server.redacted} did not complete the handshake within "
                f"{resolved.connect_timeout:g} s (connect_timeout)"
            )
        raise failure

    async def _open(self, server: ServerAddress) -> Link:
        resolved = self._resolved
        if resolved.creds_file is not None or resolved.credentials is not None:
            options = await trio.to_thread.run_sync(
                resolved.client_options, server, abandon_on_cancel=True
            )
        else:
            options = resolved.client_options(server)
        found = await trio.socket.getaddrinfo(
            server.host, server.port, type=trio.socket.SOCK_STREAM
        )
        ended = trio.Event()
        client = await cross(
            self._loop,
            open_session(
                Endpoint(
                    addresses=[(str(address[0]), int(address[1])) for *_, address in found],
                    host=server.host,
                    port=server.port,
                    tls=server.tls,
                    client_cert=resolved.client_cert,
                    ssl_context=resolved.ssl_context if server.tls else None,
                    tls_hostname=self._name_of(server) if server.tls else None,
                    options=options,
                ),
                SessionEvents(
                    on_message=self._events.on_message,
                    on_notice=self._events.on_notice,
                    on_info=self._events.on_info,
                    on_closed=ended.set,
                ),
            ),
            dispose=lambda client: client.wire.abort(),
        )
        return Link(client, server, ended, self._loop)

    def _classify(self, server: ServerAddress, failure: Exception) -> ConnectionError:
        where = server.redacted
        if isinstance(failure, TLSError):
            return TLSError(str(failure))
        if isinstance(failure, asyncio.TimeoutError):
            return ConnectionError(
                f"{where} did not complete the handshake within "
                f"{self._resolved.connect_timeout:g} s (connect_timeout)"
            )
        text = self._text(failure)
        lower = text.lower()
        # A handshake that is cut off says nothing about certificates: the server may be starting.
        if isinstance(failure, ssl.SSLError) and not isinstance(failure, ssl.SSLEOFError):
            return TLSError(f"TLS with {where} failed: {text}")
        if "timeout" not in lower and ("authorization" in lower or "authentication" in lower):
            return AuthenticationError(f"{where} refused the credentials: {text}")
        if isinstance(failure, ModuleNotFoundError):
            return ConnectionError(
                f"cannot authenticate to {where}: {text}; "
                "install the extra `shove-actors[nkeys]` for nkeys and credentials files"
            )
        if self._resolved.client_cert and server.tls and _hung_up(failure, lower):
            # With TLS 1.3 a certificate is refused after our side has finished its handshake. The
            # alert that says so may be lost to the write that is under way.
            text += "; it may refuse the client certificate (tls_client_cert)"
        # Of a name with several addresses asyncio makes one error, which has no number.
        if f"[errno {errno.ECONNREFUSED}]" in lower:
            text += "; nobody listens there: start `nats-server -js`, or correct the address"
        return ConnectionError(f"cannot connect to {where}: {text}")


def _hung_up(failure: Exception, text: str) -> bool:
    """The server ended what it had begun."""
    return (
        isinstance(failure, (BrokenPipeError, ConnectionResetError, EOFError, ssl.SSLEOFError))
        or "eof" in text
        or "closed the connection" in text
    )


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
