"""`NatsConfig`: what is refused, and that no way of showing it shows a credential."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import os
import pickle
import random
import re
import socket
import ssl
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nats.aio.client
import nats.errors
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from shove_actors._errors import ConfigError
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream._config import NatsConfig, Resolved, ServerAddress
from shove_actors.jetstream._redact import redact
from tests.nkey_jwt import new_operator_mode, new_user_key
from tests.secured import SecuredServer, client_context, write_certificate

SECRETS = [
    "s3cr3t-word",
    "pa@ss:wo/rd",
    "p@@s//w::d",
    "with,comma",
    "per%cent%41",
    "sp ace",
    """q"u'o\\te""",
]


def refusal(config: NatsConfig) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        config.validate()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return caught.value


def forms(secret: str) -> set[str]:
    return {secret, quote(secret, safe=""), quote(secret), repr(secret)[1:-1]}


def assert_hidden(secret: str, text: str) -> None:
    for form in forms(secret):
        assert form not in text


# ------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("given_urls", "expected"),
    [
        ("nats://h", ["nats://h:4222"]),
        ("h", ["nats://h:4222"]),
        ("h:1", ["nats://h:1"]),
        (" nats://h:5/ ", ["nats://h:5"]),
        ("TLS://h", ["tls://h:4222"]),
        ("nats+tls://h:7//", ["tls://h:7"]),
        ("a, b:2 ,nats://c/", ["nats://a:4222", "nats://b:2", "nats://c:4222"]),
        ("a,b,", ["nats://a:4222", "nats://b:4222"]),
        (["a", "nats://b:9"], ["nats://a:4222", "nats://b:9"]),
        (("tls://a", "nats+tls://b"), ["tls://a:4222", "tls://b:4222"]),
        ("[::1]", ["nats://[::1]:4222"]),
        ("nats://[fe80::1]:8", ["nats://[fe80::1]:8"]),
        ("nats://u:p@h", ["nats://***@h:4222"]),
        ("nats://token@h:3", ["nats://***@h:3"]),
        ("nats://u:p@a,nats://t@b,c", ["nats://***@a:4222", "nats://***@b:4222", "nats://c:4222"]),
        ("u:p@h:1", ["nats://***@h:1"]),
    ],
    ids=str,
)
def test_urls(given_urls: Any, expected: list[str]) -> None:
    assert [s.redacted for s in NatsConfig(given_urls).validate().servers] == expected


