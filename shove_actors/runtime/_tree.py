"""The supervision tree of one broker, in one function, with the reason for every number.

    system (rest_for_one, budget 0)                     fails -> the face raises
    ├─ bridge       the backend's connection
    └─ services     (one_for_one, 5 in 30 s)
       ├─ publisher
       ├─ movers    pool of hold movers
       ├─ leases
       └─ groups    pool of consumer groups

Order is start order; stopping is the reverse, so groups drain while everything they need still
runs, and the bridge leaves last.
"""

from __future__ import annotations

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
    Shutdown,
    Strategy,
    supervisor,
)
from shove_actors.backends import Post

if TYPE_CHECKING:
    from ._broker import Broker

#: A reconnect is not a crash: the connection repairs itself, for ever or up to the user's
#: `max_reconnect_attempts`. A bridge that *ends* has given up, so restarting it would only hide
#: that; its failure is the application's.
ROOT_BUDGET = Intensity(max_restarts=0, period_s=60.0)
#: These crash only by a bug. Enough restarts to outlive a rare one, few enough to notice a loop;
#: the short backoff keeps five crashes from being spent within a millisecond.
SERVICES_BUDGET = Intensity(max_restarts=5, period_s=30.0)
SERVICES_BACKOFF = Backoff(initial_s=0.1, max_s=2.0, jitter=0.2, reset_after_s=30.0)
#: Flush and goodbye are bounded by two seconds themselves; this is the net below.
BRIDGE_GRACE_S = 5.0
#: The publisher drains: what was accepted is acknowledged or reported.
PUBLISHER_GRACE_S = 10.0
#: A mover gives its lane back; nothing of it is worth waiting for longer.
MOVER_GRACE_S = 5.0


def build_tree(broker: Broker) -> list[ChildSpec]:
    """The children of the root, in start order."""

    async def bridge(ctx: Context[None]) -> None:
        await broker.run_backend(ctx)

    async def publisher(ctx: Context[Post]) -> None:
        broker.publish_service.attach(ctx.self_ref)
        await broker.publish_service.run(ctx)

    return [
        ChildSpec(id="bridge", start=bridge, shutdown=Shutdown.within(BRIDGE_GRACE_S)),
        supervisor(
            id="services",
            strategy=Strategy.ONE_FOR_ONE,
            intensity=SERVICES_BUDGET,
            children=[
                ChildSpec(
                    id="publisher",
                    start=publisher,
                    shutdown=Shutdown.within(PUBLISHER_GRACE_S),
                    # Room for everything that may be under way, so a submit never fails.
                    mailbox=MailboxSpec(
                        capacity=broker.publish_service.window.limit + 1,
                        on_restart=OnRestart.KEEP,
                        on_stop=OnStop.DRAIN,
                    ),
                    backoff=SERVICES_BACKOFF,
                ),
                broker.movers.spec(id="movers", backoff=SERVICES_BACKOFF),
                ChildSpec(
                    id="leases",
                    start=broker.leases.run,
                    shutdown=Shutdown.within(1.0),
                    backoff=SERVICES_BACKOFF,
                ),
                broker.groups.spec(id="groups", backoff=SERVICES_BACKOFF),
            ],
        ),
    ]


def movers_pool() -> DynamicSupervisor:
    # For ever, paced by each mover's own backoff: a pool that gave up would come back empty, and
    # nobody misses a mover until its messages do not return.
    return DynamicSupervisor(
        intensity=Intensity(max_restarts=None, period_s=30.0), stop_grace_s=MOVER_GRACE_S
    )


def groups_pool() -> DynamicSupervisor:
    # Groups are temporary children with budgets of their own: the pool never restarts one.
    return DynamicSupervisor(intensity=Intensity(max_restarts=3, period_s=60.0))
