"""No way of showing a configuration shows a credential."""

from __future__ import annotations

import copy
import logging
import pickle
import traceback
from dataclasses import replace
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shove_actors._errors import ConfigError
from shove_actors.jetstream._config import NatsConfig
from shove_actors.jetstream._redact import redact

SECRETS = [
    "s3cr3t-word",
    "pa@ss:wo/rd",
    "p@@s//w::d",
    "with,comma",
    "per%cent%41",
    "sp ace",
    """q"u'o\\te""",
]


def forms(secret: str) -> set[str]:
    return {secret, quote(secret, safe=""), quote(secret), repr(secret)[1:-1]}


def assert_hidden(secret: str, text: str) -> None:
    for form in forms(secret):
        assert form not in text


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
