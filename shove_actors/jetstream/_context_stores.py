"""Key-value buckets and object stores."""

from __future__ import annotations

from ._context_core import ContextCore


class StoresApi(ContextCore):
    """The part of `JetStream` that opens key-value buckets and object stores."""
