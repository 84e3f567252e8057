"""The checks of single settings: types, ranges and text. Values are named only where harmless."""

from __future__ import annotations

import functools
import inspect
import math
import os
import ssl
from typing import TYPE_CHECKING

from ._problem import Problem

if TYPE_CHECKING:
    from ._config import NatsConfig

_POSITIVE = ("reconnect_wait", "connect_timeout", "request_timeout", "ping_interval")
_NOT_NEGATIVE = ("reconnect_jitter", "reconnect_jitter_tls")
_SWITCHES = (
    "dont_randomize",
    "allow_reconnect",
    "tls_handshake_first",
    "retry_first_connect",
    "ignore_auth_errors",
)
_SECRET_TEXTS = ("username", "password", "token", "nkey_seed")
_TEXTS = ("name", "tls_hostname")
_PATHS = ("creds_file", "tls_ca_cert", "tls_client_cert", "tls_client_key")
_FUNCTIONS = (
    "custom_reconnect_delay",
    "credentials",
    "choose_server",
    "on_disconnected",
    "on_reconnected",
    "on_closed",
    "on_error",
    "on_connected",
    "on_discovered",
    "on_lame_duck",
)


def check_settings(config: NatsConfig) -> Problem | None:
    """The first single setting that is wrong by itself."""
    return _numbers(config) or _texts(config) or _others(config)


def _numbers(config: NatsConfig) -> Problem | None:
    for name in _POSITIVE + _NOT_NEGATIVE:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return Problem(f"{name} is of type {type(value).__name__}; give a number of seconds")
        if not math.isfinite(value) or value < 0 or (name in _POSITIVE and value == 0):
            rule = "more than 0" if name in _POSITIVE else "0 or more"
            return Problem(f"{name} is {value!r}; it must be {rule} seconds, and finite")
    for name, least in (("max_outstanding_pings", 1), ("max_reconnect_attempts", 0)):
        value = getattr(config, name)
        if value is None and name == "max_reconnect_attempts":
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            return Problem(f"{name} is of type {type(value).__name__}; give a whole number")
        if value < least:
            without = "; None tries for ever" if name == "max_reconnect_attempts" else ""
            return Problem(f"{name} is {value}; it must be {least} or more{without}")
    return None


def _texts(config: NatsConfig) -> Problem | None:
    for name in _SECRET_TEXTS + _TEXTS:
        value = getattr(config, name)
        if value is None:
            continue
        if not isinstance(value, str):
            return Problem(f"{name} is of type {type(value).__name__}; give a string or None")
        if not value.strip():
            return Problem(f"{name} is empty; give a value, or None for none")
        if name in _TEXTS and not value.isprintable():
            return Problem(f"{name} contains a line break or another unprintable character")
    for name in _PATHS:
        value = getattr(config, name)
        if value is None:
            continue
        if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
            return Problem(f"{name} is of type {type(value).__name__}; give the path of a file")
        if not os.fspath(value):
            return Problem(f"{name} is empty; give the path of a file, or None for none")
    return None


def _others(config: NatsConfig) -> Problem | None:
    for name in _SWITCHES:
        value = getattr(config, name)
        if not isinstance(value, bool):
            return Problem(f"{name} is of type {type(value).__name__}; give True or False")
    for name in _FUNCTIONS:
        value = getattr(config, name)
        if value is not None and not callable(value):
            return Problem(f"{name} is of type {type(value).__name__}; give a function or None")
        if _is_async(value):
            return Problem(
                f"{name} is an async function, which nobody would await; give a plain one that "
                "returns at once"
                + (" (`Connection.events` is for whoever waits)" if name.startswith("on_") else "")
            )
    context: object = config.tls_context
    if context is not None and not isinstance(context, ssl.SSLContext):
        return Problem(
            f"tls_context is of type {type(context).__name__}; give an ssl.SSLContext or None"
        )
    return None


def _is_async(function: object) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(type(function), "__call__", None)  # noqa: B004 - the method itself is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
