"""`NatsConfig`: which addresses and settings are refused."""

from __future__ import annotations

import functools
import math
import random
import re
from typing import Any, get_args
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shove_actors.jetstream._config import NatsConfig, ServerAddress
from shove_actors.jetstream._events import ConnectionEventKind

from .hiding import refusal

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
        ("nats://h:4222/path", "no path or query"),
        ("nats://u:p@h:4222?x=1", "no path or query"),
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


async def _waits(*given: object) -> None:
    """As nats-py's callbacks are written."""


class _Waits:
    async def __call__(self, event: object) -> None:
        """As well."""


@pytest.mark.parametrize(
    "name",
    [
        *(f"on_{kind}" for kind in get_args(ConnectionEventKind)),
        *("custom_reconnect_delay", "credentials", "choose_server"),
    ],
)
@pytest.mark.parametrize(
    "callback", [_waits, functools.partial(_waits, 1), _Waits()], ids=["def", "partial", "object"]
)
def test_an_async_callback_is_refused(name: str, callback: object) -> None:
    """Nobody would await it: it would never run, and only a warning at the end would tell."""
    config = NatsConfig()
    setattr(config, name, callback)
    text = str(refusal(config))
    assert text.startswith(f"{name} is an async function")
    assert "plain one" in text


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
