# runnable
"""A load test from a program: the tiers of `shove-actors stress`, and a bound that must hold.

    pip install 'shove-actors[cli,server]'
    python examples/stress.py                  # a small one
    python examples/stress.py --tier moderate  # what the source system calls so; minutes

By hand, with all its options: `shove-actors stress --tier high --handler fast --prefetch 50`. Both
run on a nats-server of their own, or on that of $NATS_URL.
"""

from __future__ import annotations

import json
import sys

import trio

SMALL = ("--handler", "zero", "--handler", "fast", "--messages", "400", "--seconds", "30")
#: Of a service that has to keep up with so many a second. Far below what two busy cores do.
LEAST_PER_SECOND = 20


async def main(arguments: list[str]) -> int:
    options = arguments or [*SMALL, "--consumers", "1", "--consumers", "4"]
    command = [sys.executable, "-m", "shove_actors", "stress", "--json", *options]
    done = await trio.run_process(command, capture_stdout=True)
    slow = 0
    for cell in json.loads(done.stdout)["cells"]:
        enough = cell["per_second"] >= LEAST_PER_SECOND
        slow += not enough
        print(
            f"{cell['handler']}, consumers {cell['consumers']}, prefetch {cell['prefetch']}: "
            f"{cell['handled']:,} of {cell['messages']:,}, "
            f"at least {LEAST_PER_SECOND} a second: {enough}"
        )
        # For people, so on the other stream: numbers of a busy machine compare with nothing.
        print(
            f"  {cell['per_second']:,.0f} a second; end to end "
            + ", ".join(f"{name} {1000 * s:,.0f} ms" for name, s in cell["end_to_end"].items()),
            file=sys.stderr,
        )
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(trio.run(main, sys.argv[1:]))
