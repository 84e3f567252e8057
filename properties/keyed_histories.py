"""Histories of owners from a seed: many thousands a minute, for planted defects and long searches.

python properties/keyed_histories.py 10000
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

from keyed_model import World
from keyed_server import LEASE_S

from shove_actors.backends._ownership import Ownership, Step

STEPS = 60


def history(seed: int, kind: Callable[[str, float], Ownership] = Ownership) -> World:
    """One history, to its end. Raises `AssertionError` for what may never be seen."""
    rng = random.Random(seed)
    world = World(rng.choice((2, 3)), kind, leases=rng.choice(LEASES))
    for _ in range(STEPS):
        _step(world, rng)
    for process in world.processes:
        process.own.want()
    world.settle()
    return world


def _step(world: World, rng: random.Random) -> None:
    process = rng.choice(world.processes)
    what = rng.choices(range(len(WEIGHTS)), WEIGHTS)[0]
    maybe = rng.random() < 0.5
    if what == 0:
        for _ in range(rng.randrange(1, 4)):
            world.publish(rng.choice("abc"))
    elif what == 1:
        world.run(rng.choice((0.5, 1.0, 3.0, 6.0, 9.0)), start=rng.random() < 0.8, end=maybe)
    elif what == 2:
        world.advance(rng.choice((0.25, 1.0, 2.0, 4.0, 9.0)))
    elif what == 3:
        process.step()
        world.to_server(process, rng.randrange(10))
        world.from_server(process, rng.randrange(10))
    elif what == 4:
        process.start()
    elif what == 5:
        process.end(rng.randrange(3), acknowledged=rng.random() < 0.7)
    elif what == 6:
        world.freeze(process)
    elif what == 7:
        world.thaw(process)
    elif what == 8:
        world.cut(process, rest_is_read=maybe)
    elif what == 9:
        world.connect(process)
    elif what == 10:
        world.read_late()
    elif what == 11:
        world.kill(process)
    elif what == 12:
        world.restart_server(forgets=maybe)
    elif what == 13:
        world.server.write_down()
    elif what == 14:
        world.unpin()
    elif what == 15:
        world.rewind()
    elif what == 16:
        process.own.leave()
    elif what == 17:
        process.own.want()
    elif what == 18:
        seconds = rng.choice((1.0, 3.0, 6.0, 9.0, 13.0))
        world.cut_off(seconds, unpin=maybe, rest_is_read=rng.random() < 0.5, end=rng.random() < 0.3)
    elif what == 19:
        world.frozen(rng.choice((3.0, 6.0, 9.0, 13.0, 18.0)), unpin=maybe)
    elif what == 20:
        world.pin_moves(rng.choice((0.5, 2.0, 6.0)))
    elif what == 21:
        world.late_answer(rng.choice((1.0, 3.0, 4.5)), rng.choice((6.0, 9.0, 12.0)))
    elif what == 22:
        world.ask_and_be_cut(process, rng.choice(list(Step)), rest_is_read=maybe)
    elif what == 23:
        ends = [rng.randrange(3) for _ in range(rng.randrange(1, 7))]
        rewound = rng.choice(("by us", "by somebody", "not"))
        unpin = rng.random() < 0.4
        world.ends_under_way(rng.randrange(4), rewound=rewound, unpin=unpin, ends=ends)
    elif what == 24:
        world.lose_delivery(process)
    elif what == 25:
        world.lose_record(marked=maybe)
    elif what == 26:
        world.recreate()
    else:
        world.lost_while_cut_off(rng.choice((1.0, 6.0)), marked=maybe)


#: How often each thing happens, in the order of `_step`.
WEIGHTS = (12, 18, 10, 10, 10, 8, 4, 5, 3, 7, 3, 2, 2, 2, 2, 1, 1, 2, 2, 1, 1, 1, 2, 2, 1, 1, 1, 1)
#: Of the processes, in turn.
LEASES = ((LEASE_S,), (LEASE_S, LEASE_S / 2))


def main(count: int) -> int:
    failed = 0
    for seed in range(count):
        try:
            history(seed)
        except AssertionError as exc:
            failed += 1
            print(f"seed {seed}: {exc}")
    print(f"{failed} of {count} histories failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
