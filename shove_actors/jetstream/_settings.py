"""The settings of a connection and of a JetStream context, as keyword arguments."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import TypedDict

from ._config import ChooseServer, ConnectionCallback
from ._context_options import TraceHook
from ._given_credentials import Credentials
from ._pub_ack import PubAck
from ._publish_future import PublishFuture


class ConnectionSettings(TypedDict, total=False):
    """The fields of `NatsConfig` but the servers."""

    username: str | None
    password: str | None
    token: str | None
    nkey_seed: str | None
    creds_file: str | os.PathLike[str] | None
    credentials: Callable[[], Credentials] | None
    tls_ca_cert: str | os.PathLike[str] | None
    tls_client_cert: str | os.PathLike[str] | None
    tls_client_key: str | os.PathLike[str] | None
    tls_hostname: str | None
    tls_context: ssl.SSLContext | None
    tls_handshake_first: bool
    name: str | None
    max_reconnect_attempts: int | None
    reconnect_wait: float
    reconnect_jitter: float
    reconnect_jitter_tls: float
    custom_reconnect_delay: Callable[[int], float] | None
    choose_server: ChooseServer | None
    dont_randomize: bool
    connect_timeout: float
    request_timeout: float
    ping_interval: float
    max_outstanding_pings: int
    allow_reconnect: bool
    retry_first_connect: bool
    ignore_auth_errors: bool
    on_connected: ConnectionCallback | None
    on_disconnected: ConnectionCallback | None
    on_reconnected: ConnectionCallback | None
    on_closed: ConnectionCallback | None
    on_error: ConnectionCallback | None
    on_discovered: ConnectionCallback | None
    on_lame_duck: ConnectionCallback | None


class ConnectSettings(ConnectionSettings, total=False):
    """Those, and the options of `JetStream`."""

    domain: str | None
    api_prefix: str | None
    timeout: float | None
    on_request: TraceHook | None
    on_response: TraceHook | None
    publish_async_max_pending: int
    publish_ack_timeout: float | None
    on_publish_error: Callable[[PublishFuture, Exception], object] | None
    on_publish_ack: Callable[[PublishFuture, PubAck], object] | None
