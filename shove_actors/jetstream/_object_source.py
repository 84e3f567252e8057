"""Where an object's content comes from: bytes, text, files, whatever yields bytes."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from typing import Protocol, Union, runtime_checkable

import trio

from shove_actors._errors import InvalidOption

from ._object_chunks import Chunker
from ._options import encoded

#: Read from files at once: several chunks, so that the change of threads costs little.
_BLOCK = 1 << 20


@runtime_checkable
class BinaryFile(Protocol):
    """A file opened for reading bytes."""

    def read(self, size: int, /) -> bytes: ...


#: What `ObjectStore.put` takes. A `str` is the content; a file is named by an `os.PathLike`.
ObjectSource = Union[
    bytes, bytearray, memoryview, str, "os.PathLike[str]", BinaryFile, AsyncIterable[bytes]
]


def check_source(source: object) -> None:
    """Raises `InvalidOption`, before anything is sent."""
    kinds = (bytes, bytearray, memoryview, str, os.PathLike, AsyncIterable, BinaryFile)
    if not isinstance(source, kinds):
        raise InvalidOption(
            f"source is of type {type(source).__name__}; give bytes, str, a pathlib.Path, a file "
            "opened in binary mode, or an async iterable of bytes"
        )


async def chunks_of(source: ObjectSource, size: int) -> AsyncGenerator[bytes, None]:
    """The content in chunks. To be used in `aclosing`; files are read in a thread."""
    chunker = Chunker(size)
    if isinstance(source, str):
        source = encoded("the source", source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        for chunk in chunker.feed(memoryview(source).cast("B")):
            yield chunk
    else:
        async with aclosing(_pieces(source)) as pieces:
            async for piece in pieces:
                if not isinstance(piece, (bytes, bytearray, memoryview)):
                    raise InvalidOption(
                        f"source yields {type(piece).__name__}; it must yield bytes"
                    )
                for chunk in chunker.feed(piece):
                    yield chunk
    for chunk in chunker.finish():
        yield chunk


async def _pieces(
    source: os.PathLike[str] | BinaryFile | AsyncIterable[bytes],
) -> AsyncGenerator[bytes, None]:
    if isinstance(source, AsyncIterable):
        async for piece in source:
            yield piece
    elif isinstance(source, os.PathLike):
        async with await trio.open_file(os.fspath(source), "rb") as file:
            while block := await file.read(_BLOCK):
                yield block
    else:
        while block := await trio.to_thread.run_sync(source.read, _BLOCK):
            yield block
