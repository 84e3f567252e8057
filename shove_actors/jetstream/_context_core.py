"""What every part of the JetStream context stands on: connection, prefix, one API request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import trio

from shove_actors._errors import ApiError, JetStreamNotEnabled, NoResponders

from ._api_errors import NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT, api_error
from ._clock import ServerClock
from ._connection import Connection

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class ContextCore:
    """One API request, and what its failure means. See `JetStream`."""

    def __init__(
        self,
        connection: Connection,
        *,
        domain: str | None = None,
        api_prefix: str | None = None,
        timeout: float | None = None,
    ) -> None:
        if domain is not None and api_prefix is not None:
            raise ValueError("domain and api_prefix exclude each other; give one of them")
        self.connection = connection
        self.timeout = timeout
        #: Fed by every answer that carries the server's time.
        self.clock = ServerClock()
        if domain is not None:
            self.prefix = f"$JS.{domain}.API."
        elif api_prefix is not None:
            self.prefix = api_prefix if api_prefix.endswith(".") else api_prefix + "."
        else:
            self.prefix = "$JS.API."

    async def api(self, op: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One API request. Raises the exception for the answer's `error`."""
        payload = _encode(body) if body is not None else b""
        sent_at = trio.current_time()
        reply = await self.connection.request(self.prefix + op, payload, timeout=self.timeout)
        status = reply.status
        if status is not None and status[0] == 503:
            raise NoResponders(f"nobody answers {self.prefix}{op}")
        try:
            answer = _decode(reply.payload)
        except msgspec.DecodeError:
            # Somebody who is not JetStream listens on its subjects, or a status without a meaning.
            code = status[0] if status is not None else 0
            raise ApiError(code, 0, f"the answer to {self.prefix}{op} makes no sense") from None
        error = answer.get("error")
        if error is not None:
            exc = api_error(error)
            if exc.err_code in (NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT):
                raise self._not_enabled() from exc
            raise exc
        stamp = answer.get("ts")
        if isinstance(stamp, str):
            self.clock.observe(stamp, sent_at, trio.current_time())
        return answer

    async def call(self, op: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """As `api`, with silence explained: is it JetStream that is missing?"""
        try:
            return await self.api(op, body)
        except NoResponders as exc:
            raise self._not_enabled() from exc

    def _not_enabled(self) -> JetStreamNotEnabled:
        return JetStreamNotEnabled(
            f"the server {self.connection.server} has no JetStream (or it is not ready yet); "
            "start nats-server with the -js flag"
        )

    async def account_info(self) -> dict[str, Any]:
        return await self.call("INFO")
