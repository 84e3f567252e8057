"""Supervised actors on Trio, usable alone.

An actor is an async function (or a class) in a *slot* of a supervision tree. The slot owns the
mailbox and the address, so both survive restarts; the supervisor starts children in order, stops
them in reverse, restarts what crashed within a budget, and passes on what it cannot repair.

    async def greeter(ctx: actors.Context[str]) -> None:
        ctx.started()
        async for name in ctx:
            ctx.reply(f"hello {name}")

    async with actors.open_actor_system(
        children=[actors.ChildSpec(id="greeter", start=greeter)]
    ) as system:
        print(await system.ref("greeter").ask("Ada", timeout=1))
"""

from __future__ import annotations

from shove_actors._errors import ActorError as ActorError
from shove_actors._errors import ActorGone as ActorGone
from shove_actors._errors import MailboxFull as MailboxFull
from shove_actors._errors import NameTaken as NameTaken
from shove_actors._errors import RestartIntensityExceeded as RestartIntensityExceeded
from shove_actors._errors import StartFailed as StartFailed

from ._backoff import Backoff as Backoff
from ._class import Receiver as Receiver
from ._class import of_class as of_class
from ._context import Context as Context
from ._core import LateError as LateError
from ._dynamic import DynamicSupervisor as DynamicSupervisor
from ._envelope import ReplyPort as ReplyPort
from ._envelope import Request as Request
from ._exit import Crashed as Crashed
from ._exit import Exit as Exit
from ._exit import Killed as Killed
from ._exit import Returned as Returned
from ._exit import Stopped as Stopped
from ._inspect import TreeNode as TreeNode
from ._intensity import Intensity as Intensity
from ._lifecycle import BackingOff as BackingOff
from ._lifecycle import DeadLetters as DeadLetters
from ._lifecycle import Ended as Ended
from ._lifecycle import Escalated as Escalated
from ._lifecycle import Exited as Exited
from ._lifecycle import GraceExpired as GraceExpired
from ._lifecycle import LifecycleEvent as LifecycleEvent
from ._lifecycle import Listener as Listener
from ._lifecycle import MessageLost as MessageLost
from ._lifecycle import Overrun as Overrun
from ._lifecycle import Started as Started
from ._lifecycle import StartRejected as StartRejected
from ._lifecycle import StopRequested as StopRequested
from ._lifecycle import SystemStopped as SystemStopped
from ._mailbox import MailboxStatistics as MailboxStatistics
from ._ref import ActorRef as ActorRef
from ._slot import State as State
from ._spec import AutoShutdown as AutoShutdown
from ._spec import ChildSpec as ChildSpec
from ._spec import Kind as Kind
from ._spec import MailboxSpec as MailboxSpec
from ._spec import OnRestart as OnRestart
from ._spec import OnStop as OnStop
from ._spec import Restart as Restart
from ._spec import Shutdown as Shutdown
from ._spec import Strategy as Strategy
from ._spec import supervisor as supervisor
from ._system import ActorSystem as ActorSystem
from ._system import ShutdownReport as ShutdownReport
from ._system import open_actor_system as open_actor_system

__all__ = [
    "ActorError",
    "ActorGone",
    "ActorRef",
    "ActorSystem",
    "AutoShutdown",
    "BackingOff",
    "Backoff",
    "ChildSpec",
    "Context",
    "Crashed",
    "DeadLetters",
    "DynamicSupervisor",
    "Ended",
    "Escalated",
    "Exit",
    "Exited",
    "GraceExpired",
    "Intensity",
    "Killed",
    "Kind",
    "LateError",
    "LifecycleEvent",
    "Listener",
    "MailboxFull",
    "MailboxSpec",
    "MailboxStatistics",
    "MessageLost",
    "NameTaken",
    "OnRestart",
    "OnStop",
    "Overrun",
    "Receiver",
    "ReplyPort",
    "Request",
    "Restart",
    "RestartIntensityExceeded",
    "Returned",
    "Shutdown",
    "ShutdownReport",
    "StartFailed",
    "StartRejected",
    "Started",
    "State",
    "StopRequested",
    "Stopped",
    "Strategy",
    "SystemStopped",
    "TreeNode",
    "of_class",
    "open_actor_system",
    "supervisor",
]
