"""Sharding: FNV-1a, the same in every process and every version.

`fnv1a_64.tsv` holds a thousand keys (unit as JSON, how often it is repeated, hash). The hashes were
computed by a C program, not by this package. The table is part of the wire format: a change that
needs it changed moves keys between lanes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shove_actors.messaging import SequencedTopic, SequenceFailure, TopologyBuilder, shard_of
from shove_actors.messaging._sharding import fnv1a_64, hash_key

TABLE = Path(__file__).with_name("fnv1a_64.tsv")


def table() -> list[tuple[str, int]]:
    rows = [line.split("\t") for line in TABLE.read_text("ascii").splitlines()]
    return [(json.loads(unit) * int(count), int(value, 16)) for unit, count, value in rows]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"foobar", 0x85944171F73967E8),
    ],
)
def test_published_vectors(data: bytes, expected: int) -> None:
    assert fnv1a_64(data) == expected


def test_pc042_the_table_holds_empty_non_ascii_and_very_long_keys() -> None:
    keys = [key for key, _ in table()]
    assert len(set(keys)) == 1000
    assert "" in keys
    assert sum(not key.isascii() for key in keys) > 100
    assert max(map(len, keys)) > 10_000


def test_pc042_a_thousand_keys_hash_to_the_fixed_table() -> None:
    for key, expected in table():
        assert hash_key(key) == expected
        assert hash_key(key) == expected  # once more, from the cache


_IN_ANOTHER_PROCESS = """
import json, sys
from shove_actors.messaging import shard_of
keys = json.load(sys.stdin)
print(hash("account-17"), *(shard_of(key, 97) for key in keys))
"""


def test_pc042_two_interpreters_with_different_hash_seeds_agree() -> None:
    """A publisher and a consumer that disagree put one key into two lanes: its order is gone."""
    rows = table()
    salted: set[str] = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", _IN_ANOTHER_PROCESS],
            input=json.dumps([key for key, _ in rows]),
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
        )
        salt, *shards = done.stdout.split()
        salted.add(salt)
        assert [int(s) for s in shards] == [expected % 97 for _, expected in rows]
    assert len(salted) == 2, "the interpreters were to have different hash seeds"


@given(key=st.text(st.characters()), shards=st.integers(1, 4096))
def test_every_str_has_a_lane(key: str, shards: int) -> None:
    """Lone surrogates included: a key is any str."""
    assert 0 <= shard_of(key, shards) < shards
    assert shard_of(key, shards) == shard_of(key, shards)


def test_a_key_with_a_lone_surrogate_has_a_lane() -> None:
    assert shard_of("\ud800", 8) == fnv1a_64(b"\xed\xa0\x80") % 8


def test_a_topic_uses_its_number_of_shards() -> None:
    topology = (
        TopologyBuilder("q")
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(5)
        .allow_message_loss()
        .build()
    )
    topic = SequencedTopic(str, key=lambda m: m, topology=topology)
    assert topic.shard_of("foobar") == 0x85944171F73967E8 % 5
