"""What a test of a program on `shove_actors` needs. Not imported by the package itself.

`Stepper` drives Trio, in virtual time, from a synchronous Hypothesis state machine.

`FaultPlan` makes things go wrong on a server in memory, at a time, at an event, or by a seed.

`recording` writes down what publishers and handlers do, on any backend and over several processes;
`check_history` says whether order, exclusion, durability and the retry budget held.

`Simulation` is all of it together: processes, faults, a history and its checks, in virtual time.
`MessagingMachine`, which needs Hypothesis, lets Hypothesis decide what happens in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._check import check_history as check_history
from ._checker import Checker as Checker
from ._fault_draws import Rates as Rates
from ._fault_kinds import Crash as Crash
from ._fault_kinds import DeleteConsumer as DeleteConsumer
from ._fault_kinds import DeliverTwice as DeliverTwice
from ._fault_kinds import Disconnect as Disconnect
from ._fault_kinds import Fault as Fault
from ._fault_kinds import LateAck as LateAck
from ._fault_kinds import LatePuback as LatePuback
from ._fault_kinds import LoseAck as LoseAck
from ._fault_kinds import LosePuback as LosePuback
from ._fault_kinds import LoseRenewal as LoseRenewal
from ._fault_kinds import RestartServer as RestartServer
from ._fault_kinds import Slow as Slow
from ._fault_kinds import Stall as Stall
from ._fault_kinds import StreamFull as StreamFull
from ._faults import FaultPlan as FaultPlan
from ._faults import Happened as Happened
from ._history import Event as Event
from ._history import History as History
from ._moves import Move as Move
from ._plan_steps import at as at
from ._plan_steps import on as on
from ._recorder import RecordedPublisher as RecordedPublisher
from ._recorder import Recorder as Recorder
from ._recorder import recording as recording
from ._recorder import take_inventory as take_inventory
from ._rules import HistoryRules as HistoryRules
from ._rules import HistoryViolation as HistoryViolation
from ._rules import Violation as Violation
from ._server_watch import ServerWatch as ServerWatch
from ._simulation import Simulation as Simulation
from ._step import Step as Step
from ._stepper import Stepper as Stepper
from ._totals import TOTALS as TOTALS
from ._totals import Totals as Totals

if TYPE_CHECKING:
    from ._machine import MessagingMachine as MessagingMachine

__all__ = [
    "TOTALS",
    "Checker",
    "Crash",
    "DeleteConsumer",
    "DeliverTwice",
    "Disconnect",
    "Event",
    "Fault",
    "FaultPlan",
    "Happened",
    "History",
    "HistoryRules",
    "HistoryViolation",
    "LateAck",
    "LatePuback",
    "LoseAck",
    "LosePuback",
    "LoseRenewal",
    "MessagingMachine",
    "Move",
    "Rates",
    "RecordedPublisher",
    "Recorder",
    "RestartServer",
    "ServerWatch",
    "Simulation",
    "Slow",
    "Stall",
    "Step",
    "Stepper",
    "StreamFull",
    "Totals",
    "Violation",
    "at",
    "check_history",
    "on",
    "recording",
    "take_inventory",
]


def __getattr__(name: str) -> object:
    # The one thing here that cannot be imported without Hypothesis.
    if name == "MessagingMachine":
        from ._machine import MessagingMachine

        return MessagingMachine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
