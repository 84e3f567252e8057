"""PC-131 on real servers: what each kind of credentials leaves behind in a whole life.

Success, refusal, a lost and regained connection, a server that is gone, a forbidden subject; and
then every log line with all its fields, everything written to the terminal (nats-py's own
callbacks write there), every warning, every `repr`, and every exception with its causes, its
traceback and the local variables of the package's frames are searched for every form of the secret.
"""

from __future__ import annotations

import base64
import logging
import pickle
import re
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio
import trustme

from shove_actors import (
    AuthenticationError,
    Broker,
    ConnectionError,
    NatsConfig,
    Outcome,
    PublishForbidden,
    TLSError,
    Topic,
    TopologyBuilder,
    open_broker,
)
from shove_actors.backends import BackendEvent
from shove_actors.backends.nats import NatsBackend
from shove_actors.embedded import ServerProcess
from tests.jetstream.kit import shown_by
from tests.nkey_jwt import new_operator_mode, new_user_key
from tests.runtime.world import Journal, Order, consuming
from tests.secured import write_certificate
from tests.support import wait_until

pytestmark = pytest.mark.server

PASSWORD = "pa:ss@wo/rd-s3cret,%41"
TOKEN = "t0ken-s3cret-that-nobody-may-see"
FORBIDDEN = "forbidden-topic"
LOGGERS = ("nats", "nats.aio.client", "asyncio", "trio-asyncio", "trio", "shove_actors")

