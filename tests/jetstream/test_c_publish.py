"""Publishing one by one: C24. Options as headers, errors by the server's number."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import trio

from shove_actors._errors import (
    ApiError,
    ApiMessageTooLarge,
    ApiStreamFull,
    ConnectionError,
    Disconnected,
    HeaderError,
    InvalidAck,
    InvalidName,
    InvalidOption,
    MessageTooLarge,
    NoStreamResponse,
    NotConnected,
    PublishTimeout,
    PublishUnknown,
    ScheduleError,
    StreamFull,
    StreamMismatch,
    StreamSealed,
    WrongLastMsgId,
    WrongLastSequence,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import (
    At,
    Cron,
    Every,
    JetStream,
    PubMessage,
    connect,
    encode_headers,
    parse_headers,
)

from .kit import connected, fast, lag
from .losses import kill

Fresh = Callable[[], str]


async def test_c24_acknowledged(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[f"{name}.*"])
        ack = await js.publish(f"{name}.a", b"one")
        assert (ack.stream, ack.sequence, ack.duplicate, ack.domain) == (name, 1, False, None)
        for number, data in enumerate((bytearray(b"x"), memoryview(b"x"), "\u00fc", b""), start=2):
            assert (await js.publish(f"{name}.a", data)).sequence == number
        assert (await stream.get_message(4)).data == "\u00fc".encode()


async def test_c24_the_same_id_is_stored_once(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        await js.create_stream(name=name, subjects=[name])
        first = await js.publish(name, b"a", msg_id="1")
        again = await js.publish(name, b"b", msg_id="1")
        assert (first.duplicate, again.duplicate) == (False, True)
        assert again.sequence == first.sequence == 1
        assert (await js.publish(name, b"c", msg_id="2")).sequence == 2


async def test_c24_expectations(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[f"{name}.*"])
        a, b = f"{name}.a", f"{name}.b"
        # 0 means "nothing yet", and must not be left out.
        await js.publish(a, expect_last_sequence=0, expect_last_subject_sequence=0, msg_id="one")
        with pytest.raises(WrongLastSequence) as caught:
            await js.publish(a, expect_last_sequence=0)
        assert caught.value.err_code == 10071
        await js.publish(a, expect_last_sequence=1, expect_stream=name, expect_last_msg_id="one")
        with pytest.raises(StreamMismatch):
            await js.publish(a, expect_stream="other")
        # The last message has no id, so none matches.
        with pytest.raises(WrongLastMsgId):
            await js.publish(a, expect_last_msg_id="one")
        with pytest.raises(WrongLastSequence):
            await js.publish(b, expect_last_subject_sequence=2)
        await js.publish(b, expect_last_subject_sequence=0)
        assert (await stream.info()).messages == 3
        with pytest.raises(InvalidOption, match="give that, too"):
            await js.publish(b, expect_last_subject=a)
        with pytest.raises(InvalidOption, match="at least 0"):
            await js.publish(b, expect_last_sequence=-1)
        with pytest.raises(TypeError, match="no option 'expect_last'"):
            await js.publish(b, expect_last=1)  # type: ignore[call-arg]


async def test_c24_expectations_of_another_subject(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        await js.create_stream(name=name, subjects=[f"{name}.*"])
        a, b = f"{name}.a", f"{name}.b"
        await js.publish(a)
        await js.publish(b)
        with pytest.raises(WrongLastSequence):
            await js.publish(b, expect_last_subject_sequence=2, expect_last_subject=a)
        await js.publish(b, expect_last_subject_sequence=1, expect_last_subject=a)


async def test_c24_no_stream(server: ServerProcess, fresh_queue: Fresh) -> None:
    """Three attempts, 250 ms apart: no less, because a leader may be being elected."""
    async with connect(fast(server.url)) as js:
        async with lag(js.connection) as late:
            started = trio.current_time()
            with pytest.raises(NoStreamResponse) as caught:
                await js.publish(fresh_queue(), b"x")
            took = trio.current_time() - started
        assert 0.45 <= took < 0.8 + late.seconds
        assert caught.value.stored is False
        async with lag(js.connection) as late:
            started = trio.current_time()
            with pytest.raises(NoStreamResponse):
                await js.publish(fresh_queue(), b"x", retry_attempts=0, retry_wait=30.0)
            took = trio.current_time() - started
        assert took < 0.3 + late.seconds
        with pytest.raises(NoStreamResponse, match=r"within 0\.2 s"):
            await js.publish(fresh_queue(), b"x", retry_wait=30.0, timeout=0.2)


async def test_c24_a_stream_that_comes_in_time(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()

        async def later() -> None:
            await trio.sleep(0.1)
            await js.create_stream(name=name, subjects=[name])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)
            ack = await js.publish(name, b"x", retry_attempts=100, retry_wait=0.05)
        assert ack.sequence == 1


async def test_c24_headers_of_the_caller_are_left_alone(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[name])
        headers = {"Trace": "1"}
        await js.publish(name, b"x", headers=headers, msg_id="ours")
        assert headers == {"Trace": "1"}
        stored = (await stream.get_message(1)).headers
        assert dict(stored) == {"Trace": "1", "Nats-Msg-Id": "ours"}
        assert stored.get_all("Nats-Msg-Id") == ["ours"]
        # What was received may be sent as it is, also with the option that says the same.
        for options in ({}, {"msg_id": "ours"}):
            again = await js.publish(name, b"y", headers=stored, **options)  # type: ignore[arg-type]
            assert again.duplicate
            assert again.sequence == 1


@pytest.mark.parametrize(
    ("header", "theirs", "options"),
    [
        ("Nats-Msg-Id", "theirs", {"msg_id": "ours"}),
        ("Nats-Expected-Stream", "OTHER", {"expect_stream": "THIS"}),
        ("Nats-Expected-Last-Msg-Id", "a", {"expect_last_msg_id": "b"}),
        ("Nats-Expected-Last-Sequence", "1", {"expect_last_sequence": 0}),
        ("Nats-Expected-Last-Subject-Sequence", "1", {"expect_last_subject_sequence": 0}),
        (
            "Nats-Expected-Last-Subject-Sequence-Subject",
            "a",
            {"expect_last_subject": "b", "expect_last_subject_sequence": 0},
        ),
        ("Nats-TTL", "1s", {"ttl": 2.0}),
        ("Nats-Incr", "+1", {"increment": 2}),
        ("Nats-Schedule", "@at x", {"schedule": Every(5.0), "schedule_target": "t"}),
        ("Nats-Schedule-Target", "a", {"schedule": Every(5.0), "schedule_target": "t"}),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("Nats") else "",
)
async def test_an_option_beside_its_header(
    server: ServerProcess, fresh_queue: Fresh, header: str, theirs: str, options: dict[str, Any]
) -> None:
    """One of the two is not meant; which, only the caller knows. Equal ones do no harm."""
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[f"{name}.>"])
        for headers in ({header: theirs}, {header: [theirs]}, {header: [theirs, theirs]}):
            for call in (js.publish, js.publish_async):
                with pytest.raises(InvalidOption, match=rf"{next(iter(options))}.* {header} say"):
                    await call(f"{name}.a", b"x", headers=headers, **options)
            with pytest.raises(InvalidOption, match="say different things"):
                await js.publish(PubMessage(subject=f"{name}.a", headers=headers, options=options))
        assert (await stream.info()).state.messages == 0
        await js.publish(f"{name}.a", b"x", headers={"Nats-Msg-Id": "same"}, msg_id="same")
        await js.publish(f"{name}.a", b"x", headers={"Nats-Msg-Id": ["other"]}, msg_id="other")
        assert (await stream.info()).state.messages == 2


@pytest.mark.parametrize(
    ("headers", "match"),
    [
        ({"A": "x\r\nB: y"}, "control character"),
        ({"A\r\nB": "x"}, "header name"),
        ({"A B": "x"}, "header name"),
        ({"A:": "x"}, "header name"),
        ({"": "x"}, "header name"),
        ({"A": 1}, "of type int"),
        ({"A": ["x", 1]}, "of type int"),
        ({"A": b"x"}, "of type bytes"),
    ],
    ids=[
        "line-end",
        "name-line-end",
        "name-blank",
        "name-colon",
        "no-name",
        "int",
        "list",
        "bytes",
    ],
)
async def test_a_header_stays_one_header(
    server: ServerProcess, headers: dict[str, str], match: str
) -> None:
    async with connect(fast(server.url)) as js:
        with pytest.raises(HeaderError, match=match) as caught:
            await js.publish("a", b"", headers=headers)
        assert "x" not in str(caught.value).replace("example", "")


def test_headers_are_read_as_they_were_written() -> None:
    block = encode_headers({"A": ["1", "2"], "B": "", "\u00fc": "\u00e4"}, {"C": "3"})
    headers = parse_headers(block)
    assert dict(headers) == {"A": "1", "B": "", "\u00fc": "\u00e4", "C": "3"}
    assert headers.get_all("A") == ["1", "2"]
    assert encode_headers(headers) == block
    assert headers.get_all("a") == []
    assert encode_headers(None) == encode_headers({}) == b""
    raw = b"NATS/1.0\r\nX: \xff\r\n\r\n"
    assert encode_headers(dict(parse_headers(raw))) == raw
    assert "secret" not in repr(parse_headers(encode_headers({"A": "secret"})))


async def test_c24_life_of_a_message(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[name], allow_msg_ttl=True)
        for ttl, text in ((1, "1s"), (90.0, "90s"), (1.2, "2s"), ("never", "never")):
            ack = await js.publish(name, b"x", ttl=ttl)  # type: ignore[arg-type]
            assert (await stream.get_message(ack.sequence)).headers["Nats-TTL"] == text
        for bad in (0.5, 0, -1, float("nan"), float("inf"), "1h", True):
            with pytest.raises(InvalidOption, match="ttl"):
                await js.publish(name, b"x", ttl=bad)  # type: ignore[arg-type]
        bare = fresh_queue()
        await js.create_stream(name=bare, subjects=[bare])
        with pytest.raises(ApiError, match="TTL"):
            await js.publish(bare, b"x", ttl=5)


async def test_counters(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        await js.create_stream(
            name=name, subjects=[name], allow_msg_counter=True, allow_direct=True
        )
        assert (await js.publish(name, increment=5)).value == 5
        assert (await js.publish(name, increment=-7)).value == -2
        big = 2**80
        assert (await js.publish(name, increment=big)).value == big - 2


async def test_limits_of_a_stream(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(
            name=name, subjects=[name], max_msgs=1, discard="new", max_msg_size=100
        )
        with pytest.raises(ApiMessageTooLarge):
            await js.publish(name, b"x" * 200)
        await js.publish(name, b"x")
        with pytest.raises(StreamFull) as caught:
            await js.publish(name, b"x")
        assert isinstance(caught.value, ApiStreamFull)
        await stream.edit(sealed=True)
        with pytest.raises(StreamSealed):
            await js.publish(name, b"x")


async def test_nothing_is_sent_for_what_is_wrong(server: ServerProcess) -> None:
    async with connect(fast(server.url)) as js:
        with pytest.raises(MessageTooLarge, match="max_payload"):
            await js.publish("a", b"x" * (js.connection.max_payload + 1))
        for bad in ("", "a b", "a\r\nb"):
            with pytest.raises(InvalidName):
                await js.publish(bad, b"x")
        for bad in ("a.*", "a.>"):
            with pytest.raises(InvalidOption, match="wildcard"):
                await js.publish(bad, b"x")
        with pytest.raises(InvalidOption, match="own data"):
            await js.publish(PubMessage(subject="a"), b"x")
        for options in (
            {"timeout": 0},
            {"retry_attempts": -1},
            {"retry_wait": 0},
            {"msg_id": ""},
            {"increment": 1.5},
        ):
            with pytest.raises(InvalidOption, match=next(iter(options))):
                await js.publish("a", b"x", **options)  # type: ignore[arg-type]


async def test_a_message_object(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[name])
        message = PubMessage(
            subject=name, data=b"secret", headers={"A": "b"}, options={"msg_id": "1"}
        )
        await js.publish(message)
        assert (await js.publish(message)).duplicate
        assert not (await js.publish(message, msg_id="2")).duplicate
        assert (await stream.get_message(2)).headers["A"] == "b"
        assert "secret" not in repr(message)


async def test_somebody_else_answers(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        answers = [b"no json", b'{"hello": 1}', b""]
        connection, name = js.connection, fresh_queue()
        connection.subscribe(
            name.encode(), lambda s, reply, h, p: connection.publish(reply, answers.pop(0)) and None
        )
        for _ in range(3):
            with pytest.raises(InvalidAck) as caught:
                await js.publish(name, b"x")
            assert caught.value.stored is None


async def test_no_answer_in_time(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        js.connection.subscribe(name.encode(), lambda *message: None)
        with pytest.raises(PublishTimeout, match=r"within 0\.05 s") as caught:
            await js.publish(name, b"x", timeout=0.05)
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value, PublishUnknown)
        with trio.move_on_after(0.05) as scope:
            await js.publish(name, b"x")
        assert scope.cancelled_caught
        assert len(js.connection.replies) == 0


async def test_without_a_connection(own_server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connected(fast(own_server.url)) as (js, events):
        name = fresh_queue()
        heard = trio.Event()
        js.connection.subscribe(name.encode(), lambda *message: heard.set())

        async def lose() -> None:
            await heard.wait()
            await kill(own_server)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose)
            with pytest.raises(Disconnected) as caught:
                await js.publish(name, b"x")
        assert isinstance(caught.value, ConnectionError)
        assert caught.value.stored is None
        await events.wait("disconnected")
        with pytest.raises(NotConnected) as refused:
            await js.publish(name, b"x", timeout=0.05)
        assert refused.value.stored is False


async def test_domains(own_server: ServerProcess) -> None:
    with ServerProcess(config="jetstream { domain: hub }") as process:
        async with connect(fast(process.url, name="x"), domain="hub") as js:
            await js.create_stream(name="S", subjects=["s"])
            assert (await js.publish("s", b"x")).domain == "hub"


# ------------------------------------------------------------------ C26: schedules


async def scheduled(js: JetStream, name: str) -> None:
    await js.create_stream(
        name=name, subjects=[f"{name}.*"], allow_msg_schedules=True, allow_msg_ttl=True
    )


async def test_c26_at(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        await scheduled(js, name)
        stream = await js.stream(name)
        due = datetime.now(timezone.utc) + timedelta(seconds=2)
        await js.publish(
            f"{name}.plan",
            b"now",
            schedule=At(due),
            schedule_target=f"{name}.target",
            schedule_ttl=60,
        )
        with trio.fail_after(20):
            while True:
                info = await stream.info(subject_filter=f"{name}.target")
                if info.state.subjects:
                    break
                await trio.sleep(0.05)
        made = await stream.get_last_message(f"{name}.target")
        assert timedelta(seconds=-0.1) <= made.time - due < timedelta(seconds=1.5)
        assert made.data == b"now"
        assert made.headers["Nats-Scheduler"] == f"{name}.plan"
        assert made.headers["Nats-TTL"] == "60s"
        # What was planned once is gone.
        assert info.messages == 1


async def test_c26_again_and_again(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        await scheduled(js, name)
        stream = await js.stream(name)
        await js.publish(
            f"{name}.plan", b"tick", schedule=Every(1), schedule_target=f"{name}.target"
        )
        await js.publish(
            f"{name}.cron",
            schedule=Cron("* * * * * *", tz="Europe/Berlin"),
            schedule_target=f"{name}.other",
        )
        with trio.fail_after(20):
            while True:
                found = (await stream.info(subject_filter=f"{name}.*")).state.subjects
                if found.get(f"{name}.target", 0) >= 2 and found.get(f"{name}.other", 0) >= 1:
                    break
                await trio.sleep(0.1)


async def test_c26_what_the_server_refuses(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name, bare = fresh_queue(), fresh_queue()
        await scheduled(js, name)
        await js.create_stream(name=bare, subjects=[f"{bare}.*"])
        with pytest.raises(ScheduleError) as caught:
            await js.publish(f"{bare}.a", schedule=Every(1), schedule_target=f"{bare}.b")
        assert caught.value.err_code == 10188
        with pytest.raises(ScheduleError) as caught:
            await js.publish(f"{name}.a", schedule=Cron("often"), schedule_target=f"{name}.b")
        assert caught.value.err_code == 10189
        with pytest.raises(ScheduleError) as caught:
            await js.publish(f"{name}.a", schedule=Every(5), schedule_target="elsewhere")
        assert caught.value.err_code == 10190


async def test_c26_what_is_refused_here(server: ServerProcess) -> None:
    naive = datetime(2024, 1, 1)
    with pytest.raises(InvalidOption, match="time zone"):
        At(naive)
    with pytest.raises(InvalidOption, match="at least 1"):
        Every(0.5)
    with pytest.raises(InvalidOption, match="empty"):
        Cron(" ")
    assert Every(1.5).header() == "@every 1500ms"
    moment = datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert At(moment).header() == "@at 2024-01-01T10:00:00Z"
    async with connect(fast(server.url)) as js:
        with pytest.raises(InvalidOption, match="needs schedule_target"):
            await js.publish("a", schedule=Every(1))
        with pytest.raises(InvalidOption, match="need a schedule"):
            await js.publish("a", schedule_target="b")
