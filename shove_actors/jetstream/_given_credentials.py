"""Credentials that a program works out itself, anew for each attempt to connect."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shove_actors._errors import ConfigError

from ._credentials import FileSecrets, check_creds_text, check_seed
from ._problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Credentials:
    """Who connects. Exactly one of these combinations:

    * `username` and `password`
    * `token`
    * `nkey_seed`, or `public_nkey` with `sign`
    * `creds` (the text of a credentials file), or `jwt` with `sign`

    `sign(nonce)` gets bytes and returns the raw Ed25519 signature; the seed can stay where it is.
    Seeds and `creds` need the extra `nkeys`. Its `repr` shows nothing.
    """

    username: str | None = None
    password: str | None = None
    token: str | None = None
    nkey_seed: str | None = None
    public_nkey: str | None = None
    jwt: str | None = None
    creds: str | None = None
    sign: Callable[[bytes], bytes] | None = None

    def __repr__(self) -> str:
        return "<Credentials ***>"

    def secrets(self) -> tuple[str, ...]:
        """What must not be shown, to take it out of texts."""
        found = [self.password, self.token, self.nkey_seed, self.jwt, self.creds]
        if self.creds is not None:
            checked = check_creds_text(self.creds, "creds")
            if isinstance(checked, FileSecrets):
                found += checked.values
        return tuple(filter(None, found))

    def client_options(self) -> dict[str, Any] | Problem:
        """For nats-py, or what is wrong with the combination; never a value."""
        given = {name for name in self.__slots__ if getattr(self, name) is not None}
        if given == {"username", "password"}:
            return {"user": self.username, "password": self.password}
        if given == {"token"}:
            return {"token": self.token}
        if given == {"nkey_seed"}:
            problem = check_seed(self.nkey_seed or "", "nkey_seed")
            return problem or {"nkeys_seed_str": (self.nkey_seed or "").strip()}
        if given == {"creds"}:
            checked = check_creds_text(self.creds or "", "creds")
            return checked if isinstance(checked, Problem) else {**checked.callbacks()}
        if given in ({"public_nkey", "sign"}, {"jwt", "sign"}):
            options: dict[str, Any] = {"signature_cb": self._signature}
            if self.jwt is not None:
                jwt = self.jwt.strip().encode()
                return {**options, "user_jwt_cb": lambda: jwt}
            return {**options, "public_nkey": self.public_nkey}
        return Problem(
            "credentials: give username with password, token, nkey_seed, creds, or sign with "
            "public_nkey or jwt"
        )

    def _signature(self, nonce: str) -> bytes:
        assert self.sign is not None
        return base64.b64encode(self.sign(nonce.encode()))


def ask(callback: Callable[[], Credentials]) -> Credentials:
    """What the program says now. Raises `ConfigError` when it has nothing to say."""
    try:
        answer = callback()
    except Exception as exc:
        # Its text may be anything, a secret among it; its type helps.
        raise ConfigError(f"the credentials callback raised {type(exc).__name__}") from None
    if not isinstance(answer, Credentials):
        raise ConfigError(
            f"the credentials callback returned {type(answer).__name__}; return a Credentials"
        )
    return answer
