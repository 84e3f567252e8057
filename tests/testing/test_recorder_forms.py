"""What a recorder takes for a handler, and what it writes down of messages and answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from shove_actors import (
    Defer,
    MemoryConfig,
    MemoryServer,
    Outcome,
    Reject,
    Retry,
    Topic,
    TopologyBuilder,
    audited,
    open_broker,
)
from shove_actors._errors import HandlerError, UnavailableError, UsageError
from shove_actors.testing import (
    Event,
    FaultPlan,
    History,
    HistoryRules,
    LosePuback,
    Recorder,
    Simulation,
    check_history,
    on,
    recording,
    take_inventory,
)
from shove_actors.testing._history import digest_of


class Order(msgspec.Struct):
    number: int


ORDERS = Topic(Order, TopologyBuilder("q").hold_queue(1).dlq().build())
CALM = HistoryRules(calm=True, publishes=True, retry_delays=(1.0,))


async def run(
    handler: object, *, topic: Topic[Any] = ORDERS, message: Any = None, until: int = 1
) -> History:
    """One message, until its handler has ended that often."""
    history, over = History(), trio.Event()

    def listen(event: Event) -> None:
        if history.count("ended") == until:
            over.set()

    history.listen(listen)
    with recording(history, "w") as record:
        async with open_broker(MemoryConfig(server=MemoryServer())) as broker:
            await broker.declare(topic)
            async with trio.open_nursery() as nursery:
                group = broker.consumer_group()
                group.register(topic, record.handler(topic, handler), handler_timeout=20.0)
                await nursery.start(group.serve)
                publisher = record.publisher(broker.publisher())
                await publisher.publish(topic, message or Order(1), message_id="m")
                with trio.fail_after(200.0):
                    await over.wait()
                await trio.sleep(0.1)
                group.stop()
            await take_inventory(history, broker, topic)
    return history


def told(history: History) -> list[tuple[object, float]]:
    return [(event.outcome, event.after) for event in history if event.kind == "ended"]


class Sink:
    def __init__(self, *, fails: int = 0, takes_s: float = 0.0, unready: bool = False) -> None:
        self.records: list[Any] = []
        self.fails, self.takes_s, self.unready = fails, takes_s, unready
        self.prepared = 0

    async def prepare(self) -> None:
        if self.unready:
            raise UnavailableError("not ready")
        self.prepared += 1

    async def audit(self, record: Any) -> None:
        await trio.sleep(self.takes_s)
        if len(self.records) < self.fails:
            self.records.append(None)
            raise OSError("disk full")
        self.records.append(record)


async def handle(order: Order) -> Outcome:
    return Outcome.ACK


# ------------------------------------------------------------------------------- handlers


async def test_a_handler_with_an_audit(autojump_clock: trio.testing.MockClock) -> None:
    sink = Sink(takes_s=2.0)
    history = await run(audited(handle, sink))
    assert told(history) == [("ack", 0.0)]
    assert [(r.outcome, r.metadata.delivery_id, r.payload) for r in sink.records] == [
        (Outcome.ACK, "m", Order(1))
    ]
    assert sink.prepared == 1
    started, ended = (next(e for e in history if e.kind == kind) for kind in ("started", "ended"))
    assert ended.time - started.time == pytest.approx(2.0)  # its record is part of it
    assert check_history(history, CALM, complete=True) is None


async def test_a_handler_whose_audit_fails_is_called_again_at_no_cost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    history = await run(audited(audited(handle, Sink(fails=2)), Sink()), until=3)
    assert [outcome for outcome, _ in told(history)] == ["unaudited", "unaudited", "ack"]
    assert [event.attempt for event in history if event.kind == "started"] == [0, 0, 0]
    assert check_history(history, CALM, complete=True) is None


async def test_a_sink_that_is_not_ready_costs_the_attempt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    history = await run(audited(handle, Sink(unready=True)))
    assert told(history) == [("raised", 0.0)]


def test_a_simulation_of_a_handler_with_an_audit() -> None:
    sink = Sink(fails=1)
    with Simulation(ORDERS, lambda n, key: Order(n), handler=audited(handle, sink)) as sim:
        sim.start_process()
        sim.publish(3)
        sim.advance(5.0)
        sim.finish()
    assert [record.payload.number for record in sink.records if record is not None] == [1, 2, 0]


async def test_a_plain_function_and_an_object() -> None:
    class Handler:
        async def handle(self, order: Order, metadata: object) -> Outcome:
            return Outcome.ACK

    def in_a_thread(order: Order) -> Outcome:
        return Outcome.ACK

    for handler in (Handler(), in_a_thread, audited(in_a_thread, Sink())):
        assert told(await run(handler)) == [("ack", 0.0)]


def test_what_register_refuses_is_refused() -> None:
    record = Recorder(History(), "w")
    with pytest.raises(HandlerError, match="takes 0 positional arguments"):
        record.handler(ORDERS, audited(lambda: None, Sink()))
    with pytest.raises(HandlerError, match="is a class"):
        record.handler(ORDERS, Sink)
    with pytest.raises(UsageError, match="thread"):
        Simulation(ORDERS, lambda n, key: Order(n), handler=lambda order: Outcome.ACK)


@pytest.mark.parametrize(
    ("answers", "ended"),
    [
        ((Retry(after=0.2), Outcome.ACK), [("retry", 0.2), ("ack", 0.0)]),
        ((Retry(after=50), Outcome.ACK), [("retry", 50.0), ("ack", 0.0)]),
        ((Defer(after=0.2), Outcome.ACK), [("defer", 0.2), ("ack", 0.0)]),
        ((Outcome.DEFER, Outcome.RETRY, Outcome.ACK), [("defer", 0.0), ("retry", 0), ("ack", 0)]),
        ((Reject(reason="no"),), [("reject", 0.0)]),
    ],
)
async def test_the_delay_that_a_handler_asks_for(
    answers: tuple[Outcome, ...], ended: list[Any], autojump_clock: trio.testing.MockClock
) -> None:
    left = list(answers)

    async def answer(order: Order) -> Outcome:
        return left.pop(0)

    history = await run(answer, until=len(answers))
    assert told(history) == ended
    assert check_history(history, CALM, complete=True) is None


async def test_a_handler_that_shields_itself_was_told_to_stop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def shielded(order: Order) -> Outcome:
        with trio.CancelScope(shield=True):
            await trio.sleep(90.0)
        return Outcome.ACK

    history = await run(shielded)
    [ended] = [event for event in history if event.kind == "ended"]
    assert ended.late
    rules = HistoryRules(calm=True, handler_timeout=20.0)
    assert check_history(history, rules) is None
    hidden = [msgspec.structs.replace(event, late=False) for event in history]
    violation = check_history(hidden, rules)
    assert violation is not None
    assert "nobody had told it to stop" in violation.sentence


# ------------------------------------------------------------------------------- payloads


class Codec:
    """Of orders, with what a test makes of it."""

    def __init__(
        self,
        encode: Callable[[Order], bytes] = msgspec.json.encode,
        decode: Callable[[bytes], Order] = lambda data: msgspec.json.decode(data, type=Order),
    ) -> None:
        self.encode, self.decode = encode, decode


def of_codec(codec: Codec) -> Topic[Any]:
    return Topic(Order, TopologyBuilder("q").hold_queue(1).dlq().build(), codec=codec)


def digests(history: History) -> dict[str, str]:
    return {event.kind: event.digest for event in history if event.digest}


async def reject(order: Order) -> Outcome:
    return Outcome.REJECT


async def test_the_digest_of_a_payload(autojump_clock: trio.testing.MockClock) -> None:
    history = await run(reject)
    one = digest_of(b'{"number":1}')
    assert digests(history) == {"published": one, "started": one, "dead": one}
    assert digest_of(b'{"number":2}') != one
    assert "number" not in str(history.to_lines())


async def test_a_message_that_is_written_otherwise_than_it_was_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its publisher's version has more fields: what has arrived is what was published."""
    spaced = Codec(decode=lambda data: Order(1))
    spaced.encode = lambda order: b'{"number":1}' if order.number == 1 else b'{"number":9,"x":1}'
    history = await run(reject, topic=of_codec(spaced), message=Order(9))
    assert len(set(digests(history).values())) == 1
    assert check_history(history, CALM, complete=True) is None