@pytest.mark.parametrize(
    ("given_urls", "rule"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ([], "is empty"),
        (["nats://a", ""], "entry 2 is empty"),
        ("a,,b", "entry 2 is empty"),
        ("ws://h", "WebSocket"),
        ("wss://h", "WebSocket"),
        ("http://h", "unknown scheme"),
        ("nats://", "no host|is empty"),
        ("nats://:4222", "no host"),
        ("nats://h:", "bad port"),
        ("nats://h:0", "bad port"),
        ("nats://h:65536", "bad port"),
        ("nats://h:-1", "bad port"),
        ("nats://h:1e3", "bad port"),
        ("nats://h:٣", "bad port"),
        ("nats://h:" + "9" * 5000, "bad port"),
        ("nats://h/path", "character in its host"),
        ("nats://h?x=1", "character in its host"),
        ("nats://a b", "character in its host"),
        ("nats://::1", "brackets"),
        ("nats://[::1", "IPv6"),
        ("nats://[::1]x", "IPv6"),
        ("nats://[zz]", "IPv6"),
        ("nats://@h", "no username or token"),
        ("nats://:p@h", "no username or token"),
        ("nats://u:@h", "without a password"),
        ("nats://u:p,w@h", "%2C"),
        ("tls://a,nats://b", "mixes"),
        (7, "int"),
        (["a", 7], "entry 2.*int"),
        (b"nats://h", "bytes"),
        (None, "NoneType"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refused_urls(given_urls: Any, rule: str) -> None:
    error = refusal(NatsConfig(given_urls))
    assert "url_or_urls" in str(error)
    assert re.search(rule, str(error)), str(error)


@given(
    username=st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip),
    password=st.text(st.characters(codec="utf-8"), min_size=1),
)
def test_percent_encoded_credentials_arrive_as_they_were(username: str, password: str) -> None:
    url = f"nats://{quote(username, safe='')}:{quote(password, safe='')}@h:1"
    (server,) = NatsConfig([url]).validate().servers
    assert (server.username, server.password, server.host) == (username, password, "h")


@given(password=st.text(st.sampled_from("ab@:/?#[]"), min_size=1))
def test_raw_passwords_arrive_as_they_were(password: str) -> None:
    (server,) = NatsConfig(f"nats://user:{password}@h:1").validate().servers
    assert (server.username, server.password, server.host) == ("user", password, "h")


def test_an_address_of_the_same_cluster_keeps_credentials_and_encryption() -> None:
    address = NatsConfig("tls://u:p@a:1").validate().servers[0].at("b", 2)
    assert address == ServerAddress(host="b", port=2, tls=True, username="u", password="p")
    assert address.redacted == "tls://***@b:2"


# ------------------------------------------------------------------------- plain settings


def test_defaults_and_plain_attributes() -> None:
    config = NatsConfig()
    config.username, config.password = "u", "p"
    config.name = "billing"
    resolved = config.validate()
    assert [s.redacted for s in resolved.servers] == ["nats://127.0.0.1:4222"]
    assert (resolved.username, resolved.password, resolved.name) == ("u", "p", "billing")
    assert resolved.ssl_context is None
    assert not resolved.tls


def test_a_misspelled_attribute_is_refused() -> None:
    with pytest.raises(AttributeError):
        NatsConfig().user_name = "u"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in ("connect_timeout", "request_timeout", "ping_interval", "reconnect_wait")
        for value in (0, -1.5, math.inf, math.nan, "2", None, True)
    ]
    + [("reconnect_jitter", -0.1), ("reconnect_jitter_tls", math.nan), ("reconnect_jitter", "1")]
    + [("max_outstanding_pings", 0), ("max_outstanding_pings", 1.5)]
    + [("max_reconnect_attempts", -1), ("max_reconnect_attempts", True)]
    + [("allow_reconnect", 1), ("dont_randomize", "no")]
    + [("on_error", 5), ("on_closed", "x"), ("custom_reconnect_delay", 2.0)]
    + [("name", ""), ("name", "a\nb"), ("name", 5), ("tls_hostname", " ")]
    + [(name, v) for name in ("username", "password", "token", "nkey_seed") for v in ("", 5, b"x")]
    + [("creds_file", ""), ("creds_file", 5), ("creds_file", b"x"), ("tls_ca_cert", "")],
    ids=str,
)
def test_refused_settings(name: str, value: object) -> None:
    config = NatsConfig()
    setattr(config, name, value)
    assert name in str(refusal(config))


@pytest.mark.parametrize("limit", [None, 0, 7])
def test_reconnect_limits(limit: int | None) -> None:
    assert NatsConfig(max_reconnect_attempts=limit).validate().max_reconnect_attempts == limit


def test_reconnect_delay_is_wait_and_jitter() -> None:
    plain = NatsConfig(reconnect_wait=2, reconnect_jitter=0.5, reconnect_jitter_tls=9).validate()
    delays = [plain.reconnect_delay(n, random.Random(n)) for n in range(1, 200)]
    assert 2 <= min(delays) < 2.1
    assert 2.4 < max(delays) <= 2.5
    encrypted = NatsConfig("tls://h", reconnect_wait=2, reconnect_jitter_tls=4).validate()
    assert max(encrypted.reconnect_delay(n, random.Random(n)) for n in range(1, 200)) > 5


def test_a_custom_delay_replaces_both() -> None:
    resolved = NatsConfig(custom_reconnect_delay=lambda rounds: rounds * 10).validate()
    assert [resolved.reconnect_delay(n, random.Random(0)) for n in (1, 2)] == [10, 20]


