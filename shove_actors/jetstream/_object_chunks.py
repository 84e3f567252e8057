"""Chunks and digests: the arithmetic of an object's content. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator

#: As other clients; the server's default max_payload is eight times that.
CHUNK_SIZE = 128 * 1024
_PREFIX = "SHA-256="


class Digest:
    """A running SHA-256 and count of bytes."""

    __slots__ = ("_hash", "size")

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.size = 0

    def update(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self.size += len(data)

    @property
    def text(self) -> str:
        """As an object's description has it."""
        return _PREFIX + base64.urlsafe_b64encode(self._hash.digest()).decode()

    def matches(self, text: str) -> bool:
        """Whether `text` says the same: in either alphabet, with or without its padding."""
        kind, _, value = text.partition("=")
        if kind.upper() != "SHA-256":
            return False
        plain = value.rstrip("=").replace("+", "-").replace("/", "_")
        try:
            wanted = base64.urlsafe_b64decode(plain + "=" * (-len(plain) % 4))
        except (binascii.Error, ValueError):
            return False
        return wanted == self._hash.digest()


class Chunker:
    """Pieces of any size in, chunks of one size out; the last one is what remains."""

    __slots__ = ("_held", "_length", "_size")

    def __init__(self, size: int = CHUNK_SIZE) -> None:
        self._size = size
        self._held: list[bytes | memoryview] = []
        self._length = 0

    def feed(self, piece: bytes | memoryview) -> Iterator[bytes]:
        """The chunks that are complete now. To be exhausted before the next call."""
        view = memoryview(piece)
        if self._length + len(view) < self._size:
            if len(view):
                self._held.append(bytes(view))
                self._length += len(view)
            return
        at = self._size - self._length
        if self._held:
            yield b"".join([*self._held, view[:at]])
            self._held.clear()
            self._length = 0
        else:
            at = 0
        while at + self._size <= len(view):
            yield bytes(view[at : at + self._size])
            at += self._size
        if at < len(view):
            self._held.append(bytes(view[at:]))
            self._length = len(view) - at

    def finish(self) -> Iterator[bytes]:
        """The last chunk, if there is anything left."""
        if self._held:
            yield b"".join(self._held)
            self._held.clear()
            self._length = 0


class Progress:
    """How much of an object has been read, and whether it can still become whole."""

    __slots__ = ("_digest", "_expected", "_size")

    def __init__(self, size: int, digest: str) -> None:
        self._size = size
        self._expected = digest
        self._digest = Digest()

    @property
    def missing(self) -> int:
        return self._size - self._digest.size

    @property
    def complete(self) -> bool:
        return self._digest.size == self._size

    def add(self, chunk: bytes) -> bool:
        """Whether it fits: False when there is more than there should be."""
        self._digest.update(chunk)
        return self._digest.size <= self._size

    @property
    def genuine(self) -> bool:
        """Whether what was read is what was written. Asked once it is complete."""
        return self._digest.matches(self._expected)