async def test_a_codec_that_writes_something_else_each_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    count = iter(range(1000))
    salted = Codec(
        lambda order: b"%d:%d" % (next(count), order.number),
        lambda data: Order(int(data.split(b":")[1])),
    )
    history = await run(reject, topic=of_codec(salted))
    assert "published" not in digests(history)
    assert check_history(history, CALM, complete=True) is None


async def test_a_message_that_is_not_what_its_payload_says(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Decoded wrongly once, as by a consumer that gives the decoder something else."""
    wrong = iter([True])
    codec = Codec(decode=lambda data: Order(7) if next(wrong, False) else Order(1))
    history = await run(reject, topic=of_codec(codec))
    violation = check_history(history, CALM)
    assert violation is not None
    assert "m arrived changed to its handler" in violation.sentence


async def test_a_publish_that_nobody_has_confirmed(autojump_clock: trio.testing.MockClock) -> None:
    server, history = MemoryServer(), History()
    with recording(history, "w") as record:
        async with open_broker(MemoryConfig(server=server)) as broker:
            await broker.declare(ORDERS)
            publisher = record.publisher(broker.publisher())
            FaultPlan(*(on("publish", n, LosePuback()) for n in range(1, 50))).install(server)
            with pytest.raises(UnavailableError):
                await publisher.publish(ORDERS, Order(1), message_id="one")
            with trio.move_on_after(0.01):
                await publisher.publish_batch(ORDERS, [Order(2)], message_ids=["two"])
            with pytest.raises(UsageError):
                await publisher.publish(ORDERS, Order(3), headers={"Status": "1"})
    found = [(e.id, e.digest) for e in history if e.kind == "unconfirmed"]
    assert found == [("one", digest_of(b'{"number":1}')), ("two", digest_of(b'{"number":2}'))]
    assert history.count("published") == 0
