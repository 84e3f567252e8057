"""Checks nkey seeds and credentials files without ever repeating them."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ._problem import Problem

_MOST_BYTES = 1 << 20
_JWT = re.compile(r"-{3,}BEGIN NATS USER JWT-{3,}\s+(\S+)\s+-{3,}END NATS USER JWT-{3,}")
_SEED = re.compile(r"-{3,}BEGIN USER NKEY SEED-{3,}\s+(\S+)\s+-{3,}END USER NKEY SEED-{3,}")
_MISSING_PACKAGE = "needs the nkeys package: pip install shove-actors[nkeys]"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSecrets:
    """What a credentials file holds. `values`: all of it, to take it out of texts."""

    jwt: str = field(repr=False)
    seed: str = field(repr=False)

    @property
    def values(self) -> tuple[str, ...]:
        return (self.jwt, self.seed)

    def callbacks(self) -> dict[str, Callable[..., bytes]]:
        """nats-py's options for this user.

        nats-py could read the file itself, but loops for ever over one without a JWT, such as a
        file that is being rewritten while the connection comes back.
        """
        jwt, seed = self.jwt.encode(), self.seed.encode()

        def sign(nonce: str) -> bytes:
            import nkeys

            pair = nkeys.from_seed(bytearray(seed))
            try:
                return base64.b64encode(pair.sign(nonce.encode()))
            finally:
                pair.wipe()

        return {"user_jwt_cb": lambda: jwt, "signature_cb": sign}


def check_seed(seed: str, field_name: str) -> Problem | None:
    """What is wrong with a user's nkey seed, if anything."""
    try:
        import nkeys
    except ImportError:
        return Problem(f"{field_name} {_MISSING_PACKAGE}")
    stripped = seed.strip()
    if not stripped.startswith("SU"):
        return Problem(f"{field_name} is not the seed of a user (those begin with SU)")
    try:
        prefix, raw = nkeys.decode_seed(bytearray(stripped.encode()))
        # Decoding ignores the checksum at the end, so it is made again and compared.
        intact = nkeys.encode_seed(bytes(raw), prefix) == stripped.encode()
    except Exception:  # the package raises several unrelated kinds for damaged seeds
        intact = False
    if not intact:
        return Problem(f"{field_name} is damaged: it does not decode as an nkey seed")
    return None


def read_text(path: str, field_name: str) -> str | Problem:
    """The text of a small file that must exist."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        return Problem(f"{field_name}: cannot read {path!r}: {error.strerror}")
    except ValueError:
        return Problem(f"{field_name} is not a file name (it contains a NUL character)")
    if len(data) > _MOST_BYTES:
        return Problem(f"{field_name}: {path!r} is larger than 1 MiB, so it is some other file")
    return data.decode("utf-8", "replace")


def check_creds_file(path: str, field_name: str) -> FileSecrets | Problem:
    """The secrets of a credentials file (a user JWT and its seed), or what is wrong with it."""
    text = read_text(path, field_name)
    if isinstance(text, Problem):
        return text
    return check_creds_text(text, field_name, f" {path!r}")


def check_creds_text(text: str, field_name: str, where: str = "") -> FileSecrets | Problem:
    """As `check_creds_file`, for what stands in such a file."""
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if jwt is None or seed is None:
        missing = "NATS USER JWT" if jwt is None else "USER NKEY SEED"
        return Problem(
            f"{field_name}:{where} has no {missing} section, so it is no credentials file"
        )
    problem = check_seed(seed[1], field_name)
    if problem is not None:
        return problem
    return FileSecrets(jwt=jwt[1], seed=seed[1])