TOPIC = Topic(Order, TopologyBuilder("open-topic").build())
CLOSED = Topic(Order, TopologyBuilder(FORBIDDEN).build())


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A server, who gets in, who does not, and what must never be shown."""

    server: ServerProcess
    good: Callable[[], NatsConfig]
    bad: Callable[[], NatsConfig]
    secrets: list[str] = field(repr=False)
    #: Whether the server can forbid this user a subject (a token has no permissions).
    forbids: bool = True
    refusal: type[ConnectionError] = AuthenticationError


def impatient(url: str, **settings: Any) -> NatsConfig:
    return NatsConfig(
        url,
        reconnect_wait=0.02,
        reconnect_jitter=0.0,
        reconnect_jitter_tls=0.0,
        connect_timeout=2.0,
        **settings,
    )


def users(*entries: str) -> str:
    return f"authorization {{ users: [ {', '.join(entries)} ] }}"


DENY = f'permissions: {{ publish: {{ deny: "{FORBIDDEN}" }} }}'


def password_kind(stack: ExitStack, directory: Path) -> Kind:
    server = stack.enter_context(
        ServerProcess(config=users(f'{{ user: me, password: "{PASSWORD}", {DENY} }}'))
    )
    return Kind(
        server=server,
        good=lambda: impatient(server.url, username="me", password=PASSWORD),
        bad=lambda: impatient(server.url, username="me", password=PASSWORD + "x"),
        secrets=[PASSWORD],
    )


def url_kind(stack: ExitStack, directory: Path) -> Kind:
    kind = password_kind(stack, directory)
    address = kind.server.url.removeprefix("nats://")
    encoded = quote(PASSWORD, safe="")
    return Kind(
        server=kind.server,
        good=lambda: impatient(f"nats://me:{encoded}@{address},nats://me:{encoded}@{address}"),
        bad=lambda: impatient(f"nats://me:{encoded}x@{address}"),
        secrets=[PASSWORD],
    )


def token_kind(stack: ExitStack, directory: Path) -> Kind:
    server = stack.enter_context(ServerProcess(config=f'authorization {{ token: "{TOKEN}" }}'))
    return Kind(
        server=server,
        good=lambda: impatient(server.url, token=TOKEN),
        bad=lambda: impatient(server.url, token=TOKEN + "x"),
        secrets=[TOKEN],
        forbids=False,
    )


def token_url_kind(stack: ExitStack, directory: Path) -> Kind:
    kind = token_kind(stack, directory)
    address = kind.server.url.removeprefix("nats://")
    return Kind(
        server=kind.server,
        good=lambda: impatient(f"nats://{TOKEN}@{address}"),
        bad=lambda: impatient(f"nats://{TOKEN}x@{address}"),
        secrets=[TOKEN],
        forbids=False,
    )


def nkey_kind(stack: ExitStack, directory: Path) -> Kind:
    user, stranger = new_user_key(), new_user_key()
    server = stack.enter_context(ServerProcess(config=users(f"{{ nkey: {user.public}, {DENY} }}")))
    return Kind(
        server=server,
        good=lambda: impatient(server.url, nkey_seed=user.seed),
        bad=lambda: impatient(server.url, nkey_seed=stranger.seed),
        secrets=[user.seed, stranger.seed],
    )


def creds_kind(stack: ExitStack, directory: Path) -> Kind:
    operator, other = new_operator_mode(), new_operator_mode()
    texts = {"good": operator.creds(deny=[FORBIDDEN]), "bad": other.creds()}
    for name, text in texts.items():
        (directory / f"{name}.creds").write_text(text)
    server = stack.enter_context(ServerProcess(config=operator.server_config()))
    secrets = [
        line
        for text in texts.values()
        for line in text.splitlines()
        if line and not line.startswith("-")
    ]
    assert len(secrets) == 4  # two JWTs, two seeds
    return Kind(
        server=server,
        good=lambda: impatient(server.url, creds_file=str(directory / "good.creds")),
        bad=lambda: impatient(server.url, creds_file=str(directory / "bad.creds")),
        secrets=secrets,
    )


def certificate_kind(stack: ExitStack, directory: Path) -> Kind:
    ca, foreign = trustme.CA(), trustme.CA()
    cert, key = write_certificate(ca, directory, "server", "127.0.0.1", "localhost")
    own_cert, own_key = write_certificate(ca, directory, "client", "me@example.org")
    bad_cert, bad_key = write_certificate(foreign, directory, "stranger", "me@example.org")
    ca_file = str(directory / "ca.pem")
    ca.cert_pem.write_to_path(ca_file)
    text = (
        f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{ca_file}", verify: true, '
        "timeout: 5 }\n" + users(f'{{ user: me, password: "{PASSWORD}", {DENY} }}')
    )
    server = stack.enter_context(ServerProcess(config=text))
    url = server.url.replace("nats://", "tls://")

    def config(cert_file: str, key_file: str) -> NatsConfig:
        return impatient(
            url,
            username="me",
            password=PASSWORD,
            tls_ca_cert=ca_file,
            tls_client_cert=cert_file,
            tls_client_key=key_file,
        )

    lines = [line for name in (own_key, bad_key) for line in Path(name).read_text().splitlines()]
    return Kind(
        server=server,
        good=lambda: config(own_cert, own_key),
        bad=lambda: config(bad_cert, bad_key),
        secrets=[
            PASSWORD,
            *(line for line in lines if line and "-" not in line and len(line) > 20),
        ],
        refusal=ConnectionError,
    )


KINDS = {
    "password": password_kind,
    "password in the URL": url_kind,
    "token": token_kind,
    "token in the URL": token_url_kind,
    "nkey": nkey_kind,
    "creds": creds_kind,
    "client certificate": certificate_kind,
}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with ExitStack() as stack:
        yield KINDS[request.param](stack, tmp_path)


def forms(secret: str) -> set[str]:
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    return {secret, quote(secret, safe=""), quote(secret), repr(secret)[1:-1], encoded}


class Heard:
    """Everything that somebody might read."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.events: list[BackendEvent] = []
        self.errors = 0

    def add(self, *objects: object) -> None:
        for one in objects:
            self.texts += [repr(one), str(one), f"{one}"]

    def add_error(self, error: BaseException) -> None:
        self.errors += 1
        self.add(error, error.args, vars(error))
        self.texts.append("".join(traceback.format_exception(error)))
        self.texts.append(shown_by(error))

    def add_broker(self, broker: Broker) -> None:
        backend = broker.backend
        assert isinstance(backend, NatsBackend)
        connection = backend.connection
        self.add(broker, backend, connection, connection.server, connection._config, backend.js)
        self.add(broker.snapshot(), connection._link, connection._dialer)

    def search(self, secrets: list[str]) -> None:
        for event in self.events:
            self.add(event, event.detail)
            if event.error is not None:
                self.add_error(event.error)
        for secret in secrets:
            for form in forms(secret):
                for text in self.texts:
                    # The message must not show it either.
                    found = form in text
                    assert not found, (
                        f"a secret of {len(secret)} characters in: {around(text, form)}"
                    )


