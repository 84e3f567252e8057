"""Names of the headers that the server and this package give a meaning to.

The server compares names case by case, so they are spelled once, here.
"""

from __future__ import annotations

MSG_ID = "Nats-Msg-Id"
"""The server's de-duplication id; new on every hop."""

EXPECTED_STREAM = "Nats-Expected-Stream"
"""The stream that is meant: the server refuses the message for any other one on its subject."""

MESSAGE_ID = "Shove-Message-Id"
"""The logical id: the same over every attempt and hop."""

RETRY_COUNT = "Shove-Retry-Count"
DEFER_COUNT = "Shove-Defer-Count"

ORIGIN = "Shove-Origin"
"""The stored copy that this one was made from: `{sequence}.{store time}`."""

KEY = "Shove-Key"
"""The sequence key, percent-encoded when it holds anything but plain ASCII."""

CONTROL = "Shove-Control"
"""A message of ours to the consumers of a topic; no handler sees it."""

POISONING = "Shove-Poisoning"
"""Which poisoning of its key a control message is about (`poisoning_of`)."""

DUE_AFTER = "Shove-Due-After-Ms"
"""A held message's own delay in milliseconds; absent: that of its hold queue."""

ORIGINAL_QUEUE = "Shove-Original-Queue"
ORIGINAL_SUBJECT = "Shove-Original-Subject"
ORIGINAL_STREAM = "Shove-Original-Stream"
ORIGINAL_SEQUENCE = "Shove-Original-Sequence"
PUBLISHED_AT = "Shove-Published-At"

DEATH_REASON = "Shove-Death-Reason"
DEATH_CAUSE = "Shove-Death-Cause"
DEATH_DETAIL = "Shove-Death-Detail"
DEATH_COUNT = "Shove-Death-Count"
FIRST_FAILED_AT = "Shove-First-Failed-At"
DIED_AT = "Shove-Died-At"

STATUS = "Status"
DESCRIPTION = "Description"
"""Clients take a message with `Status` for one of the server's own; see `_headers`."""

FOREIGN_STATUS = "Shove-Foreign-Status"
FOREIGN_DESCRIPTION = "Shove-Foreign-Description"
