"""No password in anything that echoes what was typed: an address may stand where another word was
meant, or lack its scheme, so that nothing recognises it as one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Final

#: Options whose value is an address, with a scheme or without.
_ADDRESSES: Final = ("--url", "--monitor")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def masked(text: str, arguments: Sequence[str]) -> str:
    """`text` without the user info of any address in it or among `arguments` and `$NATS_URL`."""
    from shove_actors.jetstream import redact  # loads the client; only errors need it

    return redact(text, list(_secrets(arguments)))


def _secrets(arguments: Sequence[str]) -> Iterator[str]:
    before = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if before in _ADDRESSES:
            yield from _user_info(argument, is_address=True)
        elif equals and name in _ADDRESSES:
            yield from _user_info(value, is_address=True)
        else:
            yield from _user_info(argument, is_address=False)
        before = argument
    yield from _user_info(os.environ.get("NATS_URL", ""), is_address=True)


def _user_info(text: str, *, is_address: bool) -> Iterator[str]:
    for address in text.split(","):
        scheme = _SCHEME.search(address)
        found = address[scheme.end() :] if scheme is not None else address
        user_info, at, _ = found.rpartition("@")
        # A word with an "@" alone may be the key of a message, somebody's mail address say.
        if at and (is_address or scheme is not None or ":" in user_info):
            for secret in (user_info, user_info.partition(":")[2]):
                yield secret
                yield repr(secret)[1:-1]
