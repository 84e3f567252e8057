"""The publisher actor: coalesces, repeats safely, and tells each caller the truth.

    publish() -> mailbox -> [publisher actor: one `Backend.post` per wake-up] -> acknowledgements

* Everything that is in the mailbox when the actor wakes leaves in one write, so concurrent
  publishes coalesce without anybody waiting for a batch to fill.
* An acknowledgement completes its caller directly; no task and no future per message.
* Repetitions keep the message id, so inside the duplicate window nothing is stored twice. Repeated
  are: connection lost in flight, no acknowledgement in time, "no responders" (twice, a stream may
  be changing its leader), JetStream not ready. Everything else is the caller's at once.
* `pending` belongs to the service, not to an incarnation: a publisher that is restarted posts again
  what had no answer. The mailbox keeps what had not been taken.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Final

import trio

from shove_actors._errors import (
    ActorGone,
    BrokerClosed,
    JetStreamNotEnabled,
    MailboxFull,
    NoResponders,
    NotConnected,
    PublishUnknown,
    ReshardUnderWay,
    UsageError,
)
from shove_actors.actors import ActorRef, Context
from shove_actors.backends import Backend, Post, PostWatch, Stored

from ._receipt import PublishReceipt
from ._reshard import ShardFence
from ._window import Window

logger = logging.getLogger("shove_actors.publisher")

#: How many messages one wake-up takes from the mailbox: bounds the time without a checkpoint.
BATCH: Final = 256
#: An acknowledgement not here after this long is asked for again (by repeating the publish).
ACK_TIMEOUT_S: Final = 2.0
#: Attempts when nobody answers on the subject, and the pause between them.
NO_RESPONDER_ATTEMPTS: Final = 3
NO_RESPONDER_PAUSE_S: Final = 0.25
#: How soon after a loss to look whether the connection is back.
RECONNECT_POLL_S: Final = 0.02

#: Called exactly once, in Trio context, never waiting: receipt or exception.
Completion = Callable[[PublishReceipt | Exception], None]


class PublishService:
    """The state of one broker's publishing. See the module's essay."""

    def __init__(self, backend: Backend, *, max_pending: int, timeout_s: float) -> None:
        self.backend = backend
        self.window = Window(max_pending)
        self.timeout_s = timeout_s
        self._patience = min(ACK_TIMEOUT_S, timeout_s)
        self.fence = ShardFence(backend)
        self._ref: ActorRef[Post] | None = None
        self._pending: dict[Post, float] = {}
        self._again: dict[Post, float] = {}
        self._unanswered: dict[Post, None] = {}
        #: Of these, what the fence has kept from being sent.
        self._held: set[Post] = set()
        self._wake = trio.Event()
        self._quiet: trio.Event | None = None
        self.closed = False
        self.stored = 0
        self.failed = 0
        self.repeated = 0

    def attach(self, ref: ActorRef[Post]) -> None:
        self._ref = ref

    # ------------------------------------------------------------------ callers' side

    def check_open(self) -> None:
        """Raises `BrokerClosed` when nothing can be handed over any more."""
        if self._ref is None or self.closed:
            raise BrokerClosed("the broker is closed; publish inside its `async with` block")

    def submit(self, post: Post) -> None:
        """Hand over a post whose `tag` is a `Completion` and whose place in `window` is taken."""
        ref = self._ref
        if ref is None or self.closed:
            self.window.give_back()
            raise BrokerClosed("the broker is closed; publish inside its `async with` block")
        post.deadline = trio.current_time() + self.timeout_s
        try:
            ref.tell_nowait(post)
        except (ActorGone, MailboxFull):
            self.window.give_back()
            raise BrokerClosed("the broker's publisher has ended") from None

    async def publish(
        self, subject: str, payload: bytes, header_block: bytes, watch: PostWatch | None = None
    ) -> PublishReceipt:
        """Publish and wait. Cancelling leaves the message sent or not sent, never half-written."""
        waiter = Waiter()
        if not self.window.take_nowait():
            await self.window.take()
        post = Post(subject, payload, header_block, self.done, waiter.complete, watch)
        self.submit(post)
        try:
            return await waiter.wait()
        except trio.Cancelled:
            self.give_up(post)
            raise

    def give_up(self, post: Post) -> None:
        """Its caller was cancelled: from here on it is not sent, nor repeated.

        Sent later, it would be stored behind what the caller publishes next. What is on its way
        is stored before that, or not at all.
        """
        post.given_up = True
        if self._again.pop(post, None) is not None or post in self._unanswered:
            self._unanswered.pop(post, None)
            self._finish(post, _given_up())

    def done(self, post: Post, result: Stored | Exception) -> None:
        """From the backend, once per attempt."""
        if self._pending.pop(post, None) is None and not (
            isinstance(result, Stored) and self._answered_late(post)
        ):
            return  # answered by an earlier attempt, or known to need another one
        if isinstance(result, Stored):
            self.stored += 1
            self._finish(post, PublishReceipt(result.stream, result.sequence, result.duplicate))
        elif isinstance(result, NoResponders):
            post.attempts += 1
            self.fence.doubt_subject(post.subject)
            if post.attempts >= NO_RESPONDER_ATTEMPTS:
                self._judge_later(post)
            else:
                self._repeat(post, trio.current_time() + NO_RESPONDER_PAUSE_S)
        elif isinstance(result, NotConnected):
            self._repeat(post, trio.current_time() + RECONNECT_POLL_S)
        elif isinstance(result, PublishUnknown):
            # Sent, and no answer: from here on "not stored" can no longer be claimed.
            post.attempts += 1
            self._repeat(post, trio.current_time() + RECONNECT_POLL_S)
        else:
            self._finish(post, result)

    def _answered_late(self, post: Post) -> bool:
        """An earlier attempt succeeded while the next one was being prepared: none is needed."""
        waited = post in self._again or post in self._unanswered
        self._again.pop(post, None)
        self._unanswered.pop(post, None)
        return waited

    def _finish(self, post: Post, result: PublishReceipt | Exception) -> None:
        self.window.give_back()
        self._held.discard(post)
        if isinstance(result, Exception):
            self.failed += 1
        if post.watch is not None:
            post.watch.done(result)
        completion = post.tag
        assert callable(completion)
        completion(result)
        if self._quiet is not None and self.idle:
            self._quiet.set()

    def _repeat(self, post: Post, due: float) -> None:
        self._again[post] = due
        self._wake.set()

    def _judge_later(self, post: Post) -> None:
        self._unanswered[post] = None
        self._wake.set()

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return not (self._pending or self._again or self._unanswered)

    # ------------------------------------------------------------------ the actor

    async def run(self, ctx: Context[Post]) -> None:
        """The actor's body. Drains its mailbox and its answers when asked to stop."""
        for post in self._pending:
            # Left by an incarnation that crashed: same id, so posting again is safe.
            self._again[post] = 0.0
        self._pending.clear()
        self._quiet = None
        ctx.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_promises)
                while True:
                    try:
                        batch = [await ctx.receive()]
                    except trio.EndOfChannel:
                        break
                    try:
                        while len(batch) < BATCH:
                            batch.append(ctx.receive_nowait())
                    except (trio.WouldBlock, trio.EndOfChannel):
                        pass
                    self._post(batch)
                self._quiet = trio.Event()
                if not self.idle:
                    await self._quiet.wait()
                nursery.cancel_scope.cancel()
        finally:
            if ctx.stop_requested.is_set():
                self.abandon()

    def abandon(self) -> None:
        """The broker closes: whoever still waits hears that the outcome is unknown."""
        self.closed = True
        left = [*self._pending, *self._again, *self._unanswered]
        self._pending.clear()
        self._again.clear()
        self._unanswered.clear()
        for post in left:
            self._finish(post, PublishUnknown("the broker closed before the acknowledgement came"))

    def _post(self, batch: list[Post]) -> None:
        now = trio.current_time()
        pending = self._pending
        if not pending:
            self._wake.set()  # the promises' keeper sleeps without limit while nothing is pending
        for post in [post for post in batch if post.given_up]:
            batch.remove(post)
            self._finish(post, _given_up())
        held = self.fence.held(batch)
        if held:
            for post in held:
                self._held.add(post)
                self._judge_later(post)
            batch = [post for post in batch if post not in self._unanswered]
        if self._held:
            self._held.difference_update(batch)  # sent from here on
        for post in batch:
            pending[post] = now
        self.backend.post(batch)

    async def _keep_promises(self) -> None:
        """Repetitions and time-outs, for all messages in one place."""
        while True:
            self._wake = trio.Event()
            due = self._sweep(trio.current_time())
            if self._unanswered:
                # What is not given up gets a new moment to be repeated at: look again.
                await self._judge()
                continue
            with trio.move_on_at(due):
                await self._wake.wait()

    def _sweep(self, now: float) -> float:
        """Repeat what is due, hand over what is late; returns when to look again."""
        patience = self._patience
        for post in [
            p for p, sent in self._pending.items() if now - sent >= patience or now >= p.deadline
        ]:
            del self._pending[post]
            post.attempts += 1
            self._unanswered[post] = None
        nearest = now + patience / 2 if self._pending else float("inf")
        ready: list[Post] = []
        for post, at in list(self._again.items()):
            if post.given_up:
                del self._again[post]
                self._finish(post, _given_up())
            elif now >= post.deadline:
                del self._again[post]
                self._unanswered[post] = None
            elif at > now:
                nearest = min(nearest, at)
            elif self.backend.connected:
                del self._again[post]
                ready.append(post)
            else:
                self._again[post] = now + RECONNECT_POLL_S
                nearest = min(nearest, now + RECONNECT_POLL_S)
        if ready:
            self.repeated += len(ready)
            self._post(ready)
            nearest = min(nearest, now + patience / 2)
        return nearest

    async def _judge(self) -> None:
        """Nobody acknowledged these: find out why, once per subject, then give up or repeat."""
        waiting: dict[str, list[Post]] = {}
        for post in [post for post in self._unanswered if post.given_up]:
            del self._unanswered[post]
            self._finish(post, _given_up())
        for post in self._unanswered:
            waiting.setdefault(post.subject, []).append(post)
        for subject, posts in waiting.items():
            reason: Exception | None = None
            if self.backend.connected and self.fence.doubts(subject):
                reason = await self.fence.refusal(subject)
            elif self.backend.connected and not self._held.issuperset(posts):
                reason = await self.backend.diagnose(subject)
            if self.backend.connected and reason is None:
                # Whatever was sent before is paced below, as ever.
                self._agreed(posts)
            now = trio.current_time()
            for post in posts:
                if post not in self._unanswered:
                    continue  # abandoned meanwhile
                del self._unanswered[post]
                final = isinstance(reason, (UsageError, JetStreamNotEnabled, ReshardUnderWay))
                if not final and now < post.deadline:
                    # Paced: a stream without a leader refuses at once, again and again.
                    self._again[post] = now + NO_RESPONDER_PAUSE_S
                elif final and reason is not None:
                    self._finish(post, _another(reason))
                elif post.attempts:
                    self._finish(
                        post,
                        PublishUnknown(
                            f"no acknowledgement for {subject} within {self.timeout_s:g} s"
                            f"{f' ({reason})' if reason is not None else ''}"
                        ),
                    )
                else:
                    self._finish(
                        post,
                        NotConnected(
                            f"no connection for {self.timeout_s:g} s; nothing was sent to {subject}"
                        ),
                    )
        await trio.lowlevel.checkpoint()

    def _agreed(self, posts: list[Post]) -> None:
        """Those that the fence has held may go after all, at once."""
        waiting = [post for post in posts if post in self._held and post in self._unanswered]
        for post in waiting:
            self._held.discard(post)
            del self._unanswered[post]
        if waiting:
            self._post(waiting)


def _given_up() -> PublishUnknown:
    return PublishUnknown("its caller was cancelled before the acknowledgement came")


def _another(error: Exception) -> Exception:
    """One object per message: each is raised, and annotated, by somebody else."""
    same = copy.copy(error)
    same.__cause__ = error.__cause__
    return same


class Waiter:
    """One task waiting for one receipt."""

    __slots__ = ("_result", "_task")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._result: PublishReceipt | Exception | None = None

    def complete(self, result: PublishReceipt | Exception) -> None:
        self._result = result
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def wait(self) -> PublishReceipt:
        if self._result is None:
            self._task = trio.lowlevel.current_task()

            def abort(_: object) -> trio.lowlevel.Abort:
                self._task = None
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        if isinstance(self._result, Exception):
            raise self._result
        assert self._result is not None
        return self._result
