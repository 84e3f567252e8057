"""Connection options and events as an application uses them: C1 to C3, and what goes with them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest
import trio

from shove_actors._errors import (
    AuthenticationError,
    BrokerClosed,
    ConfigError,
    ConnectionError,
    TLSError,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import (
    Connection,
    ConnectionEvent,
    Credentials,
    JetStream,
    NatsConfig,
    connect,
    open_connection,
)
from shove_actors.jetstream._settings import ConnectionSettings
from tests.secured import PASSWORD, TOKEN, USERNAME, SecuredServer, client_context
from tests.secured import tls_server as start_tls

from .kit import SOON_S, Events, connected, fake_server, fast, shown_by, until_it_ends
from .losses import kill, restart


def test_keywords_are_the_settings() -> None:
    settings = {f.name for f in fields(NatsConfig) if f.init} - {"url_or_urls"}
    assert set(ConnectionSettings.__annotations__) == settings


# ------------------------------------------------------------------ C1


async def test_c01_first_living_server_of_a_list(server: ServerProcess, closed_port: int) -> None:
    servers = f"nats://127.0.0.1:{closed_port}, {server.url}/"
    async with connect(servers, dont_randomize=True) as js:
        assert js.connection.server == server.url
        await js.account_info()
    async with open_connection([f"127.0.0.1:{closed_port}", f"{server.host}:{server.port}"]) as nc:
        assert nc.server == server.url


async def test_c01_each_server_is_tried_once(closed_port: int) -> None:
    with pytest.raises(ConnectionError, match=str(closed_port)):
        async with connect(f"127.0.0.1:{closed_port}, localhost:{closed_port}"):
            raise AssertionError("not reached")


# ------------------------------------------------------------------ C2


async def test_c02_events_as_an_iterator(own_server: ServerProcess) -> None:
    seen: list[ConnectionEvent] = []

    async def watch(nc: Connection, *, task_status: trio.TaskStatus[None]) -> None:
        async with nc.events() as events:
            task_status.started()
            async for event in events:
                seen.append(event)

    async with trio.open_nursery() as nursery:
        async with open_connection(fast(own_server.url)) as nc:
            await nursery.start(watch, nc)
            record = Events(nc)
            await restart(own_server)
            await record.wait("reconnected")
        # `closed` ends the iterator, and with it the task.
    kinds = [event.kind for event in seen if event.kind != "error"]
    assert kinds == ["disconnected", "reconnected", "closed"]
    assert isinstance(seen[0].error, ConnectionError)
    assert seen[-1].error is None


async def test_c02_an_event_stream_is_also_a_channel(own_server: ServerProcess) -> None:
    async with open_connection(fast(own_server.url)) as nc:
        async with nc.events() as events:
            with pytest.raises(trio.WouldBlock):
                events.receive_nowait()
            await restart(own_server)
            with trio.fail_after(SOON_S):
                assert (await events.receive()).kind == "disconnected"
        # Left: nothing is recorded any more, and nobody waits.
        assert [event async for event in events] == []
        with pytest.raises(trio.ClosedResourceError):
            await events.receive()


async def test_c02_handlers(own_server: ServerProcess) -> None:
    heard: list[str] = []

    def hear(event: ConnectionEvent) -> None:
        heard.append(event.kind)

    async with open_connection(
        fast(own_server.url),
        on_connected=hear,
        on_disconnected=hear,
        on_reconnected=hear,
        on_closed=hear,
        on_lame_duck=hear,
        on_discovered=hear,
    ) as nc:
        assert nc.last_error is None
        await restart(own_server)
        with trio.fail_after(SOON_S):
            await nc.wait_connected()
        assert isinstance(nc.last_error, ConnectionError)
    assert heard == ["connected", "disconnected", "reconnected", "closed"]


async def test_a_listener_that_listens_no_more(own_server: ServerProcess) -> None:
    heard: list[ConnectionEvent] = []
    async with connected(fast(own_server.url)) as (js, events):
        js.connection.listen(heard.append)
        js.connection.unlisten(heard.append)
        js.connection.unlisten(heard.append)
        await restart(own_server)
        await events.wait("reconnected")
    assert heard == []


async def test_the_first_connect_is_retried_on_request(own_server: ServerProcess) -> None:
    await kill(own_server)
    rounds: list[int] = []

    def delay(number: int) -> float:
        rounds.append(number)
        return 0.02

    config = fast(own_server.url, retry_first_connect=True, custom_reconnect_delay=delay)
    async with connected(config) as (js, events):
        assert not js.connection.connected
        await events.wait("error", 3)
        await restart(own_server)
        await events.wait("connected")
        await js.account_info()
        assert rounds[:2] == [1, 2]
    assert events.kinds == ["connected", "closed"]


async def test_the_first_connect_is_given_up_like_any_other(closed_port: int) -> None:
    config = fast(f"127.0.0.1:{closed_port}", retry_first_connect=True, max_reconnect_attempts=2)
    with pytest.raises(ConnectionError, match="gave up after 2"):
        await until_it_ends(config, events := [], trio.lowlevel.checkpoint)
    assert [e.kind for e in events] == ["error"] * 3 + ["closed"]


async def test_the_program_chooses_the_next_server(
    own_server: ServerProcess, closed_port: int
) -> None:
    asked: list[tuple[tuple[str, ...], int]] = []
    here, dead = f"127.0.0.1:{own_server.port}", f"127.0.0.1:{closed_port}"

    def choose(servers: Sequence[str], attempts: int) -> tuple[str, float]:
        asked.append((tuple(servers), attempts))
        return (dead if attempts < 2 else here), 0.01

    config = fast([here, dead], dont_randomize=True, choose_server=choose)
    async with connected(config) as (js, events):
        await restart(own_server)
        await events.wait("reconnected")
        await js.account_info()
    # Each loss counts anew; the order is the policy's own.
    assert [attempts for _, attempts in asked[:3]] == [0, 1, 2]
    assert {frozenset(servers) for servers, _ in asked} == {frozenset((here, dead))}
    assert len(events.of("error")) >= 2


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (("elsewhere:4222", 0.0), "not one of its servers"),
        (None, "NoneType"),
        (("%s", -1.0), "pause"),
    ],
    ids=["foreign", "nothing", "negative"],
)
async def test_a_choice_that_cannot_be_used(
    own_server: ServerProcess, answer: tuple[str, float] | None, match: str
) -> None:
    def choose(servers: Sequence[str], attempts: int) -> tuple[str, float]:
        if answer is None:
            return None  # type: ignore[return-value]
        return answer[0].replace("%s", servers[0]), answer[1]

    async with connected(fast(own_server.url, choose_server=choose)) as (js, events):
        await restart(own_server)
        await events.wait("reconnected")
        await js.account_info()
    assert any(match in str(event.error) for event in events.of("error"))


async def test_a_choice_ends_at_the_bound(own_server: ServerProcess) -> None:
    config = fast(own_server.url, max_reconnect_attempts=2, choose_server=lambda s, n: (s[0], 0.01))
    with pytest.raises(ConnectionError, match="gave up after 2"):
        await until_it_ends(config, [], partial(kill, own_server))


async def test_draining(server: ServerProcess) -> None:
    """What the server had sent still arrives; then the connection is closed."""
    heard: list[bytes] = []
    async with connected(fast(server.url)) as (js, events):
        connection = js.connection
        connection.subscribe(b"drain.test", lambda s, r, h, p: heard.append(p))
        for number in range(1000):
            connection.publish(b"drain.test", b"%d" % number)
        with trio.fail_after(SOON_S):
            await connection.drain()
        assert len(heard) == 1000
        with pytest.raises(BrokerClosed):
            await connection.request("x")
    assert events.kinds == ["closed"]


async def test_draining_without_a_connection(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url, reconnect_wait=60.0)) as (js, events):
        js.connection.subscribe(b"drain.test", lambda *message: None)
        await kill(own_server)
        await events.wait("disconnected")
        with trio.fail_after(SOON_S):
            await js.connection.drain()


# ------------------------------------------------------------------ credentials


async def gets_in(config: NatsConfig) -> None:
    async with connect(config) as js:
        await js.connection.flush()


async def test_credentials_are_asked_for_each_time(password_server: SecuredServer) -> None:
    given = Credentials(username=USERNAME, password=PASSWORD)
    asked: list[bool] = []

    def credentials() -> Credentials:
        # In a worker thread: they may come from a file or from a service.
        with pytest.raises(RuntimeError):
            trio.lowlevel.current_task()
        asked.append(True)
        return given

    config = fast(password_server.process.url, credentials=credentials)
    async with connected(config) as (_js, events):
        await restart(password_server.process)
        await events.wait("reconnected")
    assert len(asked) >= 2
    assert PASSWORD not in repr(config)
    # Learnt while connecting, and taken out of texts from then on.
    assert PASSWORD not in config.redact(f"the password is {PASSWORD}")


async def test_kinds_of_credentials(
    token_server: SecuredServer, nkey_server: SecuredServer, creds_server: SecuredServer
) -> None:
    await gets_in(fast(token_server.process.url, credentials=lambda: Credentials(token=TOKEN)))
    seed = nkey_server.settings["nkey_seed"]
    await gets_in(fast(nkey_server.process.url, credentials=lambda: Credentials(nkey_seed=seed)))
    assert creds_server.operator is not None
    text = creds_server.operator.creds()
    await gets_in(fast(creds_server.process.url, credentials=lambda: Credentials(creds=text)))


async def test_the_key_may_stay_where_it_is(
    nkey_server: SecuredServer, creds_server: SecuredServer
) -> None:
    import nkeys

    pair = nkeys.from_seed(bytearray(nkey_server.settings["nkey_seed"].encode()))
    public = pair.public_key.decode()
    by_key = Credentials(public_nkey=public, sign=lambda nonce: bytes(pair.sign(nonce)))
    await gets_in(fast(nkey_server.process.url, credentials=lambda: by_key))

    assert creds_server.operator is not None
    lines = [line.strip() for line in creds_server.operator.creds().splitlines()]
    jwt = lines[lines.index("-----BEGIN NATS USER JWT-----") + 1]
    seed = lines[lines.index("-----BEGIN USER NKEY SEED-----") + 1]
    user = nkeys.from_seed(bytearray(seed.encode()))
    by_jwt = Credentials(jwt=jwt, sign=lambda nonce: bytes(user.sign(nonce)))
    await gets_in(fast(creds_server.process.url, credentials=lambda: by_jwt))


def _raising() -> Credentials:
    raise ValueError("s3cret")


@pytest.mark.parametrize(
    ("credentials", "match"),
    [
        (lambda: Credentials(), "give username with password"),
        (lambda: Credentials(username="u", token="s3cret"), "give username with password"),
        (lambda: Credentials(nkey_seed="s3cret"), "nkey_seed"),
        (lambda: Credentials(creds="s3cret"), "NATS USER JWT"),
        (lambda: "s3cret", "returned str"),
        (_raising, "raised ValueError"),
    ],
    ids=["none", "two", "seed", "creds", "no-record", "raises"],
)
async def test_credentials_that_cannot_be_used(
    server: ServerProcess, credentials: object, match: str
) -> None:
    config = fast(server.url, credentials=credentials)
    with pytest.raises(ConnectionError, match=match) as caught:
        await gets_in(config)
    assert "s3cret" not in shown_by(caught.value)


async def test_refused_credentials_may_be_right_later(password_server: SecuredServer) -> None:
    """Twice the same refusal ends it, unless one asks for more."""
    process = password_server.process
    answers = ["wrong", "wrong", "wrong", PASSWORD]

    def credentials() -> Credentials:
        password = answers.pop(0) if len(answers) > 1 else answers[0]
        return Credentials(username=USERNAME, password=password)

    config = fast(
        process.url, credentials=credentials, retry_first_connect=True, ignore_auth_errors=True
    )
    async with connected(config) as (_js, events):
        await events.wait("connected")
    refused = [e for e in events.of("error") if isinstance(e.error, AuthenticationError)]
    assert len(refused) == 3


async def test_one_kind_of_credentials_at_a_time() -> None:
    config = NatsConfig(token="t", credentials=lambda: Credentials(token="t"))
    with pytest.raises(ConfigError, match="token and credentials"):
        config.validate()
    assert "s3cret" not in repr(Credentials(token="s3cret"))


# ------------------------------------------------------------------ C3: TLS


async def test_c03_a_context_of_ones_own(tls_server: SecuredServer) -> None:
    assert tls_server.ca is not None
    context = client_context(tls_server.ca)
    url = f"tls://{tls_server.address}"
    await gets_in(fast(url, tls_context=context))
    with pytest.raises(TLSError):
        await gets_in(fast(url, tls_context=ssl.create_default_context()))


async def test_c03_a_context_of_ones_own_is_not_silently_dropped(server: ServerProcess) -> None:
    """Neither with an encrypted URL to a server without TLS, nor with a plain URL."""
    context = ssl.create_default_context()
    async with fake_server() as fake:
        url = fake.url.replace("nats://", "tls://user:s3cret@")
        with pytest.raises(TLSError, match="does not offer TLS"):
            await gets_in(fast(url, tls_context=context))
        assert fake.received == []
    with pytest.raises(TLSError, match="does not offer TLS"):
        await gets_in(fast(server.url.replace("nats://", "tls://"), tls_context=context))
    with pytest.raises(ConfigError, match="tls_context is set but url_or_urls is not encrypted"):
        await gets_in(fast(server.url, tls_context=context))


def test_c03_a_context_and_files_exclude_each_other(tmp_path: object) -> None:
    config = NatsConfig("tls://a", tls_context=ssl.create_default_context(), tls_ca_cert="ca.pem")
    with pytest.raises(ConfigError, match="tls_context and tls_ca_cert"):
        config.validate()
    with pytest.raises(ConfigError, match="tls_handshake_first"):
        NatsConfig("nats://a", tls_handshake_first=True).validate()
    with pytest.raises(ConfigError, match=r"ssl\.SSLContext"):
        NatsConfig("tls://a", tls_context="ca.pem").validate()  # type: ignore[arg-type]


@pytest.fixture
def handshake_first_server(tmp_path: Path) -> Iterator[SecuredServer]:
    with start_tls(tmp_path, first=True) as server:
        yield server


async def test_handshake_first(handshake_first_server: SecuredServer) -> None:
    await gets_in(handshake_first_server.config(tls_handshake_first=True))
    config = handshake_first_server.config(connect_timeout=0.5)
    with pytest.raises(ConnectionError):
        await gets_in(config)


# ------------------------------------------------------------------ several contexts


async def test_contexts_share_a_connection(server: ServerProcess) -> None:
    async with open_connection(server.url) as nc:
        async with JetStream(nc) as one, JetStream(nc, timeout=1.0) as two:
            await one.account_info()
            await two.account_info()
