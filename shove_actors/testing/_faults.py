"""FaultPlan: what goes wrong on a `MemoryServer`, when, and what has gone wrong.

A plan is a list of steps, each a fault at a moment (`at`) or at the n-th event of a kind (`on`).
Or it is drawn: from a seed and rates. A drawn plan writes down each step as it takes it, in the
terms of a scripted one, so that a run that failed prints as a short program:

    FaultPlan(
        on("ack", 3, LoseAck()),
        at(1.25, Disconnect(process='worker-1', for_s=2.0)),
    )

and that program, under the same scheduler, does the same again (`replay`).

How it hooks in. The memory backend tells `Faults.watch` of each event before it has an effect. The
common answer has to cost nothing, since a simulation has millions of events: the next interesting
number of each kind is known beforehand (for a drawn plan the gap is drawn, not each event), so it
is one comparison. What changes the server in the middle of its own work (a restart, a deletion) is
carried out when that work is done; everything else takes effect inside the event.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from shove_actors._errors import StreamFull as StreamFullError
from shove_actors._errors import UsageError
from shove_actors.backends.memory import Effect, FaultEvent, MemoryBackend, MemoryServer
from shove_actors.runtime._checks import check_seconds

from ._fault_draws import Drawn, Rates
from ._fault_kinds import (
    EVENTS_OF,
    Crash,
    DeleteConsumer,
    DeliverTwice,
    Disconnect,
    Fault,
    LateAck,
    LatePuback,
    LoseAck,
    LosePuback,
    LoseRenewal,
    RestartServer,
    Slow,
    Stall,
    StreamFull,
)
from ._given import check_function, check_kind, check_names, in_trio
from ._plan_steps import EVENTS, At, On, check_fault, check_step

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """One fault that was carried out: when (server time), to whom, as which step."""

    time: float
    process: str | None
    step: At | On


class FaultPlan:
    """Faults for one `MemoryServer`: scripted, or drawn (`FaultPlan.seeded`).

        plan = FaultPlan(on("ack", 3, LoseAck()), at(2.0, RestartServer(down_s=1.0)))
        plan.install(server)

    `happened` is what was done so far, and `program()` prints it. A step whose process or durable
    does not exist at its time is left out. A plan is for one server and one run: `replay()` makes
    the next one.
    """

    def __init__(self, *steps: At | On) -> None:
        self.happened: list[Happened] = []
        #: How many events of each kind there were.
        self.counts: dict[FaultEvent, int] = dict.fromkeys(EVENTS, 0)
        self._steps = steps
        #: The code that makes this plan, before anything has happened.
        self.source = f"FaultPlan({', '.join(map(repr, steps))})"
        self._at_event: dict[FaultEvent, dict[int, list[Fault]]] = {e: {} for e in EVENTS}
        self._next_event: dict[FaultEvent, Fault | None] = dict.fromkeys(EVENTS)
        #: Event faults whose moment has come: they happen to the next event of their kind.
        self._waiting: dict[FaultEvent, list[Fault]] = {e: [] for e in EVENTS}
        self._next = dict.fromkeys(EVENTS, _NEVER)
        self._server: MemoryServer | None = None
        self._start = 0.0
        self._listeners: list[Callable[[Happened], None]] = []
        self._drawn: Drawn | None = None
        #: After how many events of a kind the next drawn fault comes.
        self._drawn_at: dict[FaultEvent, int] = dict.fromkeys(EVENTS, _NEVER)
        #: A process that is never killed, and what it is; see `protect`.
        self._protected = self._protected_as = ""
        #: Streams that were made to refuse.
        self._full: set[str] = set()
        self._ended = self._begun = False
        for number, step in enumerate(steps, 1):
            check_step(step, number)
            if isinstance(step, On):
                self._at_event[step.event].setdefault(step.nth, []).append(step.fault)

    @classmethod
    def seeded(
        cls,
        seed: int,
        rates: Rates | None = None,
        *,
        for_s: float = math.inf,
        spare: Iterable[str] = (),
    ) -> FaultPlan:
        """A plan that is drawn as it goes.

        `for_s`: seconds after which nothing happens any more. `spare`: names of processes that
        are never killed.
        """
        check_kind(seed, "seed", int, "a whole number")
        if rates is not None:
            check_kind(rates, "rates", Rates, "Rates(...), or None for the usual ones")
        if for_s != math.inf:
            check_seconds(for_s, "for_s")
        check_names(spare, "spare")
        plan, names = cls(), sorted(spare)
        plan._drawn = Drawn(random.Random(seed), rates or Rates(), for_s, frozenset(names))
        options = [] if for_s == math.inf else [f"for_s={for_s!r}"]
        options += [f"spare={names!r}"] if names else []
        plan.source = (
            f"FaultPlan.seeded({', '.join([repr(seed), repr(rates or Rates()), *options])})"
        )
        return plan

    def __repr__(self) -> str:
        if self._drawn is not None:
            return f"<FaultPlan drawn, {len(self.happened)} steps taken>"
        return self.source

    # ------------------------------------------------------------------------ for users

    def install(self, server: MemoryServer) -> FaultPlan:
        """From now on; outside of Trio, from the moment when the server is first used. Returns the
        plan itself. Raises `UsageError` for a second time, or when the server has a plan.
        """
        check_kind(server, "server", MemoryServer, "a MemoryServer")
        if self._server is not None:
            raise UsageError("this plan was installed before: make one for each run (replay())")
        if server.faults.watch is not None:
            raise UsageError("this server has a plan: quiet() it first")
        self._server = server
        server.faults.watch = self._watch
        drawn = self._drawn
        for event in EVENTS:
            if drawn is not None:
                self._draw_event(drawn, event)
            self._look_again(event)
        if in_trio():
            self._begin()
        else:
            server.call_soon(self._begin)  # there is no time yet
        return self

    def _begin(self) -> None:
        """From here on moments are counted."""
        if self._begun:
            return
        self._begun = True
        server = self._installed()
        self._start = server.now()
        for step in self._steps:
            if isinstance(step, At):
                server.call_at(self._start + step.moment, partial(self._take, step))
        if self._drawn is not None and not self._ended:
            self._draw_moment(self._drawn)

    def listen(self, listener: Callable[[Happened], None]) -> None:
        """Called with everything that happens, right before it does. Must not raise or wait."""
        check_function(listener, "listener", "a function of what has happened")
        self._listeners.append(listener)

    def protect(self, process: str, what: str) -> None:
        """Never kill this process. A crash that names nobody is of somebody else: at a moment, of
        whoever else has been open for longest; at an event, at the next one of somebody else.

        Raises `UsageError` for a step that names it, here and in `take`; `what` it is.
        """
        self._protected, self._protected_as = process, what
        for step in self._steps:
            self._check_protected(step.fault)

    def _check_protected(self, fault: Fault) -> None:
        if isinstance(fault, Crash) and fault.process == self._protected != "":
            raise UsageError(
                f"{fault!r}: {self._protected_as} is never killed, so that what it was told is "
                "known. Name a consumer process, such as Crash('worker-1'), or nobody: "
                "on('ack', 3, Crash())"
            )

    def take(self, fault: Fault, event: FaultEvent | None = None) -> None:
        """A fault that is not planned: now; an event fault, to the next event of its kind.

        `event`: at the next event of this kind, whatever it is.
        """
        server = self._installed()
        self._check_protected(fault)
        if event is not None:
            self._wait_for(On(event, 1, fault).event, fault)
            return
        check_fault(fault)
        if not in_trio():
            raise UsageError(
                "take(fault) is for a run under way, in Trio: before it, give the plan at(0.0, "
                f"{fault!r})"
            )
        self._begin()
        self._take(At(max(0.0, server.now() - self._start), fault))

    def quiet(self) -> None:
        """Nothing happens any more, and what had begun ends: everybody is connected again."""
        server = self._installed()
        if self._ended:
            return
        self._ended = True
        server.faults.watch = None
        server.start()
        for backend in list(server.backends.values()):
            backend.link.slow(0.0)
            backend.network_flows()
            backend.link_restored()
        for name in self._full.union(server.streams):
            server.faults.accept_publish(name)

    def program(self) -> str:
        """What has happened, as code that makes it happen again."""
        lines = "".join(f"    {h.step!r},\n" for h in self.happened)
        return f"FaultPlan(\n{lines})" if lines else "FaultPlan()"

    def replay(self) -> FaultPlan:
        """A scripted plan of what has happened."""
        return FaultPlan(*(h.step for h in self.happened))

    # ------------------------------------------------------------------- from the server

    def _installed(self) -> MemoryServer:
        if self._server is None:
            raise UsageError("this plan is not installed: plan.install(server)")
        return self._server

    def _watch(self, event: FaultEvent, backend: MemoryBackend) -> Effect | None:
        count = self.counts[event] + 1
        self.counts[event] = count
        if count < self._next[event]:
            return None
        return self._hit(event, count, backend)

    def _hit(self, event: FaultEvent, count: int, backend: MemoryBackend) -> Effect | None:
        drawn = self._drawn
        planned = self._at_event[event]
        faults = planned.pop(count, [])
        if drawn is not None and count >= self._drawn_at[event]:
            fault = self._next_event[event]
            self._draw_event(drawn, event)
            spared = backend.name in (*drawn.spare, self._protected)
            if fault is not None and not (isinstance(fault, Crash) and spared):
                faults = [fault]
        waiting, self._waiting[event] = self._waiting[event], []
        effect = Effect()
        for fault in [*waiting, *faults]:
            if isinstance(fault, Crash) and not fault.process and backend.name == self._protected:
                self._waiting[event].append(fault)
                continue
            effect = self._at(event, count, fault, backend, effect)
        self._look_again(event)
        return effect

    def _look_again(self, event: FaultEvent) -> None:
        """Which event of this kind is of interest next."""
        planned = min(self._at_event[event], default=_NEVER)
        self._next[event] = 0 if self._waiting[event] else min(planned, self._drawn_at[event])

    def _at(
        self, event: FaultEvent, count: int, fault: Fault, backend: MemoryBackend, effect: Effect
    ) -> Effect:
        """What becomes of this event."""
        if isinstance(fault, (Crash, Disconnect, Stall, Slow)) and fault.process is None:
            fault = replace(fault, process=backend.name)
        step = On(event, count, fault)
        if isinstance(fault, (LoseAck, LosePuback, LoseRenewal)):
            self._note(step, backend.name)
            return replace(effect, lost=True)
        if isinstance(fault, (LateAck, LatePuback)):
            self._note(step, backend.name)
            return replace(effect, late_s=max(effect.late_s, fault.by_s))
        if isinstance(fault, DeliverTwice):
            self._note(step, backend.name)
            return replace(effect, copies=effect.copies + 1)
        if isinstance(fault, Crash) and fault.after:
            return replace(effect, after=partial(self._carry_out, fault, step))
        self._carry_out(fault, step)
        return effect

    def _take(self, step: At) -> None:
        if self._ended:
            return
        fault = step.fault
        events = EVENTS_OF.get(type(fault))
        if events is not None:
            self._wait_for(events[0], fault)  # type: ignore[arg-type]
            return
        self._carry_out(fault, step)

    def _wait_for(self, event: FaultEvent, fault: Fault) -> None:
        if not self._ended:
            self._waiting[event].append(fault)
            self._next[event] = 0

    # --------------------------------------------------------------------- carrying out

    def _note(self, step: At | On, process: str | None) -> None:
        happened = Happened(time=self._installed().now(), process=process, step=step)
        self.happened.append(happened)
        for listener in self._listeners:
            listener(happened)

    def _carry_out(self, fault: Fault, step: At | On) -> None:
        server = self._installed()
        if isinstance(fault, (Crash, Disconnect, Stall, Slow)):
            name = fault.process
            if name is None:
                spared = self._protected if isinstance(fault, Crash) else ""
                name = next((each for each in server.backends if each != spared), None)
            backend = server.backends.get(name) if name is not None else None
            if backend is None or backend.link.dead:
                return
            self._note(step, name)
            self._harm(fault, backend)
        elif isinstance(fault, RestartServer):
            server.call_soon(partial(self._restart, step, fault))
        elif isinstance(fault, DeleteConsumer):
            stream = server.streams.get(fault.stream)
            if stream is None or fault.durable not in stream.durables or server.down:
                return
            server.call_soon(partial(self._delete, step, fault))
        elif isinstance(fault, StreamFull):
            self._note(step, None)
            error = StreamFullError(f"stream {fault.stream!r} is full (the fault plan says so)")
            server.faults.refuse_publish(fault.stream, error)
            self._full.add(fault.stream)
            self._later(fault.for_s, partial(server.faults.accept_publish, fault.stream))

    def _harm(self, fault: Fault, backend: MemoryBackend) -> None:
        if isinstance(fault, Crash):
            backend.crash()
        elif isinstance(fault, Disconnect):
            backend.link_cut()
            self._later(fault.for_s, backend.link_restored)
        elif isinstance(fault, Stall):
            backend.link.stall(fault.direction)
            self._later(fault.for_s, backend.network_flows)
        elif isinstance(fault, Slow):
            backend.link.slow(fault.by_s)
            self._later(fault.for_s, partial(backend.link.slow, 0.0))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        server = self._installed()
        server.call_at(server.now() + seconds, action)

    def _restart(self, step: At | On, fault: RestartServer) -> None:
        server = self._installed()
        self._note(step, None)
        server.stop(killed=fault.killed)
        if fault.down_s:
            self._later(fault.down_s, server.start)
        else:
            server.start()

    def _delete(self, step: At | On, fault: DeleteConsumer) -> None:
        server = self._installed()
        stream = server.streams.get(fault.stream)
        if stream is not None and fault.durable in stream.durables:
            self._note(step, None)
            server.delete_durable(fault.stream, fault.durable)

    # -------------------------------------------------------------------------- drawing

    def _draw_event(self, drawn: Drawn, event: FaultEvent) -> None:
        gap, self._next_event[event] = drawn.event(event)
        self._drawn_at[event] = self.counts[event] + gap

    def _draw_moment(self, drawn: Drawn) -> None:
        server = self._installed()
        gap = drawn.gap()
        # Rounded, so that it is printed as it is.
        moment = round(server.now() - self._start + gap, 6)
        if moment < drawn.for_s:
            server.call_at(self._start + moment, partial(self._drawn_moment, drawn, moment))

    def _drawn_moment(self, drawn: Drawn, moment: float) -> None:
        if self._ended:
            return
        fault = drawn.fault(self._installed())
        if fault is not None:
            self._take(At(moment, fault))
        self._draw_moment(drawn)
