"""The supervision tree of one broker, in one function, with the reason for every number.

Order is start order; stopping is the reverse, so groups drain while everything they need still
runs, and the bridge leaves last. Groups and movers come at run time, into pools that are part of
the tree; what is inside a group is in `_group.py`. `rules` reads the whole of it back from a
running broker: it makes the picture in the documentation, and `shove-actors tree --rules`.

Where this is not the tree of the first design (section 5 of the actor semantics), and why:

- *The root has no restarts* (was 3 in 60 s), *the bridge no backoff* (was unlimited, 0.25 to 30 s).
  The connection inside the bridge repairs itself, for ever or up to the user's
  `max_reconnect_attempts`. So a bridge that ends has given up on purpose, and starting it again
  would only hide that from the application, whose failure it is.
- *The services stand beside each other* under one supervisor (were children of the root, after the
  bridge, each with 5 in 30 s). With rest_for_one over them a crash of the publisher would end every
  group: but groups belong to whoever called `serve`, who gets their outcome, so nobody could start
  them again. Nothing is gained either, because refs, mailboxes and the lanes known to the lease
  keeper all survive a crash. Their budget is shared: whichever crashes, it is a bug of ours.
- *Movers are a pool with unlimited restarts* (were static): hold queues are declared at run time,
  and what a mover crashes of is the network.
- *Groups have no restarts* (were 3 in 60 s): inside one, a pool of lanes that has used up its
  budget has tried often enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shove_actors.actors import (
    Backoff,
    ChildSpec,
    Context,
    DynamicSupervisor,
    Intensity,
    MailboxSpec,
    OnRestart,
    OnStop,
    Restart,
    Shutdown,
    Strategy,
    supervisor,
)
from shove_actors.actors._spec import PoolSpec, SupervisorSpec
from shove_actors.backends import Post

if TYPE_CHECKING:
    from shove_actors.actors._slot import Slot

    from ._broker import Broker

#: See above: what ends here is the application's business.
ROOT_BUDGET = Intensity(max_restarts=0, period_s=60.0)
#: A mover gives its lane back; nothing of it is worth waiting for longer.
MOVER_GRACE_S = 5.0
#: Short, because each of these has somebody waiting for it; not zero, because five crashes would
#: then be spent within a millisecond. The fifth in a row waits 1.6 s.
SERVICES_BACKOFF = Backoff(initial_s=0.1, max_s=2.0, jitter=0.2, reset_after_s=30.0)


def build_tree(broker: Broker) -> list[ChildSpec]:
    """The children of the root, in start order."""

    async def bridge(ctx: Context[None]) -> None:
        await broker.run_backend(ctx)

    async def publisher(ctx: Context[Post]) -> None:
        broker.publish_service.attach(ctx.self_ref)
        await broker.publish_service.run(ctx)

    return [
        ChildSpec(
            id="bridge",
            start=bridge,
            # Flush and goodbye are bounded by two seconds themselves; this is the net below.
            shutdown=Shutdown.within(5.0),
        ),
        supervisor(
            id="services",
            strategy=Strategy.ONE_FOR_ONE,
            # These crash only by a bug. Enough restarts to outlive a rare one, few enough to notice
            # a loop.
            intensity=Intensity(max_restarts=5, period_s=30.0),
            children=[
                ChildSpec(
                    id="publisher",
                    start=publisher,
                    # It drains: what was accepted is acknowledged or reported. As long as a publish
                    # may take by default.
                    shutdown=Shutdown.within(10.0),
                    mailbox=MailboxSpec(
                        # Room for everything that may be under way, so a submit never fails.
                        capacity=broker.publish_service.window.limit + 1,
                        # Each post has a deadline and a message id of its own: handing it over a
                        # second time after a crash stores nothing twice.
                        on_restart=OnRestart.KEEP,
                        on_stop=OnStop.DRAIN,
                    ),
                    backoff=SERVICES_BACKOFF,
                ),
                broker.movers.spec(id="movers", backoff=SERVICES_BACKOFF),
                ChildSpec(
                    id="leases",
                    start=broker.leases.run,
                    # It stops at once when asked: it waits for nothing but its own clock.
                    shutdown=Shutdown.within(1.0),
                    # While it is down no lease is renewed. Between the third of a lease at which it
                    # renews and the three quarters at which it gives up lie five twelfths: 0.4 s
                    # of a lease of one second.
                    backoff=Backoff(initial_s=0.05, max_s=0.25, jitter=0.2, reset_after_s=30.0),
                ),
                broker.groups.spec(id="groups", backoff=SERVICES_BACKOFF),
            ],
        ),
    ]


def movers_pool() -> DynamicSupervisor:
    """The pool of hold movers."""
    return DynamicSupervisor(
        # For ever, paced by each mover's own backoff: a pool that gave up would come back empty,
        # and nobody misses a mover until its messages do not return.
        intensity=Intensity(max_restarts=None, period_s=30.0),
        # One deadline for all of them, or a hundred hold queues would take a hundred times as long.
        stop_grace_s=MOVER_GRACE_S,
    )


def groups_pool() -> DynamicSupervisor:
    """The pool of consumer groups."""
    # Groups are temporary children with budgets of their own: the pool never restarts one, so its
    # budget is never touched. Nor has it a deadline: each group has its own, the drain timeout.
    return DynamicSupervisor(intensity=Intensity(max_restarts=0, period_s=60.0))


# --------------------------------------------------------------------------------- reading it back


@dataclass(frozen=True, kw_only=True)
class RuleNode:
    """One place in the tree, and in words how it is treated."""

    name: str
    rules: str
    children: tuple[RuleNode, ...]

    def walk(self) -> Iterator[RuleNode]:
        """This node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def rules(broker: Broker) -> RuleNode:
    """The tree of a running broker as its specs describe it. Reads only; never waits."""
    return _rules(broker.system._root)


def _rules(slot: Slot) -> RuleNode:
    return RuleNode(
        name=slot.spec.id,
        rules=", ".join(_describe(slot.spec, root=not slot.path)),
        children=tuple(_rules(child) for child in slot.children.values()),
    )


def _describe(spec: ChildSpec, *, root: bool) -> Iterator[str]:
    start = spec.start
    if isinstance(start, SupervisorSpec):
        yield start.strategy.value
        yield _budget(start.intensity)
    elif isinstance(start, PoolSpec):
        yield "pool"
        yield _budget(start.intensity)
        if start.stop_grace_s is not None:
            yield f"stops in {start.stop_grace_s:g} s"
    elif spec.shutdown == Shutdown.KILL:
        yield "no grace"
    else:
        yield f"grace {spec.shutdown.grace_s:g} s"
    if spec.restart is not Restart.PERMANENT and not root:
        yield spec.restart.value
    if spec.backoff is not None:
        yield f"backoff {spec.backoff.initial_s:g} to {spec.backoff.max_s:g} s"
    if spec.mailbox != MailboxSpec():
        mailbox = spec.mailbox
        drained = ", drained" if mailbox.on_stop is OnStop.DRAIN else ""
        yield f"mailbox {mailbox.capacity:,} ({mailbox.on_restart.value}{drained})"


def _budget(intensity: Intensity) -> str:
    if intensity.max_restarts is None:
        return "unlimited restarts"
    if intensity.max_restarts == 0:
        return "no restarts"
    return f"{intensity.max_restarts} restarts in {intensity.period_s:g} s"
