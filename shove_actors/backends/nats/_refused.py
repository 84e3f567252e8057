"""What the server refuses of a stream, in the words of a topology: setting, values, way out."""

from __future__ import annotations

from collections.abc import Mapping

from shove_actors._errors import ApiError, TopologyError, UnavailableError
from shove_actors.jetstream import StreamConfig

_SUBJECTS_OVERLAP = 10065
_NO_CLUSTER = 10074
_NO_PEERS = 10005
_NO_STORAGE = 10047
_TOO_MANY_STREAMS = 10027


def no_cluster(name: str, replicas: int, has: str = "") -> TopologyError:
    """Copies were asked for where there is one server."""
    return TopologyError(
        f"stream {name!r} wants num_replicas={replicas}{has}, but the server is not part of a "
        "cluster and keeps 1; connect to a cluster, or use num_replicas=1"
    )


def explained(
    exc: ApiError, config: StreamConfig, changes: Mapping[str, object], current: StreamConfig | None
) -> Exception:
    """What to raise from `exc`; itself when there is nothing to add.

    `current` is None when the stream was to be made; otherwise `changes` were to be made to it.
    """
    name, replicas = config.name, config.num_replicas
    if exc.err_code == _SUBJECTS_OVERLAP:
        return TopologyError(
            f"stream {name!r} cannot bind {list(config.subjects)}: another stream takes (part of) "
            "these subjects; rename the topic"
        )
    has = "" if current is None else f" (it has {current.num_replicas})"
    if exc.err_code == _NO_CLUSTER:
        return no_cluster(name, replicas, has)
    if exc.err_code == _NO_PEERS:
        return UnavailableError(
            f"stream {name!r} wants num_replicas={replicas}{has}, and the cluster has not that "
            f"many servers for it now ({exc.description}); start more, or lower num_replicas"
        )
    if exc.err_code == _NO_STORAGE:
        return TopologyError(
            f"stream {name!r} wants max_bytes={config.max_bytes}, more than the server's store or "
            "the account has left; lower max_bytes, or raise max_file_store, or the account's limit"
        )
    if exc.err_code == _TOO_MANY_STREAMS:
        return UnavailableError(
            f"there is no room for stream {name!r}: the account has as many streams as it may "
            "(a topic needs one, and one for each hold queue and its dead letters); delete "
            "streams, or raise the account's max_streams"
        )
    if current is None or exc.code == 503:
        return exc  # not ready, or nothing that a topology says
    differences = ", ".join(
        f"{setting} from {getattr(current, setting)!r} to {value!r}"
        for setting, value in changes.items()
    )
    return TopologyError(
        f"the server refuses to change {differences} of stream {name!r}: {exc.description}. "
        "Declare what the stream has, or change the stream so that the topic's settings fit"
    )
