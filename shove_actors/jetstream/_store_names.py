"""Names of buckets, keys and patterns of keys: what is allowed, and the subject it becomes. Pure.

A key is a subject below `$KV.<bucket>.`, so it may have words separated by dots; nothing that is
protocol (white space, wildcards) can be part of one.
"""

from __future__ import annotations

import re

from shove_actors._errors import InvalidKey, InvalidName

KV_STREAM = "KV_"
OBJECT_STREAM = "OBJ_"

_BUCKET = re.compile(r"[A-Za-z0-9_-]+")
_KEY = re.compile(r"[A-Za-z0-9/_=.-]+")
_WORD = re.compile(r"[A-Za-z0-9/_=-]+")


def check_bucket(name: object) -> str:
    """Raises `InvalidName`."""
    if not isinstance(name, str) or not _BUCKET.fullmatch(name):
        raise InvalidName(f"bucket {name!r}: use only letters, digits, - and _, and at least one")
    return name


def check_key(key: object) -> str:
    """Raises `InvalidKey`."""
    if (
        not isinstance(key, str)
        or not _KEY.fullmatch(key)
        or key[0] == "."
        or key[-1] == "."
        or ".." in key
    ):
        raise InvalidKey(
            f"key {key!r}: use only letters, digits and - / _ = ., with no dot at either end "
            "and no two dots in a row"
        )
    return key


def check_pattern(pattern: object) -> str:
    """A key, or one with `*` for single words and `>` for the rest. Raises `InvalidKey`.

    A wildcard beside other characters (`a*`) would match nothing, ever: it is refused.
    """
    words = pattern.split(".") if isinstance(pattern, str) else [""]
    last = len(words) - 1
    for at, word in enumerate(words):
        if not (word == "*" or (word == ">" and at == last) or _WORD.fullmatch(word)):
            raise InvalidKey(
                f"pattern {pattern!r}: use a key in which whole words may be *, and the last one >"
            )
    return str(pattern)


def kv_stream(bucket: str) -> str:
    return KV_STREAM + check_bucket(bucket)


def object_stream(bucket: str) -> str:
    return OBJECT_STREAM + check_bucket(bucket)


def kv_prefix(bucket: str) -> str:
    """Before every key's subject."""
    return f"$KV.{bucket}."


def chunk_prefix(bucket: str) -> str:
    return f"$O.{bucket}.C."


def meta_prefix(bucket: str) -> str:
    return f"$O.{bucket}.M."
