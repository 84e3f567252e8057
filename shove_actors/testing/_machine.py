"""The machine: Hypothesis decides what happens to the consumers of a topic.

    class TestLedger(MessagingMachine):
        topic = LEDGER

        def make(self, number: int, key: str) -> Entry:
            return Entry(account_id=key, amount=number)

    TestLedgerMachine = TestLedger.TestCase

After every step the invariants hold (`check_history`), and in the end, when nothing is made to go
wrong any more, everything is settled and every process ends. A failing example prints as the steps
that led to it; the faults that the drawn plan has added are in its message (`faults=0` in the first
step says that there are none), and so is a program that does the same without Hypothesis.

What Hypothesis draws is coarse on purpose: a batch, how its handlers behave, a fault, some time.
Single deliveries are the runtime's business, and a step has hundreds of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from shove_actors._errors import UsageError
from shove_actors.backends.memory import FaultEvent
from shove_actors.messaging import SequencedTopic, Topic
from shove_actors.runtime._checks import check_whole

from ._fault_kinds import Crash, Disconnect, Fault, RestartServer, Slow, Stall, StreamFull
from ._faults import FaultPlan
from ._given import check_kind, check_moves
from ._given_handler import check_options, simulated
from ._moves import Move
from ._simulation import ACK_WAIT_S, PUBLISHER, Simulation

try:
    from hypothesis import currently_in_test_context, note
    from hypothesis import strategies as st
    from hypothesis.stateful import (
        RuleBasedStateMachine,
        initialize,
        precondition,
        rule,
    )
except ImportError as exc:
    raise UsageError(
        "a MessagingMachine needs Hypothesis: pip install 'shove-actors[test]'"
    ) from exc

from . import _strategies as own

_QUICK = frozenset(own.QUICK_MOVES)
#: What holds up nobody behind it, where each message waits for the one before it.
_AT_ONCE = frozenset({"ack", "reject"})
_SLOW_ONES = 10
#: Moves that are still being made when something happens.
_LONG: tuple[Move, ...] = ("hang", "linger", "long")
#: What can happen to a process in the middle of a handler, by how a failing example tells it.
_HARM: dict[str, Callable[[str], tuple[Fault, ...]]] = {
    "cut off": lambda name: (Disconnect(name, 20.0),),
    # What it sends at the end of its lease arrives while the next one is at it.
    "silent": lambda name: (Stall(name, 11.0),),
    "its server killed": lambda name: (RestartServer(),),
    "cut off, its server killed": lambda name: (Disconnect(name, 5.0), RestartServer()),
}
#: Of one lane: a second or more of virtual time each, one after the other.
_WAITING_ONES = 20
#: Of a batch: how much of the largest one, over how many keys, and which of it have a script.
_SHARES = st.sampled_from([0.0, 0.1, 1.0, 1.0])
_KEYS = st.sampled_from([1, 3, 40])
_EVERY = st.sampled_from([1, 10, 50, 200])
_HIT: dict[str, Any] = {
    "quick": st.integers(0, 3),
    "slow": st.sampled_from([1, 6]),
    "move": st.sampled_from(_LONG),
    "after": st.sampled_from([0.0, 0.05, 1.5, 5.0]),
    "harm": st.sampled_from(list(_HARM)),
    "which": st.integers(0, 2),
    "then": st.sampled_from([0.0, 1.0, 12.0]),
}
_TIMES = st.sampled_from([2, 5])
_LAST: dict[str, Any] = {
    "count": st.integers(1, 3),
    "event": st.sampled_from(["ack", "nak"]),
    "arrives": st.booleans(),
    "then": st.sampled_from([1.0, 3.0, 12.0]),
}
_DRAIN: dict[str, Any] = {"count": st.integers(1, 4), "then": st.sampled_from([0.0, 1.5])}
_FULL: dict[str, Any] = {
    "which": st.integers(0, 2),
    "for_s": st.sampled_from([2.0, 5.0]),
    "then": st.sampled_from([0.5, 3.0]),
}
_POISON: dict[str, Any] = {"how": st.sampled_from(["released", "released", "hidden"])}
#: Keys of few other messages: a replay stops at one like this.
_FOREIGN: dict[str, Any] = {
    "which": st.integers(0, 2),
    "key": st.sampled_from(["k9", "other"]),
}
#: What an example begins with, besides nothing, and how likely.
_FIRST = st.sampled_from(
    ["", *["calm"] * 3, *["hit"] * 2, "kills", "last", *["drain"] * 2, "full", *["poison"] * 3]
)


class MessagingMachine(RuleBasedStateMachine):
    """Subclass it, with a `topic` and `make`; run its `TestCase`.

    `handler`: yours, if it is to be part of it (a plain method here); otherwise messages are
    acknowledged. The scripts that the machine draws come first. `options` go to `group.register`.
    `batch`: the most messages of one step. `most_processes`: at a time. `only`: the letters of the
    invariants to check. `moves`: what the scripts are made of. `rates`: drawn for each example.
    """

    topic: ClassVar[Topic[Any]]
    handler: ClassVar[Callable[..., Any] | None] = None
    options: ClassVar[dict[str, Any]] = {}
    batch: ClassVar[int] = 400
    most_processes: ClassVar[int] = 3
    only: ClassVar[str] = "OILBPT"
    moves: ClassVar[tuple[Move, ...]] = own.ALL_MOVES
    sim: Simulation[Any]

    def make(self, number: int, key: str) -> Any:
        """A message; `key` is what a sequenced topic's key function shall return for it."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        if not isinstance(getattr(type(self), "topic", None), Topic):
            raise UsageError(f"{type(self).__name__} needs a class attribute `topic`")
        if type(self).make is MessagingMachine.make:
            raise UsageError(
                f"{type(self).__name__} needs a method `make(self, number, key)` that returns a "
                "message of its topic"
            )
        if self.handler is not None:
            simulated(self.handler, self.topic)
        check_kind(self.options, "options", Mapping, "a dict of what group.register takes")
        check_options(self.topic, self.options)
        check_whole(self.batch, "batch", least=1)
        check_whole(self.most_processes, "most_processes", least=1)
        check_moves(self.moves, "moves")
        if not self.moves:
            raise UsageError("moves is empty: give at least ('ack',)")
        self._operator = False
        self._released = 0
        #: Whoever makes the machine may be dealing with an exception of his own.
        self._before = sys.exc_info()[1]

    def _do(self, name: str, *args: Any, **options: Any) -> Any:
        done = getattr(self.sim, name)(*args, **options)
        if self._operator and name in ("advance", "deliver") and self.sim.poisoned:
            keys = self.sim.poisoned
            # In turn: the replay of one may stop at the same message each time.
            self._released += 1
            self.sim.release(keys[self._released % len(keys)])
        return done

    # --------------------------------------------------------------------------- rules

    @initialize(
        data=st.data(),
        share=_SHARES,
        keys=_KEYS,
        every=_EVERY,
        processes=st.integers(1, 3),
        faults=st.integers(0, 1 << 16),
        rates=own.rates(),
        replays=st.booleans(),
        revive=st.booleans(),
        operator=st.booleans(),
        first=_FIRST,
        phase=st.sampled_from([0.0, 0.3, 0.6]),
    )
    def begin(
        self,
        data: st.DataObject,
        share: float,
        keys: int,
        every: int,
        processes: int,
        faults: int,
        rates: Any,
        replays: bool,
        revive: bool,
        operator: bool,
        first: str,
        phase: float,
    ) -> None:
        """`faults`: the seed of what goes wrong by itself; 0 for nothing. `replays` and `revive`:
        see `Simulation`. `operator`: somebody releases keys that are poisoned, one after each step
        in which time passes. `first`: what happens first, `phase` seconds later, while nothing
        waits: retries and handlers that outlast their leases, or what a rule tells. A batch is
        published at once: with rules left out at random, as Hypothesis does it, every second
        example would have nothing to handle otherwise.
        """
        rates = rates.for_batches(self.batch)
        plan = FaultPlan.seeded(faults, rates, spare=[PUBLISHER]) if faults else FaultPlan()
        self.sim = Simulation(
            self.topic,
            self.make,
            handler=self.handler,
            plan=plan,
            options=self.options,
            only=self.only,
            replays=replays,
            revive=revive,
        )
        self._operator = operator and self.sim.rules.fail_all
        self._do("open")
        for _ in range(min(processes, self.most_processes)):
            self._do("start_process")
        self._do("advance", phase)
        if first == "calm":
            # What only shows as long as nothing has gone wrong.
            self._do("publish", 3, keys=3, script=("long",) if "long" in self.moves else ())
            self._do("advance", 12.0)
            self._do("publish", 3, keys=3, script=("retry",) * 3 if "retry" in self.moves else ())
            self._do("advance", 7.0)
        elif first == "hit":
            self._hit(**data.draw(st.fixed_dictionaries(_HIT), label="busy_process_is_hit"))
        elif first == "kills":
            self.message_kills(data.draw(_TIMES, label="message_kills"))
        elif first == "last":
            self._last(**data.draw(st.fixed_dictionaries(_LAST), label="settle_is_the_last"))
        elif first == "drain":
            self._drain(**data.draw(st.fixed_dictionaries(_DRAIN), label="busy_process_drains"))
        elif first == "poison" and self.sim.rules.fail_all:
            self._poison(**data.draw(st.fixed_dictionaries(_POISON), label="key_is_poisoned"))
        elif first in ("full", "poison"):
            self._full(**data.draw(st.fixed_dictionaries(_FULL), label="copy_has_no_room"))
        self._publish(data, share, keys, every)

    @rule(data=st.data(), share=_SHARES, keys=_KEYS, every=_EVERY, then=own.seconds())
    def publish(
        self, data: st.DataObject, share: float, keys: int, every: int, then: float
    ) -> None:
        """`then`: how much time passes after it."""
        self._publish(data, share, keys, every)
        self._do("advance", then)

    def _publish(self, data: st.DataObject, share: float, keys: int, every: int) -> None:
        count = max(1, round(self.batch * share))
        script = data.draw(own.scripts(moves=self.moves), label="script")
        if not _QUICK.issuperset(script):
            # Half a minute of virtual time each: a few show what hundreds would.
            every = max(every, count // _SLOW_ONES)
        elif isinstance(self.topic, SequencedTopic) and not _AT_ONCE.issuperset(script):
            lanes = min(keys, self.topic.topology.routing_shards or 1)
            every = max(every, count // (lanes * _WAITING_ONES))
        self._do("publish", count, keys=keys, script=script, every=every)

    @rule(**_FOREIGN)
    def publish_foreign(self, which: int, key: str) -> None:
        """What nobody can decode, is too large, or has headers that are not its own."""
        kinds = self.sim.foreign_kinds
        self._do("publish_foreign", kinds[which % len(kinds)], key=key)

    @rule(back=st.integers(1, 5))
    def publish_again(self, back: int) -> None:
        self._do("publish_again", back)

    @rule(seconds=own.seconds())
    def time_passes(self, seconds: float) -> None:
        self._do("advance", seconds)

    @rule(share=st.sampled_from([0.01, 0.1, 1.0]))
    def deliver(self, share: float) -> None:
        self._do("deliver", max(1, round(self.batch * share)), within_s=20.0)

    @rule(
        fault=own.faults(crash=False, processes=(PUBLISHER,)),
        which=st.integers(0, 2),
        then=own.seconds(),
    )
    def goes_wrong(self, fault: Fault, which: int, then: float) -> None:
        """What is not said to happen to anybody happens to a consumer."""
        alive = self.sim.alive
        if isinstance(fault, (Disconnect, Slow, Stall)) and fault.process is None and alive:
            fault = replace(fault, process=alive[which % len(alive)])
        self._do("fault", fault)
        self._do("advance", then)

    @precondition(lambda self: self.sim.alive)
    @rule(which=st.integers(0, 2))
    def kill(self, which: int) -> None:
        self._do("fault", Crash(self.sim.alive[which % len(self.sim.alive)]))

    @rule(**_HIT)
    def busy_process_is_hit(self, **how: Any) -> None:
        """In the middle of a handler, or right as it begins, with messages behind that one and
        another process to take them. `quick` and `slow`: what is published for it, of one key.
        """
        self._hit(**how)

    def _hit(
        self, quick: int, slow: int, move: Move, after: float, harm: str, which: int, then: float
    ) -> None:
        self._two_processes()
        if quick:
            self._do("publish", quick)
        self._do("publish", slow, script=(move, move) if move in self.moves else ())
        self._do("advance", after)
        found = self.sim.busy or self.sim.alive
        if found:
            for fault in _HARM[harm](found[which % len(found)]):
                self._do("fault", fault)
        self._do("advance", then)

    @rule(times=_TIMES)
    def message_kills(self, times: int) -> None:
        """Whoever tries it, and there is always somebody else."""
        self._do("publish", 1, script=("die",) * times if "die" in self.moves else ())
        for _ in range(times):
            self._two_processes()
            # As long as its lease, and what the next one waits to be sure.
            self._do("advance", self.options.get("ack_wait", ACK_WAIT_S) + 1.0)
        if self.sim.rules.fail_all:
            self._do("publish", 1)  # of the same key

    @rule(**_LAST)
    def settle_is_the_last(self, **how: Any) -> None:
        """A process is killed as it acknowledges, or hands back for a retry."""
        self._last(**how)

    def _last(self, count: int, event: FaultEvent, arrives: bool, then: float) -> None:
        self._two_processes()
        self._do("fault", Crash(after=arrives), event=event)
        retried = event == "nak" and "retry" in self.moves
        self._do("publish", count, script=("retry",) if retried else ())
        self._do("advance", then)

    @rule(**_DRAIN)
    def busy_process_drains(self, **how: Any) -> None:
        """It is stopped in order, in the middle of a handler, with another one to go on."""
        self._drain(**how)

    def _drain(self, count: int, then: float) -> None:
        self._two_processes()
        self._do("publish", count, keys=4, script=("wait",) if "wait" in self.moves else ())
        self._do("advance", 0.3)
        found = self.sim.busy or self.sim.alive
        if found:
            self._do("stop_process", found[0])
        self._do("advance", then)

    @rule(**_FULL)
    def copy_has_no_room(self, **how: Any) -> None:
        """Of a message that is to be a dead letter, or to wait in a hold queue."""
        self._full(**how)

    def _full(self, which: int, for_s: float, then: float) -> None:
        topology = self.topic.topology
        places: list[tuple[str, Move]] = []
        if topology.dlq is not None:
            places.append((topology.dlq, "reject"))
        if not topology.sequenced:
            places += [(hold.name, "retry") for hold in topology.holds[:1]]
        places = [(stream, move) for stream, move in places if move in self.moves]
        if places:
            stream, move = places[which % len(places)]
            self._do("fault", StreamFull(stream, for_s))
            self._do("publish", 3, keys=3, script=(move,))
        self._do("advance", then)

    @precondition(lambda self: self.sim.rules.fail_all)
    @rule(**_POISON)
    def key_is_poisoned(self, **how: Any) -> None:
        """`released`: while its next message is a dead letter, too. Then it is as good as new; in
        between its dead letters are handled, where releases replay them. `hidden`: who gets the
        next message cannot find out that its key is poisoned.
        """
        self._poison(**how)

    def _poison(self, how: str) -> None:
        moves = ("reject", "retry", "retry")
        self._do("publish", 1, script=moves if set(moves).issubset(self.moves) else ())
        self._do("advance", 0.3)
        if how == "hidden":
            self._do("fault", Stall(for_s=8.0, direction="up"), event="deliver")
            self._do("publish", 1)
            self._do("advance", 9.0)
            return
        self._do("publish", 1)
        self._do("advance", 0.3)
        if "k0" in self.sim.poisoned:
            self._do("release", "k0")
        self._do("advance", 5.0 if self.sim.rules.replays else 0.5)
        self._do("publish", 1)
        self._do("advance", 0.3)

    def _two_processes(self) -> None:
        for _ in range(min(2, self.most_processes) - len(self.sim.alive)):
            self._do("start_process")

    @precondition(lambda self: len(self.sim.alive) < self.most_processes)
    @rule()
    def start_process(self) -> None:
        self._do("start_process")

    @precondition(lambda self: self.sim.alive)
    @rule(which=st.integers(0, 2), hard=st.booleans())
    def stop_process(self, which: int, hard: bool) -> None:
        self._do("stop_process", self.sim.alive[which % len(self.sim.alive)], hard=hard)

    @precondition(lambda self: self.sim.rules.fail_all and self.sim.poisoned)
    @rule(which=st.integers(0, 2))
    def release(self, which: int) -> None:
        keys = self.sim.poisoned
        self._do("release", keys[which % len(keys)])

    # ------------------------------------------------------------------------- the end

    def settled(self) -> None:
        """What has to hold in the end, besides the invariants; here, nothing. Yours to override."""

    def teardown(self) -> None:
        """Everything is settled, unless the example has failed already."""
        if not hasattr(self, "sim"):
            return
        # Hypothesis calls this in a `finally`: whatever has failed, a rule or an invariant, of the
        # user or of the machine, is on its way out. Nothing that comes of it may hide it.
        error = sys.exc_info()[1]
        if error is not None and error is not self._before:
            self._tell()
            self.sim.abandon()
            return
        try:
            # What it has in hand and what waits for it is for the others.
            for name in self.sim.alive[:1]:
                self._do("stop_process", name)
            self._do("finish")
            self.settled()
            self.sim.close()
        except BaseException:
            self._tell()
            self.sim.abandon()
            raise

    def _tell(self) -> None:
        """With a failing example, for whoever reads it."""
        say = note if currently_in_test_context() else print
        if self.sim.plan.happened:
            say(f"# faults so far: {self.sim.plan.program()}")
        say(f"# without Hypothesis:\n{self.program()}")

    def program(self) -> str:
        """What this example has done so far, as code that does it again without Hypothesis.

        Rules of your own are in it as far as they made `self.sim` do something.
        """
        lines = [f"machine = {type(self).__name__}()", self.sim.program("machine")]
        if self.sim._calls and self.sim._calls[-1][0] == "finish":
            lines.append("    machine.settled()")
        else:
            names = [each.function.__name__ for each in self.invariants]
            lines += [f"    machine.{name}()" for name in names]
        return "\n".join(lines)
