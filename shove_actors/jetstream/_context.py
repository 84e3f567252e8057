"""The JetStream context: streams, consumers, publishing and stores over one connection."""

from __future__ import annotations

from ._context_consumers import ConsumersApi
from ._context_publish import PublishApi
from ._context_stores import StoresApi
from ._context_streams import StreamsApi


class JetStream(StreamsApi, ConsumersApi, PublishApi, StoresApi):
    """JetStream's management API. Every call is one request with the connection's time-out.

    `domain` or `api_prefix` select where the API lives; giving both is a `ValueError`.
    Errors: `ApiError` and its subclasses for what the server refuses, `JetStreamNotEnabled` when
    nobody answers for JetStream, `RequestTimeout`, `ConnectionError`. Cancelling a call may leave
    it carried out.
    """
