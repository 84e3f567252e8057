"""The runtime: the actors of the messaging system. Knows no NATS."""

from ._broker import Broker as Broker
from ._broker import open_broker as open_broker
from ._group import ConsumerGroup as ConsumerGroup
from ._group import ConsumerSupervisor as ConsumerSupervisor
from ._options import ConsumerOptions as ConsumerOptions
from ._outcome_report import ExitCode as ExitCode
from ._outcome_report import SupervisorOutcome as SupervisorOutcome
from ._publisher import Pipeline as Pipeline
from ._publisher import Publisher as Publisher
from ._receipt import PublishReceipt as PublishReceipt
from ._scaling import AutoscalerConfig as AutoscalerConfig
from ._scaling import Load as Load
from ._scaling import ProportionalStrategy as ProportionalStrategy
from ._scaling import ScalingStrategy as ScalingStrategy
from ._scaling import ThresholdStrategy as ThresholdStrategy

__all__ = [
    "AutoscalerConfig",
    "Broker",
    "ConsumerGroup",
    "ConsumerOptions",
    "ConsumerSupervisor",
    "ExitCode",
    "Load",
    "Pipeline",
    "ProportionalStrategy",
    "PublishReceipt",
    "Publisher",
    "ScalingStrategy",
    "SupervisorOutcome",
    "ThresholdStrategy",
    "open_broker",
]
