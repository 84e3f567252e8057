"""The picture of the messaging system's tree in the documentation is the one the code draws.

`python -m tests.docs.test_tree_picture` writes it into the page.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import trio

from shove_actors import (
    MemoryConfig,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    open_broker,
)
from shove_actors.cli._render import rule_lines
from shove_actors.runtime._tree import RuleNode, rules

PAGE = Path(__file__).resolve().parents[2] / "docs" / "actors-operating.md"
BLOCK = re.compile(r"(<!-- tree: .*? -->\n```text\n)(.*?)(```\n)", re.DOTALL)
ORDERS = Topic(bytes, TopologyBuilder("orders").hold_queue(5).dlq().build())
LEDGER = SequencedTopic(
    bytes,
    key=lambda entry: entry.decode(),
    topology=TopologyBuilder("ledger")
    .sequenced(SequenceFailure.SKIP)
    .routing_shards(2)
    .hold_queue(5)
    .dlq()
    .build(),
)


async def handle(message: bytes) -> Outcome:
    return Outcome.ACK


async def tree() -> RuleNode:
    """The tree of a broker in memory with one group."""
    async with open_broker(MemoryConfig()) as broker, trio.open_nursery() as nursery:
        await broker.declare(ORDERS, LEDGER)
        group = broker.consumer_group()
        group.register(ORDERS, handle)
        group.register(LEDGER, handle)
        group.register_dlq(ORDERS, handle)
        await nursery.start(group.serve)
        root = rules(broker)
        group.stop()
    return first_group(root)


async def draw() -> str:
    return "".join(f"{line}\n" for line in rule_lines(await tree()))


def first_group(node: RuleNode) -> RuleNode:
    """How many groups this process has had before does not belong into the picture."""
    name = re.sub(r"^group-\d+$", "group-1", node.name)
    return replace(node, name=name, children=tuple(map(first_group, node.children)))


async def test_the_page_shows_the_tree_that_the_code_builds() -> None:
    match = BLOCK.search(PAGE.read_text(encoding="utf-8"))
    assert match is not None
    picture = await draw()
    assert match[2] == picture, "python -m tests.docs.test_tree_picture writes it"


if __name__ == "__main__":
    new = trio.run(draw)
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(lambda m: m[1] + new + m[3], text), encoding="utf-8")
