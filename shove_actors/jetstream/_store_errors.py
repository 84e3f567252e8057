"""What a failure of a bucket's stream means to the bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shove_actors._errors import BucketNotFound, StreamNotFound

#: Raises another exception in place of the given one, or returns.
Translate = Callable[[Exception], None]


def no_bucket(bucket: str) -> BucketNotFound:
    return BucketNotFound(f"there is no bucket {bucket!r} (any more)")


def bucket_errors(bucket: str) -> Translate:
    """`StreamNotFound` becomes `BucketNotFound`."""

    def translate(exc: Exception) -> None:
        if isinstance(exc, StreamNotFound):
            raise no_bucket(bucket) from exc

    return translate


@contextmanager
def of_bucket(bucket: str) -> Iterator[None]:
    """`StreamNotFound` leaves the block as `BucketNotFound`."""
    try:
        yield
    except StreamNotFound as exc:
        raise no_bucket(bucket) from exc
