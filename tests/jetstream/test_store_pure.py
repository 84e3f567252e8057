"""The parts of buckets that neither wait nor send: names, settings, records, chunks, digests."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from dataclasses import replace

import pytest

from shove_actors._errors import (
    BadBucket,
    BadObjectMeta,
    HistoryTooLarge,
    InvalidKey,
    InvalidName,
    InvalidOption,
)
from shove_actors.jetstream import (
    KeyOperation,
    KeyValueConfig,
    ObjectInfo,
    ObjectLink,
    ObjectStoreConfig,
    StreamConfig,
)
from shove_actors.jetstream._kv_config import is_older_form
from shove_actors.jetstream._kv_entry import entry_reader, operation_of
from shove_actors.jetstream._kv_values import ttl_text
from shove_actors.jetstream._object_chunks import Chunker, Digest, Progress
from shove_actors.jetstream._object_info import encoded_name, new_id
from shove_actors.jetstream._ordered_buffer import Pushed
from shove_actors.jetstream._ordered_tracker import InitialPhase, OrderedTracker
from shove_actors.jetstream._store_names import check_bucket, check_key, check_pattern
from shove_actors.jetstream._stream_parts import ExternalStream, StreamSource


@pytest.mark.parametrize("name", ["a", "A-b_9", "-", "_"])
def test_bucket_names(name: str) -> None:
    assert check_bucket(name) == name


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", "a>", "ä", "a\n", 5, None])
def test_what_is_no_bucket_name(name: object) -> None:
    with pytest.raises(InvalidName):
        check_bucket(name)


@pytest.mark.parametrize("key", ["a", "a.b.c", "-/_=.x", "a/b=c", "A1"])
def test_keys(key: str) -> None:
    assert check_key(key) == key
    assert check_pattern(key) == key


@pytest.mark.parametrize("key", ["", ".", ".a", "a.", "a..b", "a b", "a\t", "a\n", "ä", "a:b", 5])
def test_what_is_no_key(key: object) -> None:
    with pytest.raises(InvalidKey):
        check_key(key)
    with pytest.raises(InvalidKey):
        check_pattern(key)


@pytest.mark.parametrize("pattern", ["*", ">", "a.*", "*.b", "a.>", "*.*.c", "a.*.>"])
def test_patterns(pattern: str) -> None:
    assert check_pattern(pattern) == pattern
    with pytest.raises(InvalidKey):
        check_key(pattern)


@pytest.mark.parametrize("pattern", ["a*", "*a", "a.b>", ">.a", "a.>.b", "a..>", ".>", "*."])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(InvalidKey):
        check_pattern(pattern)


# ------------------------------------------------------------------ settings


def test_the_stream_of_a_bucket() -> None:
    wire = KeyValueConfig(bucket="b").stream().wire()
    assert wire["subjects"] == ["$KV.b.>"]
    assert (wire["discard"], wire["duplicate_window"]) == ("new", 120_000_000_000)
    assert "allow_msg_ttl" not in wire
    assert KeyValueConfig(bucket="b", ttl=30.0).stream().duplicate_window == 30.0
    assert KeyValueConfig(bucket="b", ttl=300.0).stream().duplicate_window == 120.0
    markers = KeyValueConfig(bucket="b", limit_marker_ttl=2.0).stream()
    assert (markers.allow_msg_ttl, markers.subject_delete_marker_ttl) == (True, 2.0)


def test_mirrors_and_sources_are_named_by_bucket() -> None:
    mirror = KeyValueConfig(bucket="b", mirror=StreamSource(name="a")).stream()
    assert mirror.mirror is not None
    assert (mirror.mirror.name, mirror.subjects, mirror.mirror_direct) == ("KV_a", (), True)
    far = StreamSource(name="b", external=ExternalStream(api="$JS.hub.API"))
    stream = KeyValueConfig(
        bucket="b",
        sources=[StreamSource(name="KV_a"), StreamSource(name="c"), far],  # type: ignore[arg-type]
    ).stream()
    assert [source.name for source in stream.sources] == ["KV_a", "KV_c", "KV_b"]
    assert [[(t.src, t.dest) for t in source.subject_transforms] for source in stream.sources] == [
        [("$KV.a.>", "$KV.b.>")],
        [("$KV.c.>", "$KV.b.>")],
        [],
    ]
    assert stream.subjects == ("$KV.b.>",)


def test_settings_survive_the_stream() -> None:
    config = KeyValueConfig(
        bucket="b",
        description="d",
        history=64,
        ttl=5.0,
        max_bytes=1000,
        max_value_size=10,
        storage="memory",
        compression=True,
        limit_marker_ttl=3.0,
        metadata={"a": "b"},
    )
    assert KeyValueConfig.of_stream(config.stream()) == config
    objects = ObjectStoreConfig(
        bucket="o", description="d", ttl=5.0, max_bytes=7, storage="memory", compression=True
    )
    assert ObjectStoreConfig.of_stream(objects.stream()) == objects


def test_wrong_settings() -> None:
    with pytest.raises(HistoryTooLarge):
        KeyValueConfig(bucket="b", history=65)
    for wrong in (
        {"history": 0},
        {"ttl": -1.0},
        {"limit_marker_ttl": 0.5},
        {"num_replicas": 0},
        {"max_bytes": -2},
        {"mirror": StreamSource(name="a"), "sources": (StreamSource(name="c"),)},
    ):
        with pytest.raises(InvalidOption, match=next(iter(wrong))):
            KeyValueConfig(bucket="b", **wrong)  # type: ignore[arg-type]
    for wrong in ({"ttl": -1.0}, {"max_bytes": -2}, {"num_replicas": 0}):
        with pytest.raises(InvalidOption, match=next(iter(wrong))):
            ObjectStoreConfig(bucket="b", **wrong)  # type: ignore[arg-type]
    assert KeyValueConfig(bucket="b", max_bytes=0, max_value_size=0).max_bytes == -1
    with pytest.raises(BadBucket):
        KeyValueConfig.of_stream(StreamConfig(name="ORDERS", max_msgs_per_subject=1))
    with pytest.raises(BadBucket):
        ObjectStoreConfig.of_stream(StreamConfig(name="OBJ_b", subjects=("$O.c.C.>",)))


def test_an_older_form_of_a_bucket() -> None:
    wanted = KeyValueConfig(bucket="b", metadata={"a": "b"}).stream()
    older = replace(wanted, discard="old", allow_direct=False, metadata={"a": "b", "_nats.x": "1"})
    assert is_older_form(older, wanted)
    assert not is_older_form(replace(older, max_msgs_per_subject=2), wanted)
    assert not is_older_form(replace(older, metadata={"a": "c"}), wanted)


# ------------------------------------------------------------------ entries


@pytest.mark.parametrize(
    ("lines", "operation"),
    [
        (b"", KeyOperation.PUT),
        (b"Other: 1\r\n", KeyOperation.PUT),
        (b"KV-Operation: DEL\r\n", KeyOperation.DELETE),
        (b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n", KeyOperation.PURGE),
        (b"Nats-Marker-Reason: MaxAge\r\n", KeyOperation.PURGE),
        (b"Nats-Marker-Reason: Purge\r\n", KeyOperation.PURGE),
        (b"Nats-Marker-Reason: Remove\r\n", KeyOperation.DELETE),
        (b"Nats-Marker-Reason: Whatever\r\n", KeyOperation.PUT),
        (b"KV-Operation: PUT\r\nNats-Marker-Reason: MaxAge\r\n", KeyOperation.PUT),
    ],
)
def test_operations(lines: bytes, operation: KeyOperation) -> None:
    assert operation_of(b"NATS/1.0\r\n" + lines + b"\r\n") is operation


def test_entries_of_deliveries() -> None:
    message = Pushed(b"$KV.b.a.c", 7, 1_000_000_500, 3, None, b"value")
    entry = entry_reader("b", "$KV.b.")(message)
    assert entry is not None
    assert (entry.key, entry.value, entry.revision, entry.delta) == ("a.c", b"value", 7, 3)
    assert entry.created.timestamp() == 1.0
    marker = message._replace(header_block=b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n")
    assert entry_reader("b", "$KV.b.", ignore_deletes=True)(marker) is None
    found = entry_reader("b", "$KV.b.")(marker)
    assert found is not None
    assert found.is_marker
    assert entry_reader("b", "$KV.other.")(message) is None


def test_life_spans_are_whole_seconds_and_never_shorter() -> None:
    assert [ttl_text(seconds) for seconds in (1, 1.0, 1.2, 90)] == ["1s", "1s", "2s", "90s"]
    for wrong in (0.5, 0, -1, float("inf")):
        with pytest.raises(InvalidOption):
            ttl_text(wrong)


# ------------------------------------------------------------------ objects


def test_names_on_the_wire() -> None:
    assert encoded_name("a/b?") == "YS9iPw=="
    assert base64.urlsafe_b64decode(encoded_name("ünï")).decode() == "ünï"
    assert len({new_id() for _ in range(100)}) == 100
    assert len(new_id()) == 22


def test_a_description_survives() -> None:
    info = ObjectInfo(
        bucket="b",
        name="n",
        description="d",
        headers={"A": ("1", "2")},
        metadata={"k": "v"},
        size=5,
        chunks=1,
        digest="SHA-256=x",
        nuid="id",
        link=ObjectLink(bucket="c", name="m"),
        chunk_size=10,
        extra={"later": 1, "options": {"more": True}},
    )
    raw = info.wire()
    assert ObjectInfo.read(raw, modified=None, revision=0) == info
    told = json.loads(raw)
    assert told["options"] == {
        "more": True,
        "link": {"bucket": "c", "name": "m"},
        "max_chunk_size": 10,
    }
    assert told["later"] == 1
    bare = json.loads(ObjectInfo(bucket="b", name="n", nuid="i").wire())
    assert list(bare) == ["name", "bucket", "nuid", "size", "mtime", "chunks"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"no json",
        b"[]",
        b"null",
        b"{}",
        b'{"name": ""}',
        b'{"name": "n", "size": "many"}',
        b'{"name": "n", "headers": {"A": [1]}}',
        b'{"name": "n", "options": {"link": {"name": "x"}}}',
        b'{"name": "n", "metadata": 5}',
    ],
)
def test_what_is_no_description(raw: bytes) -> None:
    with pytest.raises(BadObjectMeta):
        ObjectInfo.read(raw, modified=None, revision=1)


def test_descriptions_of_other_clients() -> None:
    """nats-py leaves out nothing, but sets what it does not know to null."""
    info = ObjectInfo.read(
        b'{"name": "n", "description": null, "headers": null, "options": null, "bucket": "b",'
        b' "nuid": "i", "size": 1, "mtime": "", "chunks": 1, "digest": null, "deleted": null}',
        modified=None,
        revision=1,
    )
    assert (info.description, info.headers, info.link, info.deleted) == ("", {}, None, False)


def test_digests() -> None:
    digest = Digest()
    digest.update(b"hello")
    plain = base64.urlsafe_b64encode(hashlib.sha256(b"hello").digest()).decode()
    assert digest.text == f"SHA-256={plain}"
    assert digest.size == 5
    other = base64.b64encode(hashlib.sha256(b"hello").digest()).decode()
    for same in (plain, plain.rstrip("="), other):
        assert digest.matches(f"SHA-256={same}")
    assert digest.matches(f"sha-256={plain}")
    for wrong in ("", "SHA-256=", f"MD5={plain}", "SHA-256=ä", "SHA-256=YQ==", plain):
        assert not digest.matches(wrong)


@pytest.mark.parametrize("pieces", [[0], [1], [3, 3], [4], [5, 1], [9, 0, 2], [1] * 11, [12, 4]])
def test_chunks(pieces: list[int]) -> None:
    content = bytes(range(sum(pieces)))
    chunker = Chunker(4)
    ends = list(itertools.accumulate(pieces, initial=0))
    found = [
        chunk
        for begin, end in itertools.pairwise(ends)
        for chunk in chunker.feed(memoryview(content)[begin:end])
    ]
    found += chunker.finish()
    assert b"".join(found) == content
    assert all(len(chunk) == 4 for chunk in found[:-1])
    assert not found or 0 < len(found[-1]) <= 4
    assert list(chunker.finish()) == []


def test_progress() -> None:
    digest = Digest()
    digest.update(b"hello")
    progress = Progress(5, digest.text)
    assert progress.add(b"hel")
    assert (progress.missing, progress.complete) == (2, False)
    assert progress.add(b"lo")
    assert progress.complete
    assert progress.genuine
    assert not progress.add(b"!")


# ------------------------------------------------------------------ ordered reading


def test_the_next_consumer_begins_behind_the_last_message() -> None:
    tracker = OrderedTracker("last_per_subject")
    assert tracker.begin() == ("last_per_subject", 0)
    assert tracker.accept(1, 10)
    assert not tracker.accept(3, 12)
    assert tracker.begin() == ("by_start_sequence", 11)
    assert tracker.accept(1, 11)
    assert tracker.complete(1)
    assert not tracker.complete(2)


def test_new_ones_are_those_since_the_first_consumer() -> None:
    tracker = OrderedTracker("new")
    assert tracker.begin() == ("new", 0)
    tracker.created(7)
    assert tracker.begin() == ("by_start_sequence", 8)
    tracker.created(9)
    assert tracker.begin() == ("by_start_sequence", 8)


def test_the_reply_may_come_after_the_messages() -> None:
    phase = InitialPhase()
    phase.begin()
    assert not phase.message(1)
    assert phase.message(0)
    assert not phase.created(2)
    assert not phase.idle()


def test_no_heartbeat_counts_before_the_reply() -> None:
    phase = InitialPhase()
    phase.begin()
    assert not phase.idle()
    assert not phase.created(1)
    assert phase.idle()
    assert not phase.message(0)


def test_writing_that_goes_on_does_not_put_off_the_mark() -> None:
    """As many as there were at the start: more may be waiting by then."""
    phase = InitialPhase()
    phase.begin()
    assert not phase.created(2)
    assert not phase.message(5)
    assert phase.message(5)
    assert not phase.message(0)
