"""Instruments of OpenTelemetry. Imported only where its API is installed and a provider is set.

One set per meter provider and prefix, however many brokers are opened: an instrument belongs to
its provider and cannot be taken back, and two of one name are an error there.

Counters are observable ones: they count here, and the SDK asks for them when it collects. An SDK's
own counter costs some ten microseconds per increment (it cleans and hashes the labels each time),
an addition to a cell costs nothing that can be measured. Of histograms there is no such form.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final
from weakref import WeakKeyDictionary

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
from opentelemetry.trace import Tracer

from . import _metrics as m
from ._metrics import Metric
from ._observer import PublishObserver, TopicObserver
from ._telemetry import Telemetry

SCOPE: Final = "shove_actors"


def _version() -> str:
    try:
        return version("shove-actors")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return ""


VERSION: Final = _version()


class Cell:
    """One label set's count. Written in Trio's thread only."""

    __slots__ = ("count", "labels")

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = dict(labels)
        self.count = 0


class Tally:
    """An observable counter."""

    def __init__(self, meter: Meter, prefix: str, metric: Metric) -> None:
        self._cells: dict[tuple[str, ...], Cell] = {}
        self._names = metric.labels
        meter.create_observable_counter(
            prefix + metric.name, [self._observe], metric.unit, metric.text
        )

    def cell(self, labels: Mapping[str, str]) -> Cell:
        """Where to count these labels; to keep, where it matters."""
        key = tuple([labels[name] for name in self._names])
        found = self._cells.get(key)
        if found is None:
            found = self._cells.setdefault(key, Cell(labels))
        return found

    def add(self, labels: Mapping[str, str]) -> None:
        self.cell(labels).count += 1

    def _observe(self, _: CallbackOptions) -> Iterable[Observation]:
        # From the exporter's thread, mostly; the copy is one step of the interpreter.
        cells = list(self._cells.values())
        return [Observation(cell.count, cell.labels) for cell in cells]


class MetricSet:
    """The instruments of one provider under one prefix."""

    def __init__(self, meter: Meter, prefix: str) -> None:
        self._running: set[TopicObserver] = set()
        self._lock = threading.Lock()

        def counter(metric: Metric) -> Tally:
            return Tally(meter, prefix, metric)

        def histogram(metric: Metric) -> metrics.Histogram:
            return meter.create_histogram(
                prefix + metric.name,
                metric.unit,
                metric.text,
                explicit_bucket_boundaries_advisory=metric.bounds,
            )

        self.consumed = counter(m.CONSUMED)
        self.failed = counter(m.FAILED)
        self.published = counter(m.PUBLISHED)
        self.processing = histogram(m.PROCESSING)
        self.publishing = histogram(m.PUBLISHING)
        self.size = histogram(m.SIZE)
        self.decisions = counter(m.DECISIONS)
        self.errors = counter(m.ERRORS)
        self.dead = counter(m.DEAD)
        self.audit_failures = counter(m.AUDIT_FAILURES)
        meter.create_observable_gauge(
            prefix + m.INFLIGHT.name, [self._inflight], m.INFLIGHT.unit, m.INFLIGHT.text
        )

    def opened(self, observer: TopicObserver) -> None:
        """Its consumers begin to run."""
        with self._lock:
            self._running.add(observer)

    def closed(self, observer: TopicObserver) -> None:
        """They have ended."""
        with self._lock:
            self._running.discard(observer)

    def _inflight(self, _: CallbackOptions) -> Iterable[Observation]:
        # From the exporter's thread, mostly.
        with self._lock:
            running = list(self._running)
        sums: Counter[tuple[tuple[str, str], ...]] = Counter()
        for each in running:
            sums[tuple(each.labels.items())] += each.busy()
        return [Observation(busy, dict(labels)) for labels, busy in sums.items()]


_sets: WeakKeyDictionary[MeterProvider, dict[str, MetricSet]] = WeakKeyDictionary()
_sets_lock = threading.Lock()


def _metrics_of(provider: MeterProvider, prefix: str) -> MetricSet:
    with _sets_lock:
        of_provider = _sets.setdefault(provider, {})
        found = of_provider.get(prefix)
        if found is None:
            found = of_provider[prefix] = MetricSet(provider.get_meter(SCOPE, VERSION), prefix)
        return found


class Instruments:
    """What one broker uses. `tracer`: None when nobody traces."""

    def __init__(self, metric_set: MetricSet, tracer: Tracer | None) -> None:
        self.metrics = metric_set
        self.tracer = tracer
        self.publishers = PublishObserver(metric_set, tracer)

    def topic(self, topic: str, group: str, busy: Callable[[], int]) -> TopicObserver:
        """The observer of one registration."""
        return TopicObserver(self, topic, group, busy)

    def backend_error(self, backend: str, kind: str) -> None:
        self.metrics.errors.add({"backend": backend, "kind": kind})

    def scaled(self, topic: str, before: int, after: int) -> None:
        """The autoscaler changed the number of consumers."""
        direction = "up" if after > before else "down"
        self.metrics.decisions.add({"topic": topic, "direction": direction})


def instruments_for(telemetry: Telemetry) -> Instruments | None:
    """None when neither provider is more than the API's own stand-in."""
    meters = telemetry.meter_provider or metrics.get_meter_provider()
    tracers = telemetry.tracer_provider or trace.get_tracer_provider()
    counted = telemetry.metrics and not _is_stand_in(meters)
    traced = telemetry.tracing and not _is_stand_in(tracers)
    if not counted and not traced:
        return None
    tracer = tracers.get_tracer(SCOPE, VERSION) if traced else None
    if not counted:
        meters = metrics.NoOpMeterProvider()
    return Instruments(_metrics_of(meters, telemetry.prefix), tracer)


def _is_stand_in(provider: object) -> bool:
    """The API's own providers record nothing; an SDK's classes live elsewhere."""
    return type(provider).__module__.startswith(("opentelemetry.metrics", "opentelemetry.trace"))
