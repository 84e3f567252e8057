"""Message headers: a read-only mapping over the raw block, and blocks from mappings.

Two rules
* Names are compared exactly, as the server does: it does not see a `nats-msg-id`.
* A value cannot become a header: what contains a line end or another control character is refused
  when written, and no block is built by hand elsewhere in this package's public calls.

A block is only parsed when somebody looks; most consumers never do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from shove_actors._errors import HeaderError

_VERSION = b"NATS/1.0"
_NAME = re.compile(r"[^\x00-\x20\x7f:]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

#: What a caller may give for headers: one value per name, or several.
HeadersInput = Mapping[str, str | Sequence[str]]


class Headers(Mapping[str, str]):
    """The headers of a message, in the order in which they came.

        headers["Trace-Id"]            # the first value of that name; KeyError without one
        headers.get_all("Warning")     # every value

    Bytes that are not UTF-8 pass through as surrogate escapes, so writing them again gives the
    same bytes.
    """

    __slots__ = ("_block", "_values")

    def __init__(self, block: bytes | None = None) -> None:
        self._block = block
        self._values: dict[str, list[str]] | None = None

    def _parsed(self) -> dict[str, list[str]]:
        values = self._values
        if values is None:
            values = {}
            if self._block:
                for line in self._block.split(b"\r\n")[1:]:
                    name, colon, value = line.partition(b":")
                    if colon:
                        values.setdefault(_text(name), []).append(_text(value))
            self._values = values
        return values

    def get_all(self, name: str) -> list[str]:
        """All values of that name, in order; empty without one."""
        return list(self._parsed().get(name, ()))

    @property
    def block(self) -> bytes:
        """The raw block, b"" without headers."""
        return self._block or b""

    def __getitem__(self, name: str) -> str:
        return self._parsed()[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._parsed())

    def __contains__(self, name: object) -> bool:
        return name in self._parsed()

    def __repr__(self) -> str:
        # Values may be anybody's secrets.
        return f"<Headers {', '.join(self._parsed())}>"


def _text(raw: bytes) -> str:
    return raw.strip(b" \t").decode("utf-8", "surrogateescape")


def parse_headers(block: bytes | None) -> Headers:
    """The headers of a raw block, parsed when first looked at."""
    return Headers(block)


def encode_headers(headers: HeadersInput | None, extra: Mapping[str, str] | None = None) -> bytes:
    """The block for `headers`, then `extra` in place of equal names; b"" when there is none.

    Raises `HeaderError`, which names the header and never shows its value.
    """
    if isinstance(headers, Headers) and not extra:
        return headers.block
    if headers is not None and not isinstance(headers, Mapping):
        raise HeaderError(
            f"headers is of type {type(headers).__name__}; give a mapping of names to strings"
        )
    lines = [_VERSION]
    if isinstance(headers, Headers):
        headers = {name: headers.get_all(name) for name in headers}
    for name, value in (headers or {}).items():
        if extra is None or name not in extra:
            for one in (value,) if isinstance(value, str) else _several(name, value):
                lines.append(_line(name, one))
    for name, value in (extra or {}).items():
        lines.append(_line(name, value))
    if len(lines) == 1:
        return b""
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _several(name: object, value: object) -> Sequence[str]:
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return value
    raise HeaderError(
        f"the value of header {name!r} is of type {type(value).__name__}; "
        "give a string, or a list of strings"
    )


def _line(name: object, value: object) -> bytes:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise HeaderError(
            f"header name {name!r} is empty or contains white space, a colon or a control character"
        )
    if not isinstance(value, str):
        raise HeaderError(
            f"the value of header {name!r} is of type {type(value).__name__}; give a string"
        )
    if _CONTROL.search(value):
        raise HeaderError(
            f"the value of header {name!r} contains a line end or another control character; "
            "encode it, for example as JSON"
        )
    try:
        return f"{name}: {value}".encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise HeaderError(
            f"header {name!a} contains half of a surrogate pair, which is no text"
        ) from None
