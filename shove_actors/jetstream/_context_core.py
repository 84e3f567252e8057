"""What every part of the JetStream context stands on: connection, prefix, one API request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import trio

from shove_actors._errors import (
    ApiError,
    InvalidOption,
    JetStreamNotEnabled,
    JetStreamNotEnabledForAccount,
    NoResponders,
)

from ._account import AccountInfo
from ._api_errors import NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT, api_error
from ._clock import ServerClock
from ._connection import Connection
from ._context_options import JetStreamOptions
from ._options import check_kind, check_text
from ._request import Reply

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class ContextCore:
    """One API request, and what its failure means. See `JetStream`."""

    def __init__(self, connection: Connection, options: JetStreamOptions) -> None:
        self.connection = check_kind("connection", connection, Connection, "a Connection")
        #: What this context was made with. Read-only.
        self.options = options
        self.timeout = options.timeout
        self.prefix = options.prefix
        #: Fed by every answer that carries the server's time.
        self.clock = ServerClock()

    async def ask_api(self, op: str, body: Mapping[str, Any] | None = None) -> Reply:
        """One request to the API, seen by the hooks; the reply as it comes."""
        check_text("op", op, empty=False)
        if body is not None:
            check_kind("body", body, Mapping, "a mapping, or None")
        try:
            payload = _encode(body) if body is not None else b""
        except UnicodeEncodeError:
            raise InvalidOption(
                f"a text in the request {op} contains half of a surrogate pair, which is no text"
            ) from None
        subject, options = self.prefix + op, self.options
        if options.on_request is not None:
            options.on_request(subject, payload)
        reply = await self.connection.request(subject, payload, timeout=self.timeout)
        if options.on_response is not None:
            options.on_response(subject, reply.payload)
        return reply

    async def api(self, op: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One API request. Raises the exception for the answer's `error`."""
        sent_at = trio.current_time()
        reply = await self.ask_api(op, body)
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
            if exc.err_code == NOT_ENABLED:
                raise self._not_enabled() from exc
            if exc.err_code == NOT_ENABLED_FOR_ACCOUNT:
                raise JetStreamNotEnabledForAccount(
                    f"the server {self.connection.server} has JetStream, but not for the account "
                    "of this user; have it enabled there"
                ) from exc
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

    async def account_info(self) -> AccountInfo:
        """What this account uses and may use. Raises `JetStreamNotEnabled` when nobody answers,
        which a wrong `domain` looks like, too."""
        return AccountInfo.read(await self.call("INFO"))
