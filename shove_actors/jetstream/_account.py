"""What an account uses and may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._fields import from_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLimits:
    """Limits in bytes and numbers; -1 is unlimited."""

    max_memory: int = -1
    max_storage: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_ack_pending: int = -1
    memory_max_stream_bytes: int = -1
    storage_max_stream_bytes: int = -1
    max_bytes_required: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> AccountLimits:
        return from_wire(cls, raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountTier:
    """Usage and limits of one tier (for example R3) of an account that has them."""

    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    streams: int = 0
    consumers: int = 0
    limits: AccountLimits = field(default_factory=AccountLimits)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> AccountTier:
        return from_wire(cls, raw, records={"limits": AccountLimits})


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiStats:
    """Requests so far, and the server's level of the API (0 before nats-server 2.11)."""

    level: int = 0
    total: int = 0
    errors: int = 0
    inflight: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> ApiStats:
        return from_wire(cls, raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountInfo(AccountTier):
    """The account of this connection: what it uses, what it may use."""

    domain: str | None = None
    api: ApiStats = field(default_factory=ApiStats)
    tiers: Mapping[str, AccountTier] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> AccountInfo:
        plain = {name: value for name, value in raw.items() if name not in ("tiers", "type")}
        info = from_wire(cls, plain, records={"limits": AccountLimits, "api": ApiStats})
        tiers = {name: AccountTier.read(tier) for name, tier in (raw.get("tiers") or {}).items()}
        object.__setattr__(info, "tiers", tiers)
        return info
