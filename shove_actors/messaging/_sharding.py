"""Which lane a key belongs to: FNV-1a 64 bit of the UTF-8 key, modulo the number of shards.

The function is part of the wire format: a publisher and a consumer, two processes, two versions
and the source system must agree on it for ever, or a key changes its lane and loses its order
(PC-042). So it depends on nothing but the bytes of the key: never on `hash()`, which is salted per
process. `tests/messaging/test_sharding.py` pins a thousand keys and runs two interpreters with
different hash seeds.
"""

from __future__ import annotations

from functools import lru_cache

_OFFSET = 0xCBF29CE484222325
_PRIME = 0x100000001B3
_MASK = 0xFFFFFFFFFFFFFFFF

# Keys come back: hashing costs about 0.1 us per byte in Python, a hit in the cache a tenth of
# that for a whole key. Longer keys are not kept, so that the cache's memory is bounded in bytes.
_CACHED_KEYS = 16_384
_CACHED_LENGTH = 128


def fnv1a_64(data: bytes) -> int:
    """FNV-1a, 64 bit: `fnv1a_64(b"a") == 0xAF63DC4C8601EC8C`."""
    value = _OFFSET
    for byte in data:
        value = ((value ^ byte) * _PRIME) & _MASK
    return value


def _hash_key(key: str) -> int:
    # `surrogatepass`: a key is any str, also one that holds a lone surrogate, and every str
    # needs one lane. Keys that are valid Unicode are not affected.
    return fnv1a_64(key.encode("utf-8", "surrogatepass"))


_cached_hash = lru_cache(maxsize=_CACHED_KEYS)(_hash_key)


def hash_key(key: str) -> int:
    """The 64-bit hash of a key; the same in every process."""
    return _cached_hash(key) if len(key) <= _CACHED_LENGTH else _hash_key(key)


def shard_of(key: str, shards: int) -> int:
    """The lane of `key`, from 0 to `shards - 1`."""
    return hash_key(key) % shards
