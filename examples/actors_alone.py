# runnable
"""Supervised actors without any messaging: a counter that crashes, and is back.

python examples/actors_alone.py
"""

from __future__ import annotations

import trio

from shove_actors import actors


async def counter(ctx: actors.Context[str]) -> None:
    """Counts words; dies of one of them. Its mailbox and its address survive it."""
    ctx.started()
    count = 0
    async for word in ctx:
        if word == "poison":
            raise ValueError("a word that I cannot count")
        count += 1
        ctx.reply(count)


def show(node: actors.TreeNode, depth: int = 0) -> None:
    print(f"{'  ' * depth}{node.name}: {node.state.value}, restarts {node.restarts}")
    for child in node.children:
        show(child, depth + 1)


async def main() -> None:
    spec = actors.ChildSpec(
        id="counter",
        start=counter,
        backoff=actors.Backoff(initial_s=0.05, max_s=1.0, jitter=0.2, reset_after_s=10.0),
    )
    budget = actors.Intensity(max_restarts=3, period_s=60)
    async with actors.open_actor_system(children=[spec], intensity=budget) as system:
        ref = system.ref("counter")
        print("first answer:", await ref.ask("hello", timeout=1))
        try:
            await ref.ask("poison", timeout=1)
        except actors.ActorGone as gone:
            print("it died of it:", gone.__cause__)
        print("next incarnation:", await ref.ask("hello again", timeout=1))
        show(system.snapshot())


if __name__ == "__main__":
    trio.run(main)
