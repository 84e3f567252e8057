"""Streams as an application sees them: C4 to C7."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone

import pytest
import trio

from shove_actors._errors import (
    InvalidName,
    InvalidOption,
    MessageDeleteFailed,
    MessageNotFound,
    NoResponders,
    StreamNameInUse,
    StreamNotFound,
    StreamSealed,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import (
    ConsumerLimits,
    ExternalStream,
    JetStream,
    Placement,
    RePublish,
    Stream,
    StreamConfig,
    StreamSource,
    SubjectTransform,
    connect,
)
from shove_actors.jetstream._stream import StreamSettings

from .kit import SOON_S, fast

Fresh = Callable[[], str]


# ------------------------------------------------------------------ C4: create and update


async def test_c04_create_and_update(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[f"{name}.*"])
        again = await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",)))
        assert again.cached_info.created == stream.cached_info.created
        assert again.config == stream.config
        with pytest.raises(StreamNameInUse):
            await js.create_stream(stream.config, subjects=[f"{name}.other"])
        with pytest.raises(StreamNotFound):
            await js.update_stream(name=fresh_queue())
        with pytest.raises(StreamNotFound):
            await js.stream(fresh_queue())


async def test_c04_create_or_update(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        made = await js.create_or_update_stream(name=name, subjects=[name])
        changed = await js.create_or_update_stream(made.config, max_msgs=7)
        assert (made.config.max_msgs, changed.config.max_msgs) == (-1, 7)
        assert changed.config.subjects == (name,)


async def test_c04_two_create_or_update_at_once(server: ServerProcess, fresh_queue: Fresh) -> None:
    """Somebody else comes between the update and the create: the loser tries once more."""
    async with connect(fast(server.url)) as js:
        for _ in range(5):
            name = fresh_queue()
            async with trio.open_nursery() as nursery:
                for most in (1, 2, 3):
                    config = StreamConfig(name=name, subjects=(name,), max_msgs=most)
                    nursery.start_soon(js.create_or_update_stream, config)
            assert (await js.stream(name)).config.max_msgs in (1, 2, 3)


async def test_c04_edit_keeps_what_is_not_named(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(
            name=name, subjects=[f"{name}.*"], description="ours", compression="s2"
        )
        edited = await js.edit_stream(name, max_bytes=1_000_000)
        assert edited.config == replace(stream.config, max_bytes=1_000_000)
        await stream.edit(max_msgs=5)
        assert stream.config == replace(edited.config, max_msgs=5)
        # The seed's own update, for comparison: what is left out is gone.
        bare = await js.update_stream(name=name, max_bytes=1_000_000)
        assert (bare.config.subjects, bare.config.description) == ((name,), None)
        with pytest.raises(InvalidOption, match="renamed"):
            await js.edit_stream(name, name="other")


async def test_c04_delete(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        stream = await js.create_stream(name=fresh_queue())
        await js.delete_stream(stream.name)
        with pytest.raises(StreamNotFound):
            await js.delete_stream(stream.name)
        with pytest.raises(StreamNotFound):
            await stream.info()


async def test_every_setting_comes_back(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name, source = fresh_queue(), fresh_queue()
        config = StreamConfig(
            name=name,
            subjects=(f"{name}.>",),
            description="all of it",
            storage="memory",
            discard="new",
            discard_new_per_subject=True,
            max_consumers=3,
            max_msgs=100,
            max_bytes=100_000,
            max_age=90.0,
            max_msg_size=1000,
            max_msgs_per_subject=10,
            no_ack=True,
            duplicate_window=30.0,
            allow_rollup_hdrs=True,
            compression="s2",
            first_seq=42,
            subject_transform=SubjectTransform(src=f"{name}.a.*", dest=name + ".b.{{wildcard(1)}}"),
            republish=RePublish(src=f"{name}.>", dest=f"copy.{name}.>", headers_only=True),
            allow_direct=True,
            consumer_limits=ConsumerLimits(inactive_threshold=30.0, max_ack_pending=50),
            metadata={"owner": "ops"},
            allow_msg_ttl=True,
            subject_delete_marker_ttl=5.0,
        )
        made = (await js.create_stream(config)).config
        assert made.metadata is not None
        assert made.metadata.items() >= {"owner": "ops"}.items()
        assert replace(made, metadata=config.metadata, placement=None) == config
        # A moment and a source, which exclude some of the above.
        since = datetime(2024, 2, 29, 12, 0, 0, 500_000, tzinfo=timezone.utc)
        sources = (
            StreamSource(name=name, opt_start_time=since, filter_subject=f"{name}.a.*"),
            StreamSource(name="far", domain="leaf"),
        )
        made = (await js.create_stream(name=source, sources=sources, sealed=False)).config
        assert made.sources == sources
        assert made.sources[1].external == ExternalStream(api="$JS.leaf.API")
        assert StreamConfig.read(made.wire()) == made


def test_keywords_are_the_fields() -> None:
    assert set(StreamSettings.__annotations__) == {f.name for f in fields(StreamConfig)}


def test_a_setting_in_extra_moves_to_its_field() -> None:
    """Whoever knew the server's word before this version did keeps working."""
    config = StreamConfig(
        name="s",
        extra={"allow_rollup_hdrs": True, "max_age": 90_000_000_000, "placement": {"tags": ["a"]}},
    )
    assert (config.allow_rollup_hdrs, config.max_age) == (True, 90.0)
    assert config.placement == Placement(tags=("a",))
    assert config.extra == {}
    assert (
        StreamConfig(name="s", max_msgs=3, extra={"max_msgs": 4, "new": 1}).wire()["max_msgs"] == 3
    )


