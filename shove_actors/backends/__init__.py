"""Backends: the port that the runtime speaks, and its two implementations."""

from . import _margins as margins
from ._delivery import Delivery as Delivery
from ._keyed_lane import KeyedLane as KeyedLane
from ._lane_buffer import BUSY_S as BUSY_S
from ._lane_buffer import PAUSE_S as PAUSE_S
from ._lane_buffer import LaneBuffer as LaneBuffer
from ._lane_buffer import LaneClosed as LaneClosed
from ._port import Backend as Backend
from ._port import BackendConfig as BackendConfig
from ._port import BackendEvent as BackendEvent
from ._port import Backlog as Backlog
from ._port import Capabilities as Capabilities
from ._port import Kept as Kept
from ._port import KeyedSpec as KeyedSpec
from ._port import Lane as Lane
from ._port import LaneSpec as LaneSpec
from ._port import LaneStatistics as LaneStatistics
from ._port import Mark as Mark
from ._port import Post as Post
from ._port import PostWatch as PostWatch
from ._port import Stored as Stored
from ._port import StreamEnd as StreamEnd
from ._reshard import Resharded as Resharded
from ._tenure import Tenure as Tenure

__all__ = [
    "BUSY_S",
    "PAUSE_S",
    "Backend",
    "BackendConfig",
    "BackendEvent",
    "Backlog",
    "Capabilities",
    "Delivery",
    "Kept",
    "KeyedLane",
    "KeyedSpec",
    "Lane",
    "LaneBuffer",
    "LaneClosed",
    "LaneSpec",
    "LaneStatistics",
    "Mark",
    "Post",
    "PostWatch",
    "Resharded",
    "Stored",
    "StreamEnd",
    "Tenure",
    "margins",
]
