"""Every margin that keeps two handlers from having one message, in one place.

One clock decides: the server gives a delivered message to somebody else `ack_wait` after it sent
it, or after it last heard `+WPI` for it. Everything here is either a share of that lease or a
number of seconds that does not depend on it, and all of them are added up below.

                 0        1/3               3/4  10/12        0.95   1.0 x ack_wait
    lease        |---------|-----------------|----|-------------|------|
                 sent      renewed           handler cancelled  |      server may give it away
                           (and again, unless confirmed)        no settle is sent any more, and a
                                                                settle that is not proven to have
                                                                been read cuts the connection

    the last handler is cancelled at   CANCEL_SHARE + 1 / TICKS_PER_LEASE       = 0.833
    the age of a delivery is known to  READ_PAUSE_SHARE (at most READ_PAUSE_S)  + 0.050
    which leaves to unwind in          1 - 0.883                                = 0.117 x ack_wait

What the server has done by the time a *re*delivery on a shard is begun:

    it has read what was waiting in its sockets when it was resumed    STALE_ACK_GRACE_S

What has passed by the time a durable that was deleted is made anew, by a lane that knew it: every
lease of the old one if something is stored that it may have delivered, else DELETED_GRACE_S. The
deletion ends all leases at once, and on the server nothing is left of them; whoever is connected
hears of it and cancels its handler, but whoever is cut off only does at the end of its own lease.

Listed for operators in docs/operations.md, and tested in tests/durability/test_fencing.py.
"""

from __future__ import annotations

from typing import Final

# ------------------------------------------------------------------ shares of the lease

#: A lease is renewed when this much of it has passed: two more attempts fit before it is lost.
RENEW_SHARE: Final = 1 / 3
#: A renewal that is not confirmed is sent again after this much.
RESEND_SHARE: Final = 1 / 6
#: A handler whose lease could not be renewed is cancelled here, so that it has a quarter of the
#: lease, less what the two numbers below cost, to unwind before anybody else could start.
CANCEL_SHARE: Final = 3 / 4
#: How often the keeper looks: it may be late by one tick.
TICKS_PER_LEASE: Final = 12
#: A settle is sent only while this share has not passed: what is written now still has to reach
#: the server.
TRUST_SHARE: Final = 0.95
#: A delivery that may be older than this when it comes is not begun: the keeper would have to
#: cancel its handler right away.
STALE_SHARE: Final = 0.7

# ------------------------------------------------------------------ how old what we read may be

#: Reads closer together than this follow each other, and a stall shorter than this goes unnoticed,
#: so it is part of the margin of every lease: a share of the shortest one, at most a second.
READ_PAUSE_SHARE: Final = 0.05
READ_PAUSE_S: Final = 1.0
#: Something is to be heard of the server this often within a lease, or the age of the next delivery
#: is not known well enough to begin it. A pull's idle heartbeats serve for that ...
HEARTBEATS_PER_LEASE: Final = 4
#: ... but the server sends none more often than this. For shorter leases we ask (PING) ourselves.
HEARTBEAT_LEAST_S: Final = 0.5

# ------------------------------------------------------------------ numbers of seconds

#: A server that is stopped (SIGSTOP, a frozen machine) and resumed after the lease fires its timers
#: first and then reads what waits in its sockets: also the acknowledgement of the very message that
#: it has just given to somebody else. Whoever gets it waits this long, and asks whether it is still
#: theirs, before its handler starts. A resumed server reads its sockets within milliseconds; the
#: rest is for a machine under load. Only redeliveries on a shard pay it, and only those that no
#: failed attempt accounts for: a process died, was cut off, or drained.
STALE_ACK_GRACE_S: Final = 0.5
#: The same for a redelivery that a failed attempt accounts for. It was given back by a NAK, which
#: the server had read: only a lease that ended while that NAK waited unread could look the same.
RETURNED_GRACE_S: Final = 0.05
#: A durable was deleted: for so long nobody reads the one that takes its place. Those who had its
#: messages hear of the deletion within milliseconds, by the pull that it ended, and are to have
#: cancelled their handlers by then. On a shard, what the old one may have delivered has a whole
#: lease instead. A process that is just starting makes a durable without knowing that there was
#: another: it waits as well if its stream has ever given a message away.
DELETED_GRACE_S: Final = 0.5
#: A killed server forgets what it did in its last moments (it writes the state of a consumer a few
#: times a second): ten times the longest time that one was seen to forget.
FORGETFUL_S: Final = 1.0
#: Another server process answers than before the connection was lost: for so long a shard is not
#: read by who holds nothing of it. What a killed server has forgotten to have delivered it would
#: give away again at once, and the handler that had it was cancelled only when its connection broke
#: (`FORGETFUL_S`): it is to have unwound by then. A process that is just starting waits as well, if
#: the durable has given nothing away since its server was started.
RESTART_GRACE_S: Final = 0.5
#: A server writes the times of its deliveries in whole seconds, so one that was restarted gives a
#: message away up to this much before its lease ends (2.15.1, SIGKILL and SIGTERM alike: an ack
#: wait of 4 s ended after 3.42 s). A lost connection may be a restart: what is in hand is taken to
#: be that much older, until its next renewal.
RESTART_EARLY_S: Final = 1.0
#: Below this a sequenced topic is refused: the 0.117 of the lease that is left to unwind in would
#: be less than a loaded machine needs to run the tasks that are ready.
LEAST_SEQUENCED_ACK_WAIT_S: Final = 1.0
