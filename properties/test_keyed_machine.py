"""(K): at most one handler per key, and the order of each key, in every history of owners.

Two or three processes share a shard: pins that move, lapses, rewinds, restarts that forget, frozen
and killed processes, connections that are cut, settles and writes that the server reads late,
records that are lost, and streams that are made anew. Leases differ. In the end everything is
settled.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from keyed_histories import LEASES
from keyed_model import World

from shove_actors.backends._ownership import Step

_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "dev")
EXAMPLES = {"dev": 40, "ci": 400, "deep": 6000}[_PROFILE]

WHO = st.integers(0, 2)


class KeyedMachine(RuleBasedStateMachine):
    @initialize(
        processes=st.integers(2, 3),
        first=st.lists(st.sampled_from("abc"), max_size=6),
        leases=st.sampled_from(LEASES),
    )
    def begin(self, processes: int, first: list[str], leases: Sequence[float]) -> None:
        self.world = World(processes, leases=leases)
        for key in first:
            self.world.publish(key)

    def _who(self, who: int) -> int:
        return who % len(self.world.processes)

    @rule(keys=st.text("abc", min_size=1, max_size=4))
    def publish(self, keys: str) -> None:
        for key in keys:
            self.world.publish(key)

    @rule(seconds=st.sampled_from([0.5, 3.0, 6.0, 9.0]), start=st.booleans(), end=st.booleans())
    def run(self, seconds: float, start: bool, end: bool) -> None:
        self.world.run(seconds, start=start, end=end)

    @rule(
        seconds=st.sampled_from([1.0, 3.0, 6.0, 9.0, 13.0]),
        unpin=st.booleans(),
        rest_is_read=st.booleans(),
        end=st.booleans(),
    )
    def owner_is_cut_off(self, seconds: float, unpin: bool, rest_is_read: bool, end: bool) -> None:
        self.world.cut_off(seconds, unpin=unpin, rest_is_read=rest_is_read, end=end)

    @rule(seconds=st.sampled_from([3.0, 6.0, 9.0, 13.0, 18.0]), unpin=st.booleans())
    def owner_is_frozen(self, seconds: float, unpin: bool) -> None:
        self.world.frozen(seconds, unpin=unpin)

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0]))
    def pin_moves(self, seconds: float) -> None:
        self.world.pin_moves(seconds)

    @rule(seconds=st.sampled_from([1.0, 3.0, 4.5]), after=st.sampled_from([6.0, 9.0, 12.0]))
    def late_answer(self, seconds: float, after: float) -> None:
        self.world.late_answer(seconds, after)

    @rule(who=WHO, step=st.sampled_from(Step), rest_is_read=st.booleans())
    def ask_and_be_cut(self, who: int, step: Step, rest_is_read: bool) -> None:
        process = self.world.processes[self._who(who)]
        self.world.ask_and_be_cut(process, step, rest_is_read=rest_is_read)

    @rule(
        exchanged=st.integers(0, 3),
        rewound=st.sampled_from(["by us", "by somebody", "not"]),
        unpin=st.booleans(),
        ends=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    )
    def ends_under_way(self, exchanged: int, rewound: str, unpin: bool, ends: list[int]) -> None:
        self.world.ends_under_way(exchanged, rewound=rewound, unpin=unpin, ends=ends)

    @rule(who=WHO)
    def lose_delivery(self, who: int) -> None:
        self.world.lose_delivery(self.world.processes[self._who(who)])

    @rule(seconds=st.sampled_from([0.25, 1.0, 2.0, 4.0, 9.0]))
    def nothing_moves(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule(who=WHO, out=st.integers(0, 9), back=st.integers(0, 9))
    def exchange(self, who: int, out: int, back: int) -> None:
        process = self.world.processes[self._who(who)]
        process.step()
        self.world.to_server(process, out)
        self.world.from_server(process, back)

    @rule(who=WHO)
    def start(self, who: int) -> None:
        self.world.processes[self._who(who)].start()

    @rule(who=WHO, which=st.integers(0, 2), acknowledged=st.booleans())
    def end(self, who: int, which: int, acknowledged: bool) -> None:
        self.world.processes[self._who(who)].end(which, acknowledged=acknowledged)

    @rule(who=WHO)
    def freeze(self, who: int) -> None:
        self.world.freeze(self.world.processes[self._who(who)])

    @rule(who=WHO)
    def thaw(self, who: int) -> None:
        self.world.thaw(self.world.processes[self._who(who)])

    @rule(who=WHO, rest_is_read=st.booleans())
    def cut(self, who: int, rest_is_read: bool) -> None:
        self.world.cut(self.world.processes[self._who(who)], rest_is_read=rest_is_read)

    @rule(who=WHO)
    def connect(self, who: int) -> None:
        self.world.connect(self.world.processes[self._who(who)])

    @rule(most=st.integers(1, 5))
    def read_late(self, most: int) -> None:
        for _ in range(most):
            self.world.read_late()

    @rule(who=WHO)
    def kill(self, who: int) -> None:
        self.world.kill(self.world.processes[self._who(who)])

    @rule(forgets=st.booleans())
    def restart_server(self, forgets: bool) -> None:
        self.world.restart_server(forgets=forgets)

    @rule()
    def write_down(self) -> None:
        self.world.server.write_down()

    @rule()
    def unpin(self) -> None:
        self.world.unpin()

    @rule()
    def rewind(self) -> None:
        self.world.rewind()

    @rule(marked=st.booleans())
    def lose_record(self, marked: bool) -> None:
        self.world.lose_record(marked=marked)

    @rule(seconds=st.sampled_from([1.0, 6.0]), marked=st.booleans())
    def lost_while_cut_off(self, seconds: float, marked: bool) -> None:
        self.world.lost_while_cut_off(seconds, marked=marked)

    @rule()
    def recreate(self) -> None:
        self.world.recreate()

    @rule(who=WHO)
    def leave(self, who: int) -> None:
        self.world.processes[self._who(who)].own.leave()

    @rule(who=WHO)
    def want(self, who: int) -> None:
        self.world.processes[self._who(who)].own.want()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            for process in self.world.processes:
                process.own.want()
            self.world.settle()


TestKeyedMachine = KeyedMachine.TestCase
TestKeyedMachine.settings = settings(max_examples=EXAMPLES, stateful_step_count=50, deadline=None)
