"""Trace context in message headers, and the current span. Needs OpenTelemetry's API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_W3C: Final = TraceContextTextMapPropagator()
_FIELDS: Final = ("traceparent", "tracestate")
#: Found in a raw header block before its headers are decoded.
_MARK: Final = b"raceparent"


def read_context(headers: Mapping[str, str]) -> Context:
    """The context that headers carry; an empty one if they carry none, or nonsense."""
    carrier: dict[str, str] = {}
    for name, value in headers.items():
        folded = name.lower()
        if folded in _FIELDS:
            carrier.setdefault(folded, value)
    return _W3C.extract(carrier, Context()) if carrier else Context()


def may_carry_context(raw: bytes | None) -> bool:
    """One scan of a raw header block, which mostly saves decoding it."""
    return raw is not None and _MARK in raw


def write_context(span: Span, headers: MutableMapping[str, str]) -> None:
    """The span's context into headers, in place of what they had."""
    for name in [n for n in headers if n.lower() in _FIELDS]:
        del headers[name]
    _W3C.inject(headers, context_of(span))


def context_of(span: Span) -> Context:
    return trace.set_span_in_context(span, Context())


def has_current_span() -> bool:
    return trace.get_current_span().get_span_context().is_valid


@contextmanager
def current(span: Span) -> Iterator[None]:
    """Make a span the current one for the block."""
    token = attach(trace.set_span_in_context(span))
    try:
        yield
    finally:
        detach(token)


def fail(span: Span, why: str) -> None:
    """Of an exception its type: its text may quote the message."""
    span.set_status(Status(StatusCode.ERROR, why))
