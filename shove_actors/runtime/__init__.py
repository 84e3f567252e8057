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

__all__ = [
    "Broker",
    "ConsumerGroup",
    "ConsumerOptions",
    "ConsumerSupervisor",
    "ExitCode",
    "Pipeline",
    "PublishReceipt",
    "Publisher",
    "SupervisorOutcome",
    "open_broker",
]
