"""The metrics: every name, kind, unit and label in one table.

The instruments are made from it, the table in `docs/observability.md` is compared with it, and a
test sees each of them with exactly these labels (`tests/telemetry/`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "histogram", "gauge"]

#: Bounds of duration histograms, in seconds: handlers and publishes take from under a millisecond
#: to their time-outs.
SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10, 30)
BYTES: Final = (64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """`name` is without the prefix."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    text: str
    bounds: tuple[float, ...] = ()


CONSUMED: Final = Metric(
    name="messages_consumed_total",
    kind="counter",
    unit="{attempt}",
    labels=("topic", "consumer_group", "outcome"),
    text="Attempts of handlers, by outcome: ack, retry, defer, reject, interrupted.",
)
FAILED: Final = Metric(
    name="messages_failed_total",
    kind="counter",
    unit="{message}",
    labels=("topic", "consumer_group", "reason"),
    text="Messages that failed without an answer of their handler: oversize, deserialize, timeout. "
    "The reason pending_full is reserved: nothing here has a bounded buffer that could overflow.",
)
PUBLISHED: Final = Metric(
    name="messages_published_total",
    kind="counter",
    unit="{message}",
    labels=("topic", "outcome"),
    text="Messages that were sent, by outcome: success (stored, also as a duplicate) or error.",
)
PROCESSING: Final = Metric(
    name="message_processing_duration_seconds",
    kind="histogram",
    unit="s",
    labels=("topic", "consumer_group", "outcome"),
    text="Time in the handler, of every attempt.",
    bounds=SECONDS,
)
PUBLISHING: Final = Metric(
    name="message_publish_duration_seconds",
    kind="histogram",
    unit="s",
    labels=("topic", "outcome"),
    text="From the call until JetStream's acknowledgement, or the error.",
    bounds=SECONDS,
)
SIZE: Final = Metric(
    name="message_size_bytes",
    kind="histogram",
    unit="By",
    labels=("topic", "consumer_group"),
    text="Payload of messages that reached a handler.",
    bounds=BYTES,
)
INFLIGHT: Final = Metric(
    name="messages_inflight",
    kind="gauge",
    unit="{handler}",
    labels=("topic", "consumer_group"),
    text="Handlers that run at this moment.",
)
DECISIONS: Final = Metric(
    name="autoscaler_decisions_total",
    kind="counter",
    unit="{change}",
    labels=("topic", "direction"),
    text="Changes that the autoscaler made: up or down.",
)
ERRORS: Final = Metric(
    name="backend_errors_total",
    kind="counter",
    unit="{error}",
    labels=("backend", "kind"),
    text="What went wrong below: disconnected, error, slow_consumer, lane_recreated, lane_waiting, "
    "pull_stalled; publish (given up) and settle (a copy could not be stored; the message stays).",
)
DEAD: Final = Metric(
    name="messages_dead_total",
    kind="counter",
    unit="{message}",
    labels=("topic", "consumer_group", "reason"),
    text="Messages given up, by reason code: dead letters, or discarded where there is no "
    "dead-letter queue.",
)
AUDIT_FAILURES: Final = Metric(
    name="audit_failures_total",
    kind="counter",
    unit="{record}",
    labels=("topic", "consumer_group", "reason", "consequence"),
    text="Audit records that could not be written (reason: error, timeout); consequence: retry (the"
    " message is handled again) or gap (the record is missing).",
)

METRICS: Final = (
    CONSUMED,
    FAILED,
    PUBLISHED,
    PROCESSING,
    PUBLISHING,
    SIZE,
    INFLIGHT,
    DECISIONS,
    ERRORS,
    DEAD,
    AUDIT_FAILURES,
)


def markdown_table(prefix: str = "shove_") -> str:
    """The table of the documentation."""
    lines = ["| metric | kind | labels | |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{prefix}{metric.name}` | {metric.kind} | {labels} | {metric.text} |")
    return "\n".join(lines) + "\n"
