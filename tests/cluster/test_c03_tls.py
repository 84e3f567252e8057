"""C3 on three nodes: encrypted, and encrypted whatever happens to the nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trustme

from shove_actors._errors import JetStreamNotEnabled, RequestTimeout, TLSError
from shove_actors.jetstream import connect
from tests.clusters import Cluster
from tests.jetstream.kit import Events
from tests.jetstream.test_tls_auth import replace_config
from tests.secured import write_certificate
from tests.support import wait_until

# Waits for real elections; `pytest -m slow` (CI does).
pytestmark = pytest.mark.slow

LONG_S = 60.0
FAST = {"reconnect_wait": 0.1, "reconnect_jitter": 0.0, "reconnect_jitter_tls": 0.0}


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    cert, key = write_certificate(ca, directory, "server", "127.0.0.1", "localhost")
    ca_file = directory / "ca.pem"
    ca.cert_pem.write_to_path(str(ca_file))
    config = f'tls {{ cert_file: "{cert}", key_file: "{key}", timeout: 5 }}'
    with Cluster(config=config, tls={"tls_ca_cert": str(ca_file)}) as cluster:
        yield cluster


@pytest.mark.limit(180)
async def test_c03_tls_on_three_nodes(encrypted: Cluster) -> None:
    async with connect(encrypted.config(**FAST)) as js:
        events = Events(js.connection)
        await js.create_stream(name="S", subjects=["s"], num_replicas=3)
        assert (await js.publish("s", b"1")).sequence == 1
        told = (await (await js.stream("S")).info()).cluster
        assert told is not None
        assert {told.leader, *(peer.name for peer in told.replicas)} == {
            node.name for node in encrypted.nodes
        }
        # The node that we are on dies; the next one is encrypted, too.
        port = int(js.connection.server.rpartition(":")[2])
        node = next(each for each in encrypted.nodes if each.port == port)
        await trio.to_thread.run_sync(node.kill)
        with trio.fail_after(LONG_S):
            await events.wait("reconnected")
            assert js.connection.server.startswith("tls://")
            # A leader may be being elected: the id makes it safe to try again.
            ack = await js.publish("s", b"2", msg_id="2", timeout=LONG_S, retry_attempts=200)
        assert ack.sequence == 2
        await trio.to_thread.run_sync(node.restart)
        with trio.fail_after(LONG_S):
            stream = await js.stream("S")
            assert (await stream.get_message(2)).data == b"2"


@pytest.mark.limit(180)
async def test_c03_a_node_that_comes_back_without_tls(encrypted: Cluster) -> None:
    """It is refused before anything is said; the others take over."""
    first = encrypted.nodes[0]
    # Told of one node only; of the others it learns while connected.
    async with connect(encrypted.config(first, dont_randomize=True, **FAST)) as js:
        events = Events(js.connection)
        with trio.fail_after(LONG_S):
            await wait_until(lambda: len(js.connection.known_servers) == 3, LONG_S)
        await trio.to_thread.run_sync(replace_config, first, encrypted.extra, "")
        with trio.fail_after(LONG_S):
            await events.wait("reconnected")
            assert js.connection.server != encrypted.url(first)
            # The node that is gone may have led the cluster: nobody answers during an election.
            while True:
                with contextlib.suppress(RequestTimeout, JetStreamNotEnabled):
                    await js.account_info()
                    break
    with pytest.raises(TLSError, match="does not offer TLS"):
        async with connect(encrypted.config(first, **FAST)):
            raise AssertionError("not reached")


async def test_c03_a_cluster_without_tls(cluster: Cluster) -> None:
    """Every node is asked, none is told anything."""
    urls = [f"tls://{node.host}:{node.port}" for node in cluster.nodes]
    with pytest.raises(TLSError, match="does not offer TLS"):
        async with connect(urls, **FAST):  # type: ignore[arg-type]
            raise AssertionError("not reached")
