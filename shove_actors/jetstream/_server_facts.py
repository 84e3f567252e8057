"""What the present or last server has told of itself (its INFO, and the changes it announced)."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: The server's limit until its INFO tells otherwise.
DEFAULT_MAX_PAYLOAD = 1 << 20


class ServerFacts:
    """Nothing here is trusted to have the type it should have: it comes from the network."""

    __slots__ = ("_info",)

    def __init__(self) -> None:
        self._info: dict[str, object] = {}

    def replace(self, info: Mapping[str, object]) -> None:
        """Another session: what the last server said counts no more."""
        self._info = dict(info)

    def update(self, info: Mapping[str, object]) -> None:
        self._info.update(info)

    @property
    def version(self) -> str:
        return str(self._info.get("version", ""))

    @property
    def release(self) -> tuple[int, int] | None:
        """Major and minor of the version; None for what is no release."""
        found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\D|$)", self.version)
        return None if found is None else (int(found[1]), int(found[2]))

    @property
    def server_id(self) -> str:
        return str(self._info.get("server_id", ""))

    @property
    def max_payload(self) -> int:
        value = self._info.get("max_payload", DEFAULT_MAX_PAYLOAD)
        return value if isinstance(value, int) else DEFAULT_MAX_PAYLOAD

    @property
    def members(self) -> object:
        """Addresses of the cluster's other servers, unchecked."""
        return self._info.get("connect_urls")
