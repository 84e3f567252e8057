"""Makes nkeys and the JWTs of an operator, an account and a user, as `nsc` would.

A NATS JWT is an ordinary JWT whose algorithm is `ed25519-nkey`: header and claims in base64url
without padding, signed by the nkey of the issuer.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import nkeys

_UNLIMITED = -1


@dataclass(frozen=True, kw_only=True)
class Key:
    seed: str
    public: str

    def sign(self, data: bytes) -> bytes:
        return bytes(nkeys.from_seed(bytearray(self.seed.encode())).sign(data))


def new_key(prefix: int) -> Key:
    seed = nkeys.encode_seed(os.urandom(32), prefix)
    pair = nkeys.from_seed(bytearray(seed))
    return Key(seed=seed.decode(), public=bytes(pair.public_key).decode())


def new_user_key() -> Key:
    return new_key(nkeys.PREFIX_BYTE_USER)


def encode_jwt(issuer: Key, claims: dict[str, object]) -> str:
    header = {"typ": "JWT", "alg": "ed25519-nkey"}
    body = {
        "jti": base64.b32encode(os.urandom(16)).decode().rstrip("="),
        "iat": int(time.time()),
        "iss": issuer.public,
        **claims,
    }
    signed = f"{_b64(json.dumps(header).encode())}.{_b64(json.dumps(body).encode())}"
    return f"{signed}.{_b64(issuer.sign(signed.encode()))}"


@dataclass(frozen=True, kw_only=True)
class OperatorMode:
    """An operator with one account that may use JetStream, its users, and a system account."""

    operator_jwt: str
    account: Key
    account_jwt: str
    system: Key
    system_jwt: str

    def server_config(self) -> str:
        return (
            f"operator: {self.operator_jwt}\n"
            f"system_account: {self.system.public}\n"
            "resolver: MEMORY\n"
            "resolver_preload: {\n"
            f"  {self.account.public}: {self.account_jwt}\n"
            f"  {self.system.public}: {self.system_jwt}\n"
            "}\n"
        )

    def creds(
        self, name: str = "app", *, expires_in: float | None = None, deny: Sequence[str] = ()
    ) -> str:
        """The text of a credentials file for a new user; whole seconds count.

        `deny`: subjects that it may not publish to.
        """
        user = new_user_key()
        claims: dict[str, object] = {
            "name": name,
            "sub": user.public,
            "nats": {
                "type": "user",
                "version": 2,
                "pub": {"deny": list(deny)} if deny else {},
                "sub": {},
                "subs": _UNLIMITED,
                "data": _UNLIMITED,
                "payload": _UNLIMITED,
            },
        }
        if expires_in is not None:
            claims["exp"] = int(time.time() + expires_in)
        jwt = encode_jwt(self.account, claims)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )


def new_operator_mode() -> OperatorMode:
    operator = new_key(nkeys.PREFIX_BYTE_OPERATOR)
    account = new_key(nkeys.PREFIX_BYTE_ACCOUNT)
    system = new_key(nkeys.PREFIX_BYTE_ACCOUNT)
    return OperatorMode(
        operator_jwt=encode_jwt(
            operator,
            {
                "name": "operator",
                "sub": operator.public,
                "nats": {"type": "operator", "version": 2, "system_account": system.public},
            },
        ),
        account=account,
        account_jwt=_account_jwt(operator, account, "APP", jetstream=True),
        system=system,
        system_jwt=_account_jwt(operator, system, "SYS", jetstream=False),
    )


def _account_jwt(operator: Key, account: Key, name: str, *, jetstream: bool) -> str:
    limits: dict[str, object] = dict.fromkeys(
        ("subs", "data", "payload", "imports", "exports", "conn", "leaf"), _UNLIMITED
    )
    limits["wildcards"] = True
    if jetstream:
        limits |= dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), _UNLIMITED)
    nats = {"type": "account", "version": 2, "limits": limits}
    return encode_jwt(operator, {"name": name, "sub": account.public, "nats": nats})


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
