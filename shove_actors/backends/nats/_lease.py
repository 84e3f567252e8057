"""A delivery's lease: for how long the server gives the message to nobody else.

`Delivery.leased_at` moves on only once the server has *confirmed* a renewal, and then to when the
renewal was sent: earlier than the server's own idea of it, never later. A renewal whose answer is
lost leaves the lease running on unrenewed.
"""

from __future__ import annotations

import trio

from shove_actors.backends._delivery import Delivery
from shove_actors.jetstream import Connection, pub, status_of


def renew(conn: Connection, delivery: Delivery) -> None:
    """Ask for the whole lease again, unless that is under way already."""
    now = trio.current_time()
    if delivery.renewing is not None or delivery.settled or not conn.connected:
        return
    delivery.renewing = now
    confirm = conn.replies.expect(_renewed, (delivery, now))
    conn.write(pub(delivery.reply, confirm, b"+WPI"))


def _renewed(argument: object, header_block: bytes | None, payload: bytes | Exception) -> None:
    assert isinstance(argument, tuple)
    # Each answer counts from its own request: a late one says nothing about the request after it.
    delivery, sent_at = argument
    assert isinstance(delivery, Delivery)
    if delivery.renewing == sent_at:
        delivery.renewing = None
    if isinstance(payload, Exception) or (not payload and status_of(header_block)):
        return  # lost on the way, or the durable is gone (503): the lease runs on unrenewed
    delivery.leased_at = max(delivery.leased_at, sent_at)