@pytest.mark.parametrize("bad", [-1, math.inf, math.nan, "soon", None])
def test_a_useless_custom_delay_is_reported_and_not_used(
    bad: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = NatsConfig(custom_reconnect_delay=lambda rounds: bad, reconnect_jitter=0)
    assert config.validate().reconnect_delay(1, random.Random(0)) == 2.0
    assert "custom_reconnect_delay" in caplog.text


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
    "seed", ["SUnonsense", SEED[:-4], SEED + "A", "SAAFOO", SEED.lower(), "SU\N{SNOWMAN}" * 9]
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


# ------------------------------------------------------------------------- TLS


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


# ------------------------------------------------------------------------- nothing leaks


def configurations(secret: str) -> dict[str, NatsConfig]:
    encoded = quote(secret, safe="")
    return {
        "options": NatsConfig(username="user", password=secret),
        "token": NatsConfig(token=secret),
        "seed": NatsConfig(nkey_seed=secret),
        "url": NatsConfig([f"nats://user:{encoded}@h:4222"]),
        "raw url": NatsConfig([f"nats://user:{secret}@h:4222"]),
        "token url": NatsConfig([f"nats://{encoded}@h"]),
        "list": NatsConfig(f"nats://user:{encoded}@a, nats://{encoded}@b:1,nats://x:{encoded}@c/"),
        "forgotten @": NatsConfig([f"nats://user:{secret}"]),
        "forgotten host": NatsConfig([f"nats://user:{secret}@"]),
        "bad port": NatsConfig([f"nats://user:{secret}@h:{secret}"]),
        "comma": NatsConfig(f"nats://user:{secret},x@h"),
        "websocket": NatsConfig([f"ws://user:{secret}@h"]),
        "two kinds": NatsConfig(username="u", password=secret, token=secret),
        "half": NatsConfig(password=secret),
    }


KINDS = sorted(configurations("x"))


def failure_report(config: NatsConfig) -> str:
    """Everything an error reporter might print, local variables of every frame included."""
    try:
        resolved: object = config.validate()
    except ConfigError as error:
        lines = traceback.TracebackException.from_exception(error, capture_locals=True).format()
        return "".join(lines)
    return repr(resolved)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("kind", KINDS)
def test_pc131_repr_and_logs(kind: str, secret: str, caplog: pytest.LogCaptureFixture) -> None:
    config = configurations(secret)[kind]
    logging.getLogger("test").warning("using %s and %r", config, config)
    shown = [repr(config), str(config), f"{config}", caplog.text, repr([config])]
    shown.append(repr(copy.copy(config)) + repr(copy.deepcopy(config)) + repr(replace(config)))
    for text in shown:
        assert_hidden(secret, text)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("kind", KINDS)
def test_pc131_tracebacks_with_locals(kind: str, secret: str) -> None:
    assert_hidden(secret, failure_report(configurations(secret)[kind]))


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("kind", KINDS)
def test_pc131_pickling_is_refused(kind: str, secret: str) -> None:
    config = configurations(secret)[kind]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(ConfigError) as caught:
            pickle.dumps(config, protocol)
        assert_hidden(secret, str(caught.value))


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("kind", KINDS)
def test_pc131_text(kind: str, secret: str) -> None:
    config = configurations(secret)[kind]
    encoded = quote(secret, safe="")
    text = (
        f"refused {secret} ({secret!r}) {encoded} {encoded.lower()} nats://u:{encoded}@h "
        f"tls://{encoded}@b,nats://u:{encoded}@c"
    )
    # A forgotten host or @ makes the whole entry the secret; the word itself is then unknown.
    if kind in ("forgotten @", "forgotten host", "bad port", "comma", "websocket"):
        text = f"bad server: {config.url_or_urls if kind == 'comma' else config.url_or_urls[0]}"
    assert_hidden(secret, config.redact(text))


def test_pc131_what_was_checked_hides_too() -> None:
    config = NatsConfig("nats://user:s3cr3t@a,nats://t0k3n@b")
    resolved = config.validate()
    for shown in (repr(resolved), str(resolved), repr(resolved.servers), str(resolved.servers[0])):
        assert_hidden("s3cr3t", shown)
        assert_hidden("t0k3n", shown)
    for value in (resolved, *resolved.servers):
        with pytest.raises(TypeError):
            pickle.dumps(value)


def test_a_configuration_without_credentials_can_be_pickled() -> None:
    config = NatsConfig("nats://h", name="n", connect_timeout=3)
    assert pickle.loads(pickle.dumps(config)) == config
    address = config.validate().servers[0]
    assert pickle.loads(pickle.dumps(address)) == address


def test_copies_are_independent() -> None:
    config = NatsConfig(["nats://u:p@h"], name="n")
    deep = copy.deepcopy(config)
    assert deep == config
    deep.name = "other"
    assert isinstance(deep.url_or_urls, list)
    deep.url_or_urls.append("x")
    assert config == NatsConfig(["nats://u:p@h"], name="n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nats://u:p@h:1", "nats://***@h:1"),
        ("nats://token@h", "nats://***@h"),
        ("see nats://u:p@s@h/x now", "see nats://***@h/x now"),
        ("nats://u:a/b@h", "nats://***@h"),
        ("['nats://u:p@a', 'tls://t@b']", "['nats://***@a', 'tls://***@b']"),
        ("nats://u:p@a,nats+tls://v:q@b", "nats://***@a,nats+tls://***@b"),
        ("nats://a:1,nats://b:2", "nats://a:1,nats://b:2"),
        ("mail me@example.org about nats://h", "mail me@example.org about nats://h"),
        ("abc@y,nats://h", "abc@y,nats://h"),
        ("nats://@h", "nats://***@h"),
        ("", ""),
    ],
)
def test_redact_urls(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_redact_takes_time_in_proportion_to_the_text() -> None:
    # Quadratic behaviour would need hours for this.
    assert redact("x" * 1_000_000 + " nats://u:p@h").endswith("nats://***@h")


def test_redact_overlapping_secrets() -> None:
    assert redact("xabcdey", ["abc", "cde", "bcd"]) == "x***y"
    assert redact("aXbXc", ["X", "", "b"]) == "a***c"
    assert redact("nothing here", ["secret"]) == "nothing here"


NO_SPACE = st.characters(codec="utf-8", categories=["L", "M", "N", "P", "S"])


@given(password=st.text(NO_SPACE, min_size=1), scheme=st.sampled_from(["nats", "tls", "nats+tls"]))
def test_any_raw_userinfo_is_removed(password: str, scheme: str) -> None:
    assert redact(f"to {scheme}://u:{password}@h:1 failed") == f"to {scheme}://***@h:1 failed"


@given(st.data())
def test_no_secret_survives(data: st.DataObject) -> None:
    # Without `*`, which the mask itself consists of.
    secret = st.text(st.sampled_from("aAb%4@:/ ,é\\\"'"), min_size=1, max_size=6)
    secrets = data.draw(st.lists(secret, min_size=1, max_size=3))
    pieces = st.one_of(
        st.sampled_from(secrets),
        st.sampled_from(secrets).map(lambda s: quote(s, safe="")),
        st.text(st.sampled_from("aAb%4@:/ ,é"), max_size=3),
    )
    text = "".join(data.draw(st.lists(pieces, max_size=6)))
    redacted = redact(text, secrets)
    for value in secrets:
        assert value not in redacted
        assert quote(value, safe="") not in redacted


@given(st.text(), st.lists(st.text()))
def test_redact_never_raises(text: str, secrets: list[str]) -> None:
    redact(text, secrets)


def test_redact_accepts_lone_surrogates() -> None:
    assert redact("a\ud800b", ["\ud800"]) == "a***b"


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
