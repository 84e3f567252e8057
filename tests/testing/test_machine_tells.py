"""What a failing example of the machine tells: its first failure, the faults, and a program."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test
from hypothesis.vendor.pretty import pretty

import shove_actors
import shove_actors.testing
from shove_actors import MessageMetadata, Outcome, SequencedTopic, SequenceFailure, TopologyBuilder
from shove_actors.testing import FaultPlan, LoseAck, MessagingMachine, Rates, Simulation, at, on

#: As they are found: what is told does not depend on how short the example is.
SETTINGS = settings(
    max_examples=40,
    stateful_step_count=6,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Entry(msgspec.Struct):
    number: int
    account: str


LEDGER = SequencedTopic(
    Entry,
    key=lambda entry: entry.account,
    topology=TopologyBuilder("ledger")
    .sequenced(SequenceFailure.SKIP)
    .routing_shards(2)
    .hold_queue(1)
    .dlq()
    .build(),
)


class Ledger(MessagingMachine):
    """Posts an entry whenever its handler is called."""

    topic = LEDGER
    batch = 4
    #: Machines that were looked at in the end.
    looked: ClassVar[list[Ledger]] = []

    def __init__(self) -> None:
        super().__init__()
        self.posted: dict[int, int] = {}

    def make(self, number: int, key: str) -> Entry:
        return Entry(number, key)

    async def handler(self, entry: Entry, metadata: MessageMetadata, context: Any) -> Outcome:
        self.posted[entry.number] = self.posted.get(entry.number, 0) + 1
        return Outcome.ACK

    def right(self) -> None:
        for number, times in self.posted.items():
            assert times == 1, f"entry {number} was posted {times} times"


class InTheEnd(Ledger):
    @rule()
    def acknowledgement_is_lost(self) -> None:
        """So that it does not take many examples."""
        self.sim.fault(LoseAck())
        self.sim.publish(1)

    def settled(self) -> None:
        self.right()


class AfterEachStep(Ledger):
    @invariant()
    def posted_once(self) -> None:
        self.right()

    def settled(self) -> None:
        self.looked.append(self)
        self.right()


class InARule(Ledger):
    @rule(count=st.integers(1, 2))
    def audit(self, count: int) -> None:
        self.sim.fault(LoseAck())
        self.sim.publish(count)
        self.sim.advance(30.0)
        self.right()


class LedgerFails(Ledger):
    """Nothing of the user's own is wrong: an invariant of the checker is."""

    only = "X"


