"""The monitoring endpoint of a nats-server: what no client can ask for."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

import trio

from shove_actors import UsageError
from shove_actors.jetstream import redact

from ._base import CommandFailed

TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Monitored:
    """Of the server behind the endpoint. `sync_s`: seconds between two flushes to the disk, None if
    it does not say. `sync_always`: every message is flushed before it is acknowledged.
    """

    server_id: str
    server_name: str
    version: str
    sync_s: float | None
    sync_always: bool
    store_dir: str
    slow_consumers: int
    cluster_size: int


async def look(url: str) -> Monitored:
    """Reads `/varz` and `/jsz`. Raises `UsageError` for no http URL, `CommandFailed`."""
    base = url.rstrip("/")
    if not _is_address(base):
        raise UsageError(f"--monitor {redact(url)}: give an address such as http://127.0.0.1:8222")
    facts = await _get(f"{base}/varz")
    jetstream = (await _get(f"{base}/jsz?config=1")).get("config") or {}
    interval = jetstream.get("sync_interval")
    cluster = facts.get("cluster") or {}
    return Monitored(
        server_id=str(facts.get("server_id", "")),
        server_name=str(facts.get("server_name", "")),
        version=str(facts.get("version", "")),
        sync_s=interval / 1e9 if isinstance(interval, (int, float)) else None,
        sync_always=bool(jetstream.get("sync_always")),
        store_dir=str(jetstream.get("store_dir", "")),
        slow_consumers=int(facts.get("slow_consumers", 0)),
        cluster_size=1 + len(cluster.get("urls") or ()) if cluster.get("name") else 1,
    )


def _is_address(text: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(text)
        good = parts.hostname and parts.port != 0  # `port` raises for what is none
    except ValueError:
        return False
    return (
        bool(good) and parts.scheme in ("http", "https") and text.isprintable() and " " not in text
    )


async def _get(url: str) -> dict[str, Any]:
    try:
        text = await trio.to_thread.run_sync(_read, url, abandon_on_cancel=True)
        found = json.loads(text)
    except (OSError, ValueError) as exc:
        why = exc.reason if isinstance(exc, urllib.error.URLError) else exc
        raise CommandFailed(
            f"the monitoring endpoint {redact(url)} cannot be read ({why}). Start the server with "
            "`-m 8222`, or leave out --monitor"
        ) from None
    return found if isinstance(found, dict) else {}


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        text = answer.read()
    assert isinstance(text, bytes)
    return text
