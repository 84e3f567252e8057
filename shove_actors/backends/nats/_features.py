"""What needs which nats-server, and what is said to one that is too old.

Everything works from 2.9 on, except what is listed here. A server is asked for its version, not for
the feature: what is missing is ignored without a word (stream metadata), or done wrongly
(`max_bytes`). In a cluster of several versions it is that of the server we are connected to.
Shown by `nox -s old_server`, on Debian's 2.9.10.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from shove_actors._errors import FeatureUnavailable
from shove_actors.jetstream import Connection

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """`why`: what an older server does. `instead`: the way out."""

    name: str
    since: tuple[int, int, int]
    why: str
    instead: str


#: Durables are created under their names and with their filters in the subject of the request.
BASE: Final = Feature(
    name="shove_actors",
    since=(2, 9, 0),
    why="it does not know the requests that durables are created with",
    instead="upgrade it",
)
#: https://github.com/nats-io/nats-server/issues/4771, and 4775; 2.9.10 does it in `old_server`.
MAX_BYTES: Final = Feature(
    name="max_bytes",
    since=(2, 10, 5),
    why="a full stream makes room for a new message by deleting one that nobody has handled",
    instead="bound the stream with max_messages, or upgrade the server",
)
LOWERED: Final = Feature(
    name="a limit below what is stored",
    since=(2, 10, 5),
    why="it deletes the oldest messages, handled or not, until the rest fits",
    instead="let the consumers drain the stream below the limit first, or upgrade the server",
)
#: The mark that tells every later `declare` of the change is kept in the stream's metadata.
RESHARD: Final = Feature(
    name="broker.reshard",
    since=(2, 10, 0),
    why="it keeps no metadata of streams, so that a later declare would not know of the change",
    instead="stop publishing, let the consumers drain the topic, then declare the new number",
)
#: One process at a time is sent the messages of a durable, and may rewind it to its ack floor.
KEYED: Final = Feature(
    name="a keyed topic",
    since=(2, 14, 0),
    why="it cannot rewind a consumer, so that the order of a key would be lost with each takeover",
    instead="leave out .keyed(...): one message per shard at a time, or upgrade the server",
)


def version_of(text: str) -> tuple[int, int, int] | None:
    """None for what is no version: a development build, for instance."""
    found = _VERSION.match(text)
    if found is None:
        return None
    return int(found[1]), int(found[2]), int(found[3] or 0)


def require(connection: Connection, feature: Feature) -> None:
    """Raises `FeatureUnavailable` if the server is known to be too old."""
    version = version_of(connection.server_version)
    if version is None or version >= feature.since:
        return
    since = ".".join(map(str, feature.since))
    raise FeatureUnavailable(
        f"{feature.name} needs nats-server {since} or newer; {connection.server} is "
        f"{connection.server_version}: {feature.why}. Way out: {feature.instead}"
    )