def failure_of(machine: type[MessagingMachine]) -> tuple[BaseException, str]:
    """The one that is reported, and what is told with it."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - which it is, is asked below
        run_state_machine_as_test(machine, settings=SETTINGS)
    return caught.value, "\n".join(getattr(caught.value, "__notes__", []))


def program_in(told: str) -> str:
    return told.partition("# without Hypothesis:\n")[2].partition("\nYou can reproduce")[0]


def run(program: str, machine: type[MessagingMachine]) -> None:
    exec(program, {**vars(shove_actors.testing), machine.__name__: machine})


@pytest.mark.parametrize("machine", [InTheEnd, AfterEachStep, InARule], ids=lambda m: m.__name__)
def test_the_first_failure_alone_with_its_faults(machine: type[Ledger]) -> None:
    Ledger.looked.clear()
    error, told = failure_of(machine)
    assert type(error) is AssertionError, error
    assert re.match(r"entry \d+ was posted 2 times", str(error))
    assert error.__context__ is None
    assert "# faults so far: FaultPlan(\n" in told
    # Who has failed is not looked at in the end.
    assert all(set(each.posted.values()) <= {1} for each in Ledger.looked)


@pytest.mark.parametrize("machine", [InTheEnd, AfterEachStep], ids=lambda m: m.__name__)
def test_the_program_that_is_told_fails_in_the_same_way(machine: type[Ledger]) -> None:
    error, told = failure_of(machine)
    program = program_in(told)
    assert program.startswith(f"machine = {machine.__name__}()\nwith Simulation(machine.topic, ")
    for _ in range(2):
        with pytest.raises(AssertionError) as again:
            run(program, machine)
        assert str(again.value).splitlines()[0] == str(error).splitlines()[0]


def test_what_the_machine_refuses_comes_alone() -> None:
    error, _ = failure_of(LedgerFails)
    assert isinstance(error, shove_actors.UsageError)
    assert "only='X'" in str(error)


def test_a_machine_made_while_something_else_is_handled_is_looked_at_in_the_end() -> None:
    Ledger.looked.clear()
    try:
        raise ValueError("somebody else's")
    except ValueError:
        machine = AfterEachStep()
        machine.sim = Simulation(LEDGER, machine.make, handler=machine.handler)
        machine.sim.open()
        machine.sim.publish(1)
        machine.teardown()
    assert Ledger.looked == [machine]


def test_outside_of_hypothesis_it_is_printed() -> None:
    machine = AfterEachStep()
    machine.sim = Simulation(LEDGER, machine.make, handler=machine.handler)
    machine.sim.open()
    machine.sim.start_process()
    machine.sim.fault(LoseAck())
    machine.sim.publish(1)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(AssertionError, match="posted 2 times"):
        machine.teardown()
    assert "# faults so far: FaultPlan(\n    on('ack', 1, LoseAck()),\n)" in out.getvalue()
    assert program_in(out.getvalue()).rstrip() == machine.program()


# --------------------------------------------------------------------- programs of simulations


def test_a_simulation_is_told_as_code() -> None:
    plan = FaultPlan(on("ack", 2, LoseAck()), at(3.0, LoseAck()))
    sim = Simulation(LEDGER, Entry, plan=plan, options={"max_retries": 1}, only="OL", revive=True)
    with sim:
        name = sim.start_process()
        sim.publish(3, keys=2, script=("retry", "ack"), every=1)
        sim.publish_again()
        sim.kill_process(name)
        sim.deliver(2, within_s=7.5)
        sim.fault(LoseAck(), event="nak")
        sim.stop_process(sim.alive[0], hard=True)
        sim.finish()
    assert sim.program() == (
        "with Simulation(topic, make, options=options, "
        "plan=FaultPlan(on('ack', 2, LoseAck()), at(3.0, LoseAck())), "
        "only='OL', revive=True) as sim:\n"
        "    sim.start_process()\n"
        "    sim.publish(3, keys=2, script=('retry', 'ack'))\n"
        "    sim.publish_again()\n"
        "    sim.kill_process('worker-1')\n"
        "    sim.deliver(2, within_s=7.5)\n"
        "    sim.fault(LoseAck(), event='nak')\n"
        "    sim.stop_process('worker-2', hard=True)\n"
        "    sim.finish()"
    )
    names: dict[str, Any] = {**vars(shove_actors.testing), "topic": LEDGER, "make": Entry}
    names["options"] = {"max_retries": 1}
    exec(sim.program(), names)
    again = names["sim"]
    assert again.program() == sim.program()
    assert again.history.to_lines() == sim.history.to_lines()


def test_nothing_done_is_a_program_too() -> None:
    sim = Simulation(LEDGER, Entry)
    assert sim.program() == "with Simulation(topic, make) as sim:\n    pass"


@pytest.mark.parametrize(
    ("rates", "code"),
    [
        (Rates(), "Rates()"),
        (Rates.only(), "Rates.only()"),
        (Rates(crash=0.5), "Rates(crash=0.5)"),
        (Rates.only(crash=0.5, longest_s=9.0), "Rates.only(crash=0.5, longest_s=9.0)"),
        (Rates.only(lose_ack=0.01).for_batches(5), "Rates.only(lose_ack=0.2)"),
    ],
)
def test_rates_and_drawn_plans_print_as_the_code_that_makes_them(rates: Rates, code: str) -> None:
    assert repr(rates) == pretty(rates) == code
    assert eval(code) == rates
    plan = FaultPlan.seeded(7, rates, for_s=60.0, spare=["w"])
    assert plan.source == f"FaultPlan.seeded(7, {code}, for_s=60.0, spare=['w'])"