async def test_nothing_is_sent_for_what_is_wrong(server: ServerProcess) -> None:
    sent: list[str] = []
    async with connect(
        fast(server.url), on_request=lambda subject, payload: sent.append(subject)
    ) as js:
        for bad in ("", "a b", "a.b", "a*", "a>", "a/b", "a\\b", "a\tb", "a\r\n"):
            with pytest.raises(InvalidName):
                await js.create_stream(name=bad)
            with pytest.raises(InvalidName):
                await js.stream(bad)
        with pytest.raises(InvalidOption, match="needs a name"):
            await js.create_stream(subjects=["a"])
        with pytest.raises(InvalidOption, match="exclude each other"):
            StreamSource(name="a", domain="b", external=ExternalStream(api="c"))
        with pytest.raises(InvalidName):
            js.stream_names("a b")
    assert sent == []


# ------------------------------------------------------------------ C5: lists


async def test_c05_lists_are_complete(own_server: ServerProcess) -> None:
    """Infos come 256 a page, names 1024."""
    async with connect(fast(own_server.url)) as js:
        assert [info async for info in js.list_streams()] == []
        async with trio.open_nursery() as nursery:
            for lane in range(10):
                nursery.start_soon(_make, js, range(lane, 300, 10))
        expected = [f"s{number:03}" for number in range(300)]
        assert sorted([info.config.name async for info in js.list_streams()]) == expected
        assert sorted([name async for name in js.stream_names()]) == expected
        assert [i.config.name async for i in js.list_streams("a.7.x")] == ["s007"]
        assert [name async for name in js.stream_names("a.299.x")] == ["s299"]
        assert [name async for name in js.stream_names("nobody's")] == []
        assert await js.stream_name_by_subject("a.12.y") == "s012"
        assert await js.stream_name_by_subject("nobody's") is None


async def _make(js: JetStream, numbers: range) -> None:
    for number in numbers:
        await js.create_stream(name=f"s{number:03}", subjects=[f"a.{number}.*"], storage="memory")


