"""What the pull engine wants done; `_puller.py` does it."""

from __future__ import annotations

from dataclasses import dataclass

from shove_actors._errors import JetStreamError


@dataclass(frozen=True)
class Ask:
    """A request to send."""

    batch: int
    max_bytes: int | None = None


@dataclass(frozen=True)
class Tell:
    """A notice for the user; reading goes on."""

    error: JetStreamError


@dataclass(frozen=True)
class End:
    """Nothing more can come: hand over what is buffered, then this."""

    error: Exception


@dataclass(frozen=True)
class Abandon:
    """Give up the inbox: its requests may live on, unseen."""


@dataclass(frozen=True)
class ForgetPin:
    """Another client is pinned."""


@dataclass(frozen=True)
class LookUp:
    """Does the consumer exist? Report to `looked_up` with this number."""

    number: int


Action = Tell | End | Abandon | ForgetPin | LookUp
