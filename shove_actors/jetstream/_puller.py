"""Carries out what the pull engine decides: one inbox, one buffer, the readers that wait.

    socket callback -> _on_message -> buffer (and one reader woken)
    reader -> receive() -> done() -> top_up() -> one PUB when below the threshold

No task per message and none per read (`_inlet.py`). One task per reading (`_keep`) sleeps until the
engine's next deadline; it wakes once per two heartbeats and does nothing unless something is wrong.
Asking again after a status or a reconnect happens in the callback that tells of it, without any
task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

import trio

from shove_actors._errors import (
    ConnectionClosed,
    IteratorClosed,
    NoHeartbeat,
    PermissionDenied,
)

from ._connection import Connection
from ._events import ConnectionEvent
from ._inlet import Inlet
from ._message import Message
from ._pull_actions import Abandon, Action, Ask, End, ForgetPin, LookUp, Tell
from ._pull_engine import PullEngine
from ._pull_line import PullLine
from ._pull_options import PullOptions
from ._source import NOTICES_KEPT, OnError, check_on_error
from ._wire import header_value, pub, status_of

#: Why the consumer cannot be read, or None: it is there. Asked through the API.
LookUpFunction = Callable[[], Awaitable["Exception | None"]]


class Puller(Inlet[Message]):
    """One reading of one consumer. `pins` holds the pin id of each priority group.

    `on_end` may take over an ending; True: nothing is raised.
    """

    def __init__(
        self,
        conn: Connection,
        subject: bytes,
        options: PullOptions,
        *,
        name: str,
        look_up: LookUpFunction,
        pins: dict[str, bytes],
        on_error: OnError | None = None,
        nak_on_stop: bool = False,
        raise_on_missing_heartbeat: bool = False,
        on_end: Callable[[Exception], bool] | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self._conn = conn
        self._subject = subject
        self._look_up = look_up
        self._pins = pins
        self._on_error = check_on_error(on_error)
        self._nak_on_stop = nak_on_stop
        self._raise_on_silence = raise_on_missing_heartbeat
        self._on_end = on_end
        self.engine = PullEngine(options, name)
        self._ledger = self.engine.ledger
        self._bytes = options.max_bytes is not None
        self._group = options.groups.group
        self._group_body = options.groups.body()
        self._line: PullLine | None = None
        self._nursery: trio.Nursery | None = None
        self._alarm = trio.Event()
        self._stopped = False
        self.notices: deque[Exception] = deque(maxlen=NOTICES_KEPT)

    # ------------------------------------------------------------------ life

    async def ready(self) -> None:
        await self._conn.wait_connected()

    def start(self, nursery: trio.Nursery) -> None:
        """Subscribe; `open` asks. The nursery must last until `close` has returned."""
        self._nursery = nursery
        self._line = PullLine(
            self._conn,
            self._subject,
            on_message=self._on_message,
            on_late=self._on_late,
            start_soon=nursery.start_soon,
        )
        self._conn.listen(self.on_event)
        nursery.start_soon(self._keep)

    def open(self) -> None:
        """Ask from now on."""
        if self._conn.connected:
            self.engine.connected(trio.current_time())
        self.top_up()

    def stop(self) -> None:
        """Nothing more is handed over. Returns at once; what is buffered is dropped."""
        if self._halt() and self._line is not None and self._nursery is not None:
            self._nursery.start_soon(self._line.close)

    def _halt(self) -> bool:
        if self._stopped:
            return False
        self._stopped = True
        self.engine.close()
        if self._nak_on_stop:
            for message in self._items:
                self._nak(message.raw_reply)
        self._items.clear()
        self.engine.dropped()
        self.finish(IteratorClosed("the reading of these messages was stopped"))
        return True

    async def drain(self) -> None:
        """Ask for no more; what is buffered, or on its way, is still handed over, then the end."""
        self.engine.close()
        try:
            if self._line is not None:
                await self._line.close()
            await trio.lowlevel.checkpoint_if_cancelled()
        finally:
            self.finish(trio.EndOfChannel())

    async def close(self) -> None:
        """`stop`, and wait until the server has been told. Bounded, also without a connection."""
        self._halt()
        self._conn.unlisten(self.on_event)
        if self._line is not None:
            await self._line.close()
        else:
            await trio.lowlevel.checkpoint()

    @property
    def recent(self) -> tuple[Exception, ...]:
        return tuple(self.notices)

    @property
    def buffered(self) -> int:
        return len(self._items)

    @property
    def pending(self) -> int:
        return self.engine.pending

    @property
    def pulls(self) -> int:
        return self.engine.ledger.sent

    # ------------------------------------------------------------------ reading

    async def receive(self) -> Message:
        """The next message, not yet `done`."""
        return await self.take()

    def receive_nowait(self) -> Message:
        """The next message, not yet `done`."""
        return self.take_nowait()

    def wait_begins(self, now: float) -> None:
        self.engine.wait_begins(now)

    def wait_ends(self) -> None:
        self.engine.wait_ends()

    def done(self, message: Message) -> None:
        """The message was taken, or its handler has returned."""
        engine = self.engine
        if self._stopped:
            return  # nothing is counted any more
        if self._bytes:
            engine.done(message.size)
        else:
            engine.delivered += 1
            engine.held -= 1
        if engine.held + self._ledger.requested < engine.threshold:
            self.top_up()
        if engine.finished:
            self._reached()

    def _reached(self) -> None:
        if not self._stopped:
            self.stop()
            self._ended = trio.EndOfChannel()

    # ------------------------------------------------------------------ arrivals

    def _on_message(
        self, subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes
    ) -> None:
        now = trio.current_time()
        if not payload and header_block is not None:
            status = status_of(header_block)
            if status is not None:
                self._act(self.engine.status(*status, header_block, now))
                self.top_up()
                return
        if self._stopped:
            if self._nak_on_stop:
                self._nak(reply)
            return
        engine, ledger = self.engine, self._ledger
        message = Message(self._conn, subject, reply, header_block, payload)
        if self._bytes:
            engine.arrived(message.size, now)
        else:
            if ledger.requested:
                ledger.requested -= 1
            ledger.deadline = now + ledger.patience_s
            engine.held += 1
            if engine.troubled:
                engine.calm()
        if self._group is not None and header_block is not None:
            pin = header_value(header_block, b"Nats-Pin-Id")
            if pin is not None:
                self._pins[self._group] = pin
        self._items.append(message)
        if self._lot:
            self._lot.unpark()

    def _on_late(
        self, subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes
    ) -> None:
        """For a request that was given up: a message is a message, the rest says nothing."""
        if payload or header_block is None or status_of(header_block) is None:
            # `_on_message` takes it off what was asked for; but it was not asked for here.
            self._ledger.requested += 1
            if self._bytes:
                message = Message(self._conn, subject, reply, header_block, payload)
                self._ledger.requested_bytes += message.size
            self._on_message(subject, reply, header_block, payload)

    def _nak(self, reply: bytes) -> None:
        self._conn.write(pub(reply, b"", b"-NAK"))

    # ------------------------------------------------------------------ asking

    def top_up(self) -> None:
        """Ask for what there is room for, if it is worth a request."""
        engine = self.engine
        ask = engine.demand()
        if ask is not None and self._line is not None and self._line.send(self._body(ask)):
            engine.asked(ask, trio.current_time())

    def _body(self, ask: Ask) -> bytes:
        body = b'{"batch":%d' % ask.batch
        if ask.max_bytes is not None:
            body += b',"max_bytes":%d' % ask.max_bytes
        if self._group is not None:
            body += self._group_body
            pin = self._pins.get(self._group)
            if pin:
                body += b',"id":"%b"' % pin
        return body + self._ledger.tail

    def _act(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            if isinstance(action, Tell):
                self.tell(action.error)
            elif isinstance(action, End):
                self._end(action.error)
            elif isinstance(action, Abandon):
                if self._line is not None and not self._stopped:
                    self._line.abandon()
            elif isinstance(action, ForgetPin):
                if self._group is not None:
                    self._pins.pop(self._group, None)
            elif self._nursery is not None:
                self._nursery.start_soon(self._look, action)
        if actions:
            self._alarm.set()  # there may be an earlier deadline now

    def tell(self, error: Exception) -> None:
        """A notice: kept, and the user's callback called. One that raises ends the reading."""
        self.notices.append(error)
        if self._raise_on_silence and isinstance(error, NoHeartbeat):
            self.raise_once(error)
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception as exc:
                self.engine.close()
                self.finish(exc)

    def _end(self, error: Exception) -> None:
        self.engine.close()
        if self._stopped or self._ended is not None:
            return
        if self._on_end is not None and self._on_end(error):
            return
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception as exc:
                error = exc
        self.finish(error)

    # ------------------------------------------------------------------ trouble

    def on_event(self, event: ConnectionEvent) -> None:
        if event.kind == "disconnected":
            self.engine.disconnected()
            if self._line is not None and not self._stopped:
                self._line.disconnected()
        elif event.kind == "reconnected":
            self.engine.connected(trio.current_time())
            self.top_up()
        elif event.kind == "closed":
            cause = f": {event.error}" if event.error is not None else ""
            self._end(ConnectionClosed(f"the connection was closed{cause}"))
        elif event.kind == "error" and isinstance(event.error, PermissionDenied):
            line, denied = self._line, event.error
            if line is not None and denied.subject in (
                self._subject.decode(),
                line.inbox.decode(),
            ):
                self._end(
                    PermissionDenied(
                        str(denied), subject=denied.subject, operation=denied.operation
                    )
                )

    async def _keep(self) -> None:
        """Until cancelled: the engine's deadlines.

        The deadline moves with every message; it is looked at only when the last one that was seen
        has passed. While there is none, a look per patience is enough: none that is set meanwhile
        can be over before.
        """
        patience = self._ledger.patience_s
        while True:
            now = trio.current_time()
            with trio.move_on_at(min(self.engine.deadline, now + patience)):
                await self._alarm.wait()
            if self._alarm.is_set():
                self._alarm = trio.Event()
            now = trio.current_time()
            if now >= self.engine.deadline:
                self._act(self.engine.tick(now))
                self.top_up()

    async def _look(self, action: LookUp) -> None:
        error = await self._look_up()
        self._act(self.engine.looked_up(action.number, error, trio.current_time()))
        self._alarm.set()
        self.top_up()
