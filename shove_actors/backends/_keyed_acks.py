"""How a keyed lane settles: the next message of a key waits until the server has read the last one.

Whoever follows us, after whatever crash, must never be given a message that comes before one of its
key that we have begun. So a message is begun once the acknowledgement of the one before is *known*
to have been read. That takes an answer; and an answer per message would cost as much as the message
(measured: a third of the server's time, and one more pass of the event loop here). So most
acknowledgements are sent without a question:

* A key of which nothing else is in hand waits for nothing. Its acknowledgement stays unproven, and
  only the key is remembered. If its next message comes before there was a reason to ask, that is
  the reason.
* Acknowledgements of one durable that are sent one after another on one connection are read in that
  order. So one answer proves all that were sent before its question, for every key. One question
  at a time is under way; what ends meanwhile waits for the next one.
* When many are unproven, or none was asked for in a while, a question is asked for all of them, so
  that keys are not kept in memory.

What an answer proves
    "Read in that order" holds only while none is left out. One may be, and a later one be answered
    all the same:

    (a) when the connection was cut, or the durable's leader changed, in between. Then all that is
        unproven is *doubted*: no answer proves it, neither one that is under way nor a later one;
    (b) when the durable was rewound. It ignores an acknowledgement of what it has not delivered
        since, and gives no answer (probed: docs/keyed.md); everything that was ignored it delivers
        again, in the order of the stream. So

        1  a question is always about the last of the stream, of all that it is to prove. If it is
           answered, the durable has delivered everything up to there since it was rewound: all
           that it had ignored before, too;
        2  what it delivers again arrives here before the answer, because it was sent before. It is
           acknowledged once more, and from then on belongs to those that the *next* question
           proves; if it was asked for, all of that question do. A delivery that does not fit (the
           count was begun anew by somebody) makes all that is unproven doubted;
        3  but it may have been delivered to somebody else, who is pinned by now. So what is settled
           before it has come again after a rewind of ours (`Ownership.seen`) is doubted at once, as
           is everything that was unproven when we asked for the rewind.

    The doubted are looked for in the stream, which forgets a message when its acknowledgement was
    read: one request for each that is still there, and one for each gap. What is still there is
    acknowledged again.

    Left over are two coincidences, and both need our death within moments after them, because only
    then does a successor see the difference: somebody else rewinds the durable *and* takes its pin
    between our acknowledgement and its being read; or the durable's leader dies without a word,
    an acknowledgement with it, and the next leader answers before we have heard of it. A message
    of which a later one was begun is then handled again. Never do two run at once: that is the
    lease's.

Nothing else depends on it: the lease, taking over and handing on do not ask what is unproven. A
drain asks once (`PinnedDurable.confirm`), so that the next owner does not repeat anything.

Tests: `properties/test_keyed_machine.py` and the planted defects of `test_keyed_planted.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

import trio

from shove_actors._errors import ShoveError

from ._delivery import Delivery
from ._keyed_buffer import KeyedBuffer
from ._pinned import PinnedDurable

#: A question that was not answered for so long never will be. So long may an acknowledgement that
#: nobody waits for be without a question.
UNHEARD_S: Final = 1.0
#: Between two looks for what is doubted.
LOOK_S: Final = 0.25
_SEQUENCE: Final = attrgetter("sequence")


class KeyedAcks:
    """Of one lane."""

    __slots__ = ("_buffer", "_durable", "_stir", "_stirred", "_ticket")

    def __init__(self, durable: PinnedDurable, buffer: KeyedBuffer) -> None:
        self._durable = durable
        self._buffer = buffer
        #: Of the question that is under way.
        self._ticket = 0
        self._stir = trio.Event()
        self._stirred = False

    @property
    def unproven(self) -> int:
        """Keys in memory whose latest message is settled, and not known to be."""
        return self._buffer.lanes.unproven

    @property
    def asked(self) -> Iterable[Delivery]:
        """What the question that is under way is about."""
        return self._buffer.lanes.asked

    def send(self, delivery: Delivery, *, seen: bool) -> None:
        """Its handler has ended well. `seen`: it was delivered to us since our last rewind."""
        lanes = self._buffer.lanes
        lanes.ended(delivery.key)
        if seen and lanes.wants_proof and self._durable.connected:
            self._ask(delivery)
        elif not self._durable.ack(delivery) or not seen:
            # It was not sent, and an answer to a later one must not prove it. Or it may be
            # ignored, and be delivered again to somebody else than us.
            self.doubt()
        elif not self._stirred:
            self._wake()

    def ask_if_needed(self) -> None:
        """A message has come, whose key is unproven perhaps."""
        if self._buffer.lanes.wants_proof and self._durable.connected:
            self._ask()

    def send_again(self, delivery: Delivery) -> None:
        """It was settled, and was delivered again."""
        if self._durable.connected:
            self._durable.ack(delivery)
            sequence = delivery.sequence
            self._buffer.lanes.resent(lambda item: item.sequence == sequence)
            self.ask_if_needed()

    def answered(self, ticket: int) -> None:
        """From the backend."""
        if ticket == self._ticket:
            self._buffer.answered()
            self.ask_if_needed()

    def doubt(self) -> None:
        """An acknowledgement may have been left out, whatever is answered from now on."""
        self._ticket += 1
        lanes = self._buffer.lanes
        if lanes.unproven:
            lanes.doubt()
            self._wake()

    def _wake(self) -> None:
        self._stirred = True
        self._stir.set()

    def _ask(self, unsent: Delivery | None = None) -> None:
        self._ticket += 1
        last = max(self._buffer.lanes.ask(), key=_SEQUENCE)
        if unsent is not None and unsent is not last:
            self._durable.ack(unsent)
        self._durable.ask(last, self._ticket)
        if not self._stirred:
            self._wake()

    async def look_after(self) -> None:
        """What no answer came for, and what nobody has asked for."""
        while True:
            lanes = self._buffer.lanes
            if lanes.doubted:
                if self._durable.connected:
                    await self._look_for_doubted()
                await trio.sleep(LOOK_S)
            elif lanes.unproven:
                ticket = self._ticket
                await trio.sleep(UNHEARD_S)
                if lanes is not self._buffer.lanes or ticket != self._ticket:
                    continue
                if lanes.asking:
                    self.doubt()
                elif lanes.fresh and self._durable.connected:
                    self._ask()
            else:
                self._stir, self._stirred = trio.Event(), False
                await self._stir.wait()

    async def _look_for_doubted(self) -> None:
        lanes = self._buffer.lanes
        looked_for = sorted((item.sequence, key) for key, item in lanes.doubted.items())
        stored = 0.0
        for sequence, key in looked_for:
            item = lanes.doubted.get(key)
            if item is None or item.sequence != sequence:
                continue  # settled anew meanwhile
            if stored < sequence:
                try:
                    with trio.fail_after(UNHEARD_S):
                        stored = await self._durable.first_stored(sequence)
                except (ShoveError, trio.TooSlowError):
                    return
                if lanes is not self._buffer.lanes or lanes.doubted.get(key) is not item:
                    continue
            if stored > sequence:
                self._buffer.proven(key)
            elif self._durable.connected:
                self._durable.ack(item)