async def test_c05_a_list_is_also_a_channel(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        await js.create_stream(name=name, subjects=[name])
        names = js.stream_names(name)
        with pytest.raises(trio.WouldBlock):
            names.receive_nowait()
        assert await names.receive() == name
        with pytest.raises(trio.EndOfChannel):
            await names.receive()
        with pytest.raises(trio.EndOfChannel):
            names.receive_nowait()
        async with js.stream_names() as lister:
            await lister.receive()
        with pytest.raises(trio.ClosedResourceError):
            await lister.receive()


# ------------------------------------------------------------------ C6: stored messages


@pytest.fixture(params=[False, True], ids=["leader", "direct"])
def direct(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_c06_get_and_delete(server: ServerProcess, fresh_queue: Fresh, direct: bool) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[f"{name}.*"], allow_direct=direct)
        before = datetime.now(timezone.utc)
        await js.publish(f"{name}.a", b"")
        await js.publish(f"{name}.b", b"\x00\xff\r\n", headers={"X": ["1", "2"], "Empty": ""})
        await js.publish(f"{name}.a", "text")

        first = await stream.get_message(1)
        assert (first.subject, first.sequence, first.data) == (f"{name}.a", 1, b"")
        assert dict(first.headers) == {}
        assert abs(first.time - before) < timedelta(minutes=1)
        second = await stream.get_message(2)
        assert second.data == b"\x00\xff\r\n"
        assert second.headers.get_all("X") == ["1", "2"]
        assert dict(second.headers) == {"X": "1", "Empty": ""}

        assert (await stream.get_message(2, next_for=f"{name}.a")).sequence == 3
        assert (await stream.get_message(0, next_for=f"{name}.*")).sequence == 1
        assert (await stream.get_last_message(f"{name}.b")).sequence == 2
        assert (await stream.get_last_message(f"{name}.*")).data == b"text"
        for missing in (
            stream.get_message(4),
            stream.get_message(4, next_for=f"{name}.a"),
            stream.get_last_message(f"{name}.c"),
        ):
            with pytest.raises(MessageNotFound):
                await missing
        with pytest.raises(InvalidOption, match="at least 1"):
            await stream.get_message(0)

        await stream.delete_message(1)
        await stream.delete_message(2, secure=True)
        for sequence in (1, 2):
            with pytest.raises(MessageNotFound):
                await stream.get_message(sequence)
            with pytest.raises(MessageDeleteFailed):
                await stream.delete_message(sequence)
        assert (await stream.info()).messages == 1


async def test_c06_what_the_handle_believes_may_be_over(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[name], allow_direct=True)
        await js.publish(name, b"x")
        await js.edit_stream(name, allow_direct=False)
        with pytest.raises(NoResponders, match="allow_direct"):
            await stream.get_message(1)
        await stream.info()
        assert (await stream.get_message(1)).data == b"x"


async def test_c06_a_stream_that_forbids_deleting(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[name], deny_delete=True)
        await js.publish(name, b"x")
        with pytest.raises(MessageDeleteFailed):
            await stream.delete_message(1)


async def test_info_with_details(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        stream = await filled(js, fresh_queue())
        name = stream.name
        await stream.delete_message(3)
        info = await stream.info(deleted_details=True, subject_filter=f"{name}.*")
        assert info.state.subjects == {f"{name}.a": 4, f"{name}.b": 5}
        assert info.state.deleted == (3,)
        assert (info.state.num_deleted, info.state.num_subjects) == (1, 2)
        assert info.state.first_ts is not None
        assert info.state.last_ts is not None
        assert info.state.first_ts <= info.state.last_ts
        # Details are not kept: they are as many as there are subjects.
        assert stream.cached_info.state.subjects == {}
        one = await stream.info(subject_filter=f"{name}.b")
        assert one.state.subjects == {f"{name}.b": 5}
        assert (await stream.info(subject_filter="nobody")).state.subjects == {}


async def test_times_of_the_server(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        info = await (await js.create_stream(name=fresh_queue())).info()
        assert info.created.tzinfo is timezone.utc
        assert info.server_time is not None
        assert info.created <= info.server_time
        assert info.state.first_ts is None


async def test_mirrors_and_sources(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        origin, mirror, sourced = fresh_queue(), fresh_queue(), fresh_queue()
        await js.create_stream(name=origin, subjects=[f"{origin}.*"])
        await js.publish(f"{origin}.a", b"x")
        copy = await js.create_stream(name=mirror, mirror=StreamSource(name=origin))
        transform = SubjectTransform(src=f"{origin}.*", dest=sourced + ".{{wildcard(1)}}")
        other = await js.create_stream(
            name=sourced,
            sources=[StreamSource(name=origin, subject_transforms=(transform,))],
        )
        with trio.fail_after(SOON_S):
            while not ((await copy.info()).messages and (await other.info()).messages):
                await trio.lowlevel.checkpoint()
        told = copy.cached_info.mirror
        assert told is not None
        assert (told.name, told.lag, told.error) == (origin, 0, None)
        assert told.active is not None
        (source,) = other.cached_info.sources
        assert (source.name, source.subject_transforms) == (origin, (transform,))
        assert (await other.get_message(1)).subject == f"{sourced}.a"
        cluster = copy.cached_info.cluster
        assert cluster is not None
        assert cluster.leader
        assert repr(copy) == f"<Stream {mirror}>"


# ------------------------------------------------------------------ C7: purge


async def filled(js: JetStream, name: str) -> Stream:
    """a b a b a b a b a b, sequences 1 to 10."""
    stream = await js.create_stream(name=name, subjects=[f"{name}.*"])
    for number in range(10):
        await js.publish(f"{name}.{'ab'[number % 2]}", b"%d" % number)
    return stream


async def left(stream: Stream) -> list[int]:
    info = await stream.info(deleted_details=True)
    return [
        sequence
        for sequence in range(info.state.first_seq, info.state.last_seq + 1)
        if sequence not in info.state.deleted
    ]


@pytest.mark.parametrize(
    ("subject", "before", "keep", "expected"),
    [
        (None, None, None, []),
        ("a", None, None, [2, 4, 6, 8, 10]),
        (None, 4, None, [4, 5, 6, 7, 8, 9, 10]),
        (None, None, 3, [8, 9, 10]),
        ("b", 5, None, [1, 3, 5, 6, 7, 8, 9, 10]),
        ("a", None, 2, [2, 4, 6, 7, 8, 9, 10]),
        ("*", None, 1, [10]),
        (None, None, 0, []),
    ],
    ids=["all", "subject", "before", "keep", "subject-before", "subject-keep", "wild", "keep-0"],
)
async def test_c07_purge(
    server: ServerProcess,
    fresh_queue: Fresh,
    subject: str | None,
    before: int | None,
    keep: int | None,
    expected: list[int],
) -> None:
    async with connect(fast(server.url)) as js:
        stream = await filled(js, fresh_queue())
        where = None if subject is None else f"{stream.name}.{subject}"
        purged = await stream.purge(subject=where, before=before, keep=keep)
        assert await left(stream) == expected
        assert purged == 10 - len(expected)


async def test_c07_before_and_keep_exclude_each_other(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url)) as js:
        stream = await filled(js, fresh_queue())
        with pytest.raises(InvalidOption, match="exclude each other"):
            await stream.purge(before=3, keep=1)
        with pytest.raises(InvalidOption, match="at least 0"):
            await stream.purge(keep=-1)
        assert len(await left(stream)) == 10


async def test_a_sealed_stream(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        stream = await filled(js, fresh_queue())
        await stream.edit(sealed=True)
        assert stream.config.sealed
        with pytest.raises(StreamSealed):
            await stream.delete_message(1)