def around(text: str, form: str) -> str:
    at = text.index(form)
    return text[max(0, at - 80) : at] + "<HERE>" + text[at + len(form) :][:80]


async def raised(
    heard: Heard,
    kinds: type[Exception] | tuple[type[Exception], ...],
    call: Callable[[], Awaitable[object]],
) -> None:
    with pytest.raises(kinds) as caught:
        await call()
    heard.add_error(caught.value)


async def handle(order: Order, seen: Journal[str]) -> Outcome:
    seen.add(order.name)
    return Outcome.ACK


async def a_life(kind: Kind, heard: Heard) -> None:
    seen: Journal[str] = Journal()

    async def consume(order: Order) -> Outcome:
        return await handle(order, seen)

    async def open_with(config: NatsConfig) -> None:
        async with open_broker(config) as broker:
            await broker.declare(TOPIC)
            await trio.sleep_forever()  # TLS 1.3: the refusal may come after the handshake

    config = kind.good()
    heard.add(config, config.validate(), vars(type(config)))
    async with open_broker(config) as broker:
        backend = broker.backend
        backend.listen(heard.events.append)
        assert isinstance(backend, NatsBackend)
        connection = backend.connection
        await broker.declare(TOPIC)
        publisher = broker.publisher()
        async with consuming(broker, TOPIC, consume):
            await publisher.publish(TOPIC, Order("1"))
            await seen.until(1)
            heard.add_broker(broker)
            if kind.forbids:
                await broker.declare(CLOSED)
                await raised(
                    heard, PublishForbidden, lambda: publisher.publish(CLOSED, Order("no"))
                )
                connection.subscribe(b"$JS.API.>", lambda *message: None)
            # Lost, with failed attempts meanwhile, and regained.
            await trio.to_thread.run_sync(kind.server.kill)
            await wait_until(lambda: not connection.connected)
            await wait_until(lambda: sum(e.kind == "error" for e in heard.events) > 2)
            heard.add_broker(broker)
            await trio.to_thread.run_sync(kind.server.restart)
            await wait_until(lambda: connection.reconnects == 1)
            await publisher.publish(TOPIC, Order("2"))
            await seen.until(2)
            # Somebody in the asyncio world fails with the address in hand.
            loop = connection._loop
            assert loop is not None
            secret = kind.secrets[0]

            def fail() -> None:
                raise ValueError(f"with {secret}")

            loop.call_soon(fail)
            await wait_until(lambda: connection.reconnects == 2)
            heard.add_broker(broker)
    heard.add(broker, backend, connection)
    await raised(heard, (kind.refusal, TLSError), lambda: open_with(kind.bad()))
    await trio.to_thread.run_sync(kind.server.kill)
    await raised(heard, ConnectionError, lambda: open_with(kind.good()))
    try:
        # Fine for a path; refused for a secret.
        heard.texts.append(pickle.dumps(kind.good()).decode("latin-1"))
    except Exception as exc:
        heard.add_error(exc)


@pytest.mark.limit(90)
async def test_pc131_nothing_shows_a_secret(
    kind: Kind, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in LOGGERS:
        caplog.set_level(logging.DEBUG, logger=name)
    heard = Heard()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        await a_life(kind, heard)
    for warning in warned:
        heard.add(warning.message, warning)
    for record in caplog.records:
        heard.add(record.getMessage(), record.__dict__)
    written = capfd.readouterr()
    heard.texts += [caplog.text, written.out, written.err]
    assert heard.errors >= 3
    assert any(record.levelno >= logging.WARNING for record in caplog.records)
    assert any(e.kind == "disconnected" for e in heard.events)
    if kind.forbids:
        assert any(FORBIDDEN in str(e.error) for e in heard.events)
    heard.search(kind.secrets)


def test_the_search_finds_what_is_there() -> None:
    """In each form in which a secret may turn up."""
    for form in forms(PASSWORD):
        heard = Heard()
        heard.texts.append(f"connecting to nats://me:{form}@host")
        with pytest.raises(AssertionError, match=re.escape("<HERE>")):
            heard.search([PASSWORD])
