"""A real SDK of OpenTelemetry that keeps in memory what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shove_actors import Telemetry

Labels = tuple[tuple[str, Any], ...]


def labels(**values: Any) -> Labels:
    return tuple(sorted(values.items()))


@dataclass
class Sdk:
    """One application's SDK."""

    prefix: str = "shove_"
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    def __post_init__(self) -> None:
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))

    def telemetry(self, **options: Any) -> Telemetry:
        return Telemetry(
            prefix=self.prefix,
            meter_provider=self.meters,
            tracer_provider=self.tracers,
            **options,
        )

    def points(self) -> dict[str, dict[Labels, Any]]:
        """Data points by metric and labels."""
        data = self.reader.get_metrics_data()
        found: dict[str, dict[Labels, Any]] = {}
        for resource in data.resource_metrics if data is not None else []:
            for scope in resource.scope_metrics:
                assert scope.scope.name == "shove_actors"
                for metric in scope.metrics:
                    of_metric = found.setdefault(metric.name, {})
                    for point in metric.data.data_points:
                        of_metric[tuple(sorted((point.attributes or {}).items()))] = point
        return found

    def values(self, name: str) -> dict[Labels, float]:
        """Values of a counter or gauge; of a histogram the number of records."""
        points = self.points().get(self.prefix + name, {})
        return {
            key: point.value if hasattr(point, "value") else point.count
            for key, point in points.items()
        }

    def spans(self) -> list[ReadableSpan]:
        """Finished spans, in the order in which they began."""
        return sorted(self.exporter.get_finished_spans(), key=lambda s: s.start_time or 0)

    def tree(self) -> list[tuple[str, str | None]]:
        """Names of spans with those of their parents."""
        names = {s.context.span_id: s.name for s in self.spans() if s.context is not None}
        return [
            (s.name, names.get(s.parent.span_id) if s.parent is not None else None)
            for s in self.spans()
        ]


def attributes_of(span: ReadableSpan) -> Mapping[str, Any]:
    return dict(span.attributes or {})
