"""The stepper under state machines: one run per example, torn down whatever happens (PC-106)."""

from __future__ import annotations

import gc
import sys

import pytest
import trio
import trio.testing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from shove_actors._errors import UsageError
from shove_actors.testing import Stepper, _guest

from .stepping import double, in_trio_run, stubborn

if sys.version_info < (3, 11):
    pass


# ----------------------------------------------------------------- PC-106, state machines


class Counter(RuleBasedStateMachine):
    """A pair of tasks and a channel, driven by rules; breaks when told to."""

    breaks_at = 10**9
    opened = 0
    closed = 0

    def __init__(self) -> None:
        super().__init__()
        Counter.opened += 1
        self.received: list[int] = []
        self.sent: list[int] = []
        self.trio = Stepper(self.receiver)
        self.trio.open()

    async def receiver(self) -> None:
        self.send, receive = trio.open_memory_channel[int](0)
        async for item in receive:
            await trio.sleep(1)
            self.received.append(item)
            assert len(self.received) < self.breaks_at

    @rule(item=st.integers())
    def tell(self, item: int) -> None:
        self.sent.append(item)
        self.trio.post(self.send.send, item)

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds: int) -> None:
        self.trio.advance(seconds)
        assert self.received == self.sent[: len(self.received)], "in order"

    def teardown(self) -> None:
        self.trio.close()
        Counter.closed += 1


def test_pc106_a_machine_has_one_run_for_each_example() -> None:
    Counter.opened = Counter.closed = 0
    run_state_machine_as_test(Counter, settings=settings(max_examples=20, database=None))
    assert Counter.opened == Counter.closed > 0
    assert not in_trio_run()


def test_pc106_a_failing_example_is_shrunk_and_torn_down() -> None:
    class Breaks(Counter):
        breaks_at = 2

    Counter.opened = Counter.closed = 0
    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(Breaks, settings=settings(max_examples=100, database=None))
    assert Counter.opened == Counter.closed
    assert not in_trio_run()
    program = "\n".join(getattr(caught.value, "__notes__", []))
    if program:  # Python 3.11 or later
        assert program.count("state.tell(item=0)") == 2
        assert program.count("state.wait(") <= 2


def test_close_lets_an_ordered_stop_have_its_time() -> None:
    ends = []

    async def slow_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(3600)
                await trio.sleep(3600)
                ends.append(trio.current_time())

    with Stepper() as s:
        s.post(slow_end)
        s.advance(1)
    assert ends == [7201]


@pytest.mark.filterwarnings("error")
def test_pc106_a_task_that_will_not_end_is_named_and_does_not_spoil_the_next_run() -> None:
    async def nested() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stubborn)
            nursery.start_soon(trio.sleep_forever)

    s = Stepper()
    s.open()
    s.post(stubborn)
    s.post(nested)
    with pytest.raises(UsageError, match=r"by force: .*stubborn, .*stubborn\. Release"):
        s.close()
    gc.collect()
    assert not in_trio_run()
    with Stepper() as s:
        assert s.call(double, 1) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_pc106_a_shielded_task_that_never_waits_does_not_spoil_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing can end it, so the run is taken apart, and Python says so when it collects it."""
    monkeypatch.setattr(_guest, "TURNS", 1000)

    async def spin() -> None:
        with trio.CancelScope(shield=True):
            while True:
                await trio.lowlevel.checkpoint()

    with pytest.raises(UsageError, match="still does not wait"), Stepper() as s:
        s.post(spin)
    gc.collect()
    with Stepper() as s:
        assert s.call(double, 1) == 2
