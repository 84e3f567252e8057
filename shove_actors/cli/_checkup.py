"""What `doctor` looks at. Each finding says what was found, what that means, and what to do.

Three honest levels: `ok`; `warn` (it works, and something can go wrong that somebody should have
decided about); `fail` (it does not work). `unknown` is what a client cannot see, and says who can.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal

import trio

from shove_actors import JetStreamNotEnabled, PermissionDenied, ShoveError
from shove_actors.backends.nats import _features
from shove_actors.backends.nats._features import Feature, version_of
from shove_actors.jetstream import JetStream

from ._monitor import Monitored

Status = Literal["ok", "warn", "fail", "unknown"]

#: A wall clock that is further off than this makes ages and dates in reports wrong.
CLOCK_S: Final = 1.0
#: A limit of which more than this is used deserves a look.
NEARLY: Final = 0.8
#: A round trip above this makes every publish that waits for its acknowledgement slow.
SLOW_S: Final = 0.1
SAMPLES: Final = 5
#: Streams are looked at up to this number.
STREAMS: Final = 2_000
#: Servers before this one do not say what time it is.
TELLS_TIME: Final = (2, 10, 0)

SYNC_DOC: Final = "docs/operations.md, `When an acknowledged message is on the disk`"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report. `meaning`, `fix`: for what is not ok."""

    check: str
    status: Status
    value: str
    meaning: str = ""
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def own_versions() -> Finding:
    """Of what runs here."""
    found = [f"Python {sys.version.split()[0]}"]
    for name in ("shove-actors", "trio", "nats-py", "trio-asyncio"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:  # run from a checkout that is not installed
            found.append(f"{name} (not installed)")
    return Finding(check="client", status="ok", value=", ".join(found))


async def examine(js: JetStream, monitored: Monitored | None) -> list[Finding]:
    """All that can be found out over one connection, and from the monitoring endpoint if given."""
    found = [_server(js), await _round_trip(js), *_features_of(js)]
    account = await _account(js)
    if isinstance(account, Finding):
        return [*found, account]
    found += [*_limits(account), _clock(js)]
    streams = await _streams(js)
    found += [*_storage(streams), *_sync(js, monitored)]
    return found


def _server(js: JetStream) -> Finding:
    where, text = js.connection.server, js.connection.server_version
    return Finding(
        check="server",
        status="ok",
        value=f"nats-server {text} at {where}, messages up to {js.connection.max_payload:,} bytes",
    )


async def _round_trip(js: JetStream) -> Finding:
    times = []
    for _ in range(SAMPLES):
        began = trio.current_time()
        await js.connection.flush()
        times.append(trio.current_time() - began)
    best = min(times)
    return Finding(
        check="round trip",
        status="warn" if best > SLOW_S else "ok",
        value=f"{best * 1000:.1f} ms",
        meaning="a publish waits this long for its acknowledgement" if best > SLOW_S else "",
        fix="use publish_batch or a pipeline, or move closer to the server"
        if best > SLOW_S
        else "",
    )


def _features_of(js: JetStream) -> Iterator[Finding]:
    known = version_of(js.connection.server_version)
    features = [value for value in vars(_features).values() if isinstance(value, Feature)]
    if known is None:
        yield Finding(
            check="features",
            status="unknown",
            value=f"{js.connection.server_version!r} is no released version",
            meaning="it is taken to have all of them",
        )
        return
    missing = [feature for feature in features if known < feature.since]
    if not missing:
        yield Finding(check="features", status="ok", value=f"all {len(features)} that are used")
    for feature in missing:
        yield Finding(
            check=f"feature: {feature.name}",
            status="fail" if feature is _features.BASE else "warn",
            value=f"needs nats-server {'.'.join(map(str, feature.since))}",
            meaning=feature.why,
            fix=feature.instead,
        )


async def _account(js: JetStream) -> Mapping[str, Any] | Finding:
    try:
        return await js.call("INFO")
    except JetStreamNotEnabled as exc:
        return Finding(
            check="JetStream",
            status="fail",
            value="not there",
            meaning=str(exc),
            fix="start nats-server with -js, or enable JetStream for this account",
        )
    except PermissionDenied as exc:
        return Finding(
            check="JetStream",
            status="unknown",
            value="this user may not ask",
            meaning=str(exc),
            fix="allow it to publish to $JS.API.>",
        )


def _limits(account: Mapping[str, Any]) -> Iterator[Finding]:
    tiers: Mapping[str, Any] = account.get("tiers") or {"": account}
    for tier, facts in tiers.items():
        limits = facts.get("limits") or {}
        shown, full = [], []
        for what, used, limit in (
            ("memory", facts.get("memory", 0), limits.get("max_memory", -1)),
            ("storage", facts.get("storage", 0), limits.get("max_storage", -1)),
            ("streams", facts.get("streams", 0), limits.get("max_streams", -1)),
            ("consumers", facts.get("consumers", 0), limits.get("max_consumers", -1)),
        ):
            of = "" if limit < 0 else f" of {limit:,}"
            shown.append(f"{what} {used:,}{of}")
            if limit == 0 and what in ("storage", "streams"):
                full.append(f"no {what} is allowed at all")
            elif limit > 0 and used >= NEARLY * limit:
                full.append(f"{what} is {used / limit:.0%} used")
        if limits.get("max_bytes_required"):
            full.append("every stream must have a max_bytes")
        yield Finding(
            check=f"limits {tier}".strip(),
            status="warn" if full else "ok",
            value=", ".join(shown),
            meaning="; ".join(full),
            fix="raise the account's limits; with max_bytes required, give every topic a "
            "NatsStreamConfig(max_bytes=...)"
            if full
            else "",
        )


def _clock(js: JetStream) -> Finding:
    known = version_of(js.connection.server_version)
    if known is not None and known < TELLS_TIME:
        return Finding(
            check="clock",
            status="unknown",
            value="this server does not tell its time",
            meaning="the age of held messages is taken from this machine's clock",
            fix="upgrade to nats-server 2.10, or keep both clocks in step (NTP)",
        )
    offset = round((js.clock.now_ns() - time.time_ns()) / 1e9, 3) + 0.0  # never -0
    off = abs(offset) > CLOCK_S
    return Finding(
        check="clock",
        status="warn" if off else "ok",
        value=f"the server's is {offset:+.3f} s from this machine's",
        meaning="delays follow the server's clock and are right; dates of this machine in logs and "
        "traces do not fit those of messages"
        if off
        else "",
        fix="keep both clocks in step (NTP)" if off else "",
    )


async def _streams(js: JetStream) -> list[Mapping[str, Any]] | Finding:
    found: list[Mapping[str, Any]] = []
    try:
        while len(found) < STREAMS:
            page = await js.call("STREAM.LIST", {"offset": len(found)})
            streams = page.get("streams") or []
            found += streams
            if not streams or len(found) >= page.get("total", 0):
                break
    except ShoveError as exc:
        return Finding(
            check="streams", status="unknown", value="cannot be listed", meaning=str(exc)
        )
    return found


def _storage(streams: list[Mapping[str, Any]] | Finding) -> Iterator[Finding]:
    if isinstance(streams, Finding):
        yield streams
        return
    in_memory = sorted(s["config"]["name"] for s in streams if s["config"]["storage"] == "memory")
    single = sorted(
        stream["config"]["name"]
        for stream in streams
        if stream["config"].get("num_replicas", 1) == 1
        and (stream.get("cluster") or {}).get("name")
    )
    yield Finding(
        check="streams",
        status="ok",
        value=f"{len(streams):,}{' and more' if len(streams) >= STREAMS else ''}",
    )
    if in_memory:
        yield Finding(
            check="memory streams",
            status="warn",
            value=_some(in_memory),
            meaning="what is in them is gone when the server ends",
            fix="use Storage.FILE; a stream cannot be changed, so drain it and make it again",
        )
    if single:
        yield Finding(
            check="one replica",
            status="warn",
            value=_some(single),
            meaning="in a cluster, these are not there while their one server is not",
            fix="set NatsStreamConfig(num_replicas=3) and declare again",
        )


def _sync(js: JetStream, monitored: Monitored | None) -> Iterator[Finding]:
    risk = (
        "when its machine loses power, messages that it acknowledged since the last flush are "
        "lost, unless another replica has them; a server that is only killed loses nothing"
    )
    fix = (
        "set `jetstream { sync_interval: always }` in the server's configuration, or keep three "
        f"replicas in different places. See {SYNC_DOC}"
    )
    if monitored is None:
        yield Finding(
            check="sync_interval",
            status="unknown",
            value="a client cannot see it; nats-server's default is 2 minutes",
            meaning=f"with the default, {risk}",
            fix=f"ask its monitoring endpoint, doctor --monitor http://HOST:8222; and then {fix}",
        )
    elif monitored.sync_always:
        yield Finding(
            check="sync_interval", status="ok", value="always: acknowledged is on the disk"
        )
    elif monitored.sync_s is None:
        yield Finding(
            check="sync_interval",
            status="unknown",
            value=f"nats-server {monitored.version} does not show it; its default is 2 minutes",
            meaning=f"with the default, {risk}",
            fix=fix,
        )
    else:
        yield Finding(
            check="sync_interval",
            status="warn",
            value=f"flushed to the disk every {monitored.sync_s:g} s",
            meaning=risk,
            fix=fix,
        )
    if monitored is None:
        return
    if monitored.server_id != js.connection.server_id:
        yield Finding(
            check="monitor",
            status="warn",
            value=f"it is of server {monitored.server_name}, which --url did not connect to",
            meaning="what it says holds for that server only",
            fix="give the monitoring endpoint of the server of --url, and run it for each server",
        )
    slow = monitored.slow_consumers
    yield Finding(
        check="slow consumers",
        status="warn" if slow else "ok",
        value=f"{slow:,} since it was started",
        meaning="clients did not read in time and were cut off; consumers here pull, and do not "
        "become slow by themselves"
        if slow
        else "",
        fix="look for their names at /connz?state=closed" if slow else "",
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
