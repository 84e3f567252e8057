"""Structured fields of log records: one spelling, `shove_*`, for every line of this package.

`shove_event` is a stable name for what happened, to filter and alert on; the text of a line is for
people and may change. The other fields say where: `shove_queue` is a stream, `shove_sequence` a
message in it. The names are listed in `docs/operations.md`.
"""

from __future__ import annotations


def about(event: str, **fields: object) -> dict[str, object]:
    """The `extra=` of a log line. Never a payload, a header's value or a credential."""
    extra: dict[str, object] = {"shove_event": event}
    for name, value in fields.items():
        if value is not None:
            extra[f"shove_{name}"] = value
    return extra
