# runnable
"""TLS in both directions: the server proves who it is, and so does the client.

A certificate authority of its own (trustme, for tests) issues both certificates. Run it:

    pip install 'shove-actors[server]' trustme
    python examples/tls.py
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import trio
import trustme

from shove_actors import (
    ConnectionError,
    NatsConfig,
    Outcome,
    Topic,
    TopologyBuilder,
    embedded_server,
    open_broker,
)

ORDERS = Topic(str, TopologyBuilder("orders").hold_queue(5).dlq().build())
SERVER = 'tls {{ ca_file: "{0}/ca.pem", cert_file: "{0}/server.pem", key_file: "{0}/server.key", '
SERVER += "verify: true, timeout: 5 }}"


def issue(ca: trustme.CA, folder: Path, name: str, identity: str) -> None:
    issued = ca.issue_cert(identity)
    issued.private_key_pem.write_to_path(folder / f"{name}.key")
    for blob in issued.cert_chain_pems:
        blob.write_to_path(folder / f"{name}.pem", append=True)


async def tried(config: NatsConfig) -> str:
    try:
        async with open_broker(config):
            return "connected"
    except ConnectionError:
        return "refused"


async def main() -> None:
    handled = trio.Event()

    async def handle(order: str) -> Outcome:
        print("handled", order)
        handled.set()
        return Outcome.ACK

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ca, stranger = trustme.CA(), trustme.CA()
        ca.cert_pem.write_to_path(folder / "ca.pem")
        stranger.cert_pem.write_to_path(folder / "stranger.pem")
        issue(ca, folder, "server", "127.0.0.1")
        issue(ca, folder, "client", "orders@example.org")
        async with embedded_server(config=SERVER.format(folder)) as server:
            url = server.url.replace("nats://", "tls://")
            proven = partial(
                NatsConfig,
                tls_client_cert=folder / "client.pem",
                tls_client_key=folder / "client.key",
            )
            async with open_broker(proven(url, tls_ca_cert=folder / "ca.pem")) as broker:
                await broker.declare(ORDERS)
                await broker.publisher().publish(ORDERS, "tea, in secret")
                group = broker.consumer_group()
                group.register(ORDERS, handle)
                await group.run_until(handled.wait, drain_timeout=10)
            wrong_ca = proven(url, tls_ca_cert=folder / "stranger.pem")
            print("an authority that did not issue it:", await tried(wrong_ca))
            nobody = NatsConfig(url, tls_ca_cert=folder / "ca.pem")
            print("no certificate of our own:", await tried(nobody))
            plain = NatsConfig(server.url, tls_ca_cert=folder / "ca.pem")
            print("nats:// and TLS options:", await tried(plain))


if __name__ == "__main__":
    trio.run(main)
