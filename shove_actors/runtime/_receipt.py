"""What a publish returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishReceipt:
    """JetStream's acknowledgement.

    `duplicate`: a message with the same `Nats-Msg-Id` was stored within the duplicate window, and
    this one was *not* stored again; `sequence` is then the first one's.
    """

    stream: str
    sequence: int
    duplicate: bool = False
