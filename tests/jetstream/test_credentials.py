"""Credentials: which are refused, and that each kind opens a real server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nats.aio.client
import nats.errors
import pytest
import trustme

from shove_actors.embedded import ServerProcess
from shove_actors.jetstream._config import NatsConfig, Resolved
from tests.nkey_jwt import new_operator_mode, new_user_key
from tests.secured import SecuredServer, client_context

from .hiding import refusal

# ------------------------------------------------------------------------- credentials


SEED = new_user_key().seed


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"username": "u"}, ["username", "password"]),
        ({"password": "s3cr3t"}, ["password", "username"]),
        ({"username": "u", "password": "s3cr3t", "token": "t0k3n"}, ["username", "token"]),
        ({"token": "t0k3n", "nkey_seed": SEED}, ["token", "nkey_seed"]),
        ({"nkey_seed": SEED, "creds_file": "f"}, ["nkey_seed", "creds_file"]),
        ({"token": "t0k3n", "creds_file": "f"}, ["token", "creds_file"]),
        ({"url_or_urls": "nats://u:s3cr3t@h", "token": "t0k3n"}, ["url_or_urls", "token"]),
        ({"url_or_urls": "nats://t0k3n@h", "username": "u", "password": "p"}, ["url_or_urls"]),
        ({"url_or_urls": "nats://a,nats://t0k3n@h", "nkey_seed": SEED}, ["url_or_urls"]),
    ],
    ids=lambda value: "+".join(value),
)
def test_one_kind_of_credentials(settings: dict[str, Any], fields: list[str]) -> None:
    text = str(refusal(NatsConfig(**settings)))
    assert all(name in text for name in fields)
    for secret in ("s3cr3t", "t0k3n", SEED):
        assert secret not in text


@pytest.mark.parametrize(
    "seed",
    ["SUnonsense", SEED[:-4], SEED + "A", "SAAFOO", SEED.lower(), "SU\N{SNOWMAN}" * 9],
    # The seed is another one in each process; a test's name has to be the same.
    ids=["nonsense", "too-short", "too-long", "account", "lower-case", "not-ascii"],
)
def test_a_bad_seed(seed: str) -> None:
    error = refusal(NatsConfig(nkey_seed=seed))
    assert "nkey_seed" in str(error)
    assert seed not in str(error)


def test_a_seed_may_have_white_space_around_it() -> None:
    assert NatsConfig(nkey_seed=f" {SEED}\n").validate().nkey_seed == SEED


def test_without_the_nkeys_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "nkeys", None)
    error = refusal(NatsConfig(nkey_seed=SEED))
    assert "pip install shove-actors[nkeys]" in str(error)


def test_creds_file(tmp_path: Path) -> None:
    path = tmp_path / "app.creds"
    text = new_operator_mode().creds()
    path.write_text(text)
    config = NatsConfig(creds_file=path)
    resolved = config.validate()
    assert resolved.creds_file == str(path)
    jwt, seed = text.splitlines()[1], text.splitlines()[5]
    assert {jwt, seed} <= set(resolved.secrets)
    assert config.redact(f"a {jwt} b {seed} c") == "a *** b *** c"


@pytest.mark.parametrize("damage", ["missing", "directory", "empty", "no seed", "bad seed", "huge"])
def test_a_bad_creds_file(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "app.creds"
    text = new_operator_mode().creds()
    seed = text.splitlines()[5]
    if damage == "directory":
        path.mkdir()
    elif damage == "empty":
        path.write_text("")
    elif damage == "no seed":
        path.write_text(text.partition("-----BEGIN USER")[0])
    elif damage == "bad seed":
        other = "A" if seed[20] != "A" else "B"
        path.write_text(text.replace(seed, seed[:20] + other + seed[21:]))
    elif damage == "huge":
        path.write_text(text + " " * (1 << 20))
    error = str(refusal(NatsConfig(creds_file=str(path))))
    assert "creds_file" in error
    assert seed[:20] not in error


@pytest.mark.parametrize("name", ["creds_file", "tls_ca_cert", "tls_client_cert", "tls_client_key"])
@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    path.chmod(0)
    others = {"tls_client_cert": "tls_client_key", "tls_client_key": "tls_client_cert"}
    settings = {name: str(path)}
    if name in others:
        settings[others[name]] = str(path)
    assert "cannot read" in str(refusal(NatsConfig("tls://h", **settings)))


# ------------------------------------------------------------------------- real servers


def connect_with(resolved: Resolved) -> bool:
    """Whether nats-py gets in with what `client_options` says."""
    server = resolved.servers[0]

    async def ignore(error: Exception) -> None:
        pass

    async def attempt() -> bool:
        client = nats.aio.client.Client()
        try:
            await client.connect(
                f"{'tls' if server.tls else 'nats'}://{server.host}:{server.port}",
                allow_reconnect=False,
                error_cb=ignore,
                tls=resolved.ssl_context,
                tls_hostname=resolved.tls_hostname,
                **resolved.client_options(server),
            )
            await client.jetstream().account_info()
        except (nats.errors.Error, OSError):
            # nats-py leaves the socket of a refused connect open, and its close() waits for ever
            # after a failed TLS handshake.
            client._transport._io_writer.transport.abort()
            await asyncio.sleep(0)
            return False
        await client.close()
        return True

    return asyncio.run(attempt())


@pytest.mark.parametrize(
    "fixture",
    [
        "password_server",
        "token_server",
        "nkey_server",
        "creds_server",
        "tls_server",
        "mutual_tls_server",
    ],
)
@pytest.mark.server
def test_every_kind_of_credentials_opens_a_real_server(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    secured: SecuredServer = request.getfixturevalue(fixture)
    assert connect_with(secured.config().validate())
    nothing = dict.fromkeys(secured.settings)
    assert not connect_with(secured.config(**nothing).validate())


def test_credentials_of_a_url_open_a_real_server(password_server: SecuredServer) -> None:
    address = password_server.address
    password = password_server.settings["password"]
    nothing = dict.fromkeys(password_server.settings)
    for typed in (password, quote(password, safe="")):
        config = password_server.config(**nothing, url_or_urls=f"nats://app:{typed}@{address}")
        assert connect_with(config.validate())
    wrong = password_server.config(**nothing, url_or_urls=f"nats://app:wrong@{address}")
    assert not connect_with(wrong.validate())


def test_expired_credentials_are_refused(creds_server: SecuredServer, tmp_path: Path) -> None:
    assert creds_server.operator is not None
    expired = tmp_path / "expired.creds"
    expired.write_text(creds_server.operator.creds(expires_in=-10))
    assert not connect_with(creds_server.config(creds_file=str(expired)).validate())


def test_queue_names_are_fresh(fresh_queue: Callable[[], str], server: ServerProcess) -> None:
    names = {fresh_queue() for _ in range(10)}
    assert len(names) == 10
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_") for name in names)
    assert client_context(trustme.CA()).check_hostname
