"""Which version a feature needs is said before anything is asked of the server."""

from __future__ import annotations

import pytest
import trio

from shove_actors import (
    FeatureUnavailable,
    NatsConfig,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    open_broker,
)
from shove_actors.backends.nats._features import BASE, KEYED, MAX_BYTES, version_of
from tests.jetstream.kit import fake_server
from tests.runtime.world import Order

TOPIC = Topic(Order, TopologyBuilder("q").build())


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.9.10", (2, 9, 10)),
        ("2.10.0-RC.1", (2, 10, 0)),
        ("v2.11.3", (2, 11, 3)),
        ("2.12", (2, 12, 0)),
        ("dev", None),
        ("", None),
    ],
)
def test_versions(text: str, version: tuple[int, int, int] | None) -> None:
    assert version_of(text) == version


async def test_a_server_that_is_too_old_for_anything() -> None:
    """One that speaks of 2.8: told at once, and not as a server without JetStream."""
    async with fake_server() as fake:
        fake.info["version"] = "2.8.4"
        async with open_broker(NatsConfig(fake.url)) as broker:
            with pytest.raises(FeatureUnavailable, match=r"2\.9\.0 or newer.*is 2\.8\.4"):
                await broker.declare(TOPIC)
            group = broker.consumer_group()
            group.register(TOPIC, lambda order: None)
            with pytest.raises(FeatureUnavailable, match=r"2\.9\.0"):
                await group.run_until(trio.sleep_forever)
            assert not any(line.startswith(b"PUB $JS.API") for line in fake.received)


def test_features_say_why_and_what_instead() -> None:
    for feature in (BASE, KEYED, MAX_BYTES):
        assert feature.why
        assert feature.instead


async def test_keyed_needs_a_server_that_can_rewind() -> None:
    topology = (
        TopologyBuilder("q").sequenced(SequenceFailure.SKIP).keyed().allow_message_loss().build()
    )
    topic = SequencedTopic(Order, key=lambda order: "k", topology=topology)
    async with fake_server() as fake:
        fake.info["version"] = "2.12.1"
        async with open_broker(NatsConfig(fake.url)) as broker:
            with pytest.raises(FeatureUnavailable, match=r"keyed topic needs nats-server 2\.14\.0"):
                await broker.declare(topic)
            assert not any(line.startswith(b"PUB $JS.API") for line in fake.received)
