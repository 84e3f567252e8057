"""The runtime: the actors of the messaging system. Knows no NATS."""

from ._audit import Audited as Audited
from ._audit import AuditSink as AuditSink
from ._audit import audited as audited
from ._audit_log import AuditEntry as AuditEntry
from ._audit_log import AuditLog as AuditLog
from ._broker import Broker as Broker
from ._broker import open_broker as open_broker
from ._dead_letter import DeadLetter as DeadLetter
from ._dead_letter import DeadLettersDone as DeadLettersDone
from ._dead_letter import LetterFilter as LetterFilter
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
from ._telemetry import Telemetry as Telemetry

__all__ = [
    "AuditEntry",
    "AuditLog",
    "AuditSink",
    "Audited",
    "AutoscalerConfig",
    "Broker",
    "ConsumerGroup",
    "ConsumerOptions",
    "ConsumerSupervisor",
    "DeadLetter",
    "DeadLettersDone",
    "ExitCode",
    "LetterFilter",
    "Load",
    "Pipeline",
    "ProportionalStrategy",
    "PublishReceipt",
    "Publisher",
    "ScalingStrategy",
    "SupervisorOutcome",
    "Telemetry",
    "ThresholdStrategy",
    "audited",
    "open_broker",
]
