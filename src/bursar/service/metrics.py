"""Metrics of the service in the text format of Prometheus."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
"""Bounds in seconds of the histogram of requests; the last are for requests that wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """
    Figures of the service at one moment; counts are since the start.

    Parameters
    ----------
    submitted, started, finished, delivered
        Counts; see :class:`bursar.service.engine.counters.TaskCounters`.
    waiting, running
        Number of tasks now.
    instances, workers, processors, processors_busy
        Numbers now.
    accounts_failing
        Number of local accounts whose workers cannot be started.
    journal_bytes
        Size of the journal on disk.
    ready
        Whether the service accepts work.
    draining
        Whether the service is draining.
    certificate_seconds
        Seconds until the certificate ends; None: there is none.
    """

    submitted: int = 0
    started: int = 0
    finished: int = 0
    delivered: int = 0
    waiting: int = 0
    running: int = 0
    instances: int = 0
    workers: int = 0
    processors: int = 0
    processors_busy: int = 0
    accounts_failing: int = 0
    journal_bytes: int = 0
    ready: bool = True
    draining: bool = False
    certificate_seconds: float | None = None


class ServiceMetrics:
    """
    Measurements in a registry of their own: no user, handle or task is in them.

    Parameters
    ----------
    figures
        Returns the current figures; called at each scrape.
    """

    def __init__(self, figures: Callable[[], MetricsSnapshot]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._requests = Counter(
            "bursar_http_requests",
            "Requests that were answered.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "bursar_http_request_duration_seconds",
            "How long they took.",
            ("route",),
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._incidents = Counter(
            "bursar_http_incidents", "Requests that failed by our fault.", registry=self._registry
        )
        self._registry.register(_SnapshotCollector(figures))

    # See bursar.service.http.dependencies.RequestObserver.

    def served(self, *, method: str, route: str, status: int, seconds: float, who: str) -> None:
        """Count a request that was answered."""
        self._requests.labels(method, route or "none", str(status)).inc()
        self._seconds.labels(route or "none").observe(seconds)

    def failed(self, incident: str, route: str, error: BaseException) -> None:
        """Count an internal error."""
        self._incidents.inc()

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(_WithoutCreationTimes(self._registry))


_COUNTERS: Sequence[tuple[str, str]] = (
    ("submitted", "Tasks that were taken."),
    ("started", "Attempts that were given to a worker."),
    ("finished", "Tasks whose end was recorded."),
    ("delivered", "Results that were sent to clients."),
)
_GAUGES: Sequence[tuple[str, str, str]] = (
    ("waiting", "tasks_waiting", "Tasks that wait."),
    ("running", "tasks_running", "Tasks that workers have."),
    ("instances", "instances", "Instances that there are."),
    ("workers", "workers", "Workers that are connected."),
    ("processors", "processors", "Processors of these."),
    ("processors_busy", "processors_busy", "Processors with tasks."),
    ("accounts_failing", "accounts_failing", "Local accounts whose workers cannot be had."),
    ("journal_bytes", "journal_bytes", "Size of the journal on disk."),
    ("ready", "ready", "Whether the service takes work."),
    ("draining", "draining", "Whether it is on its way out."),
)


class _WithoutCreationTimes:
    """
    A registry without the creation times of series.

    Creation times double the number of series, and the text format has no use for them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yield the registry's metrics without their creation times."""
        for family in self._registry.collect():
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            yield family


class _SnapshotCollector:
    """Takes the figures from the service at each scrape."""

    def __init__(self, figures: Callable[[], MetricsSnapshot]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield all figures as metrics."""
        now = self._figures()
        for field, text in _COUNTERS:
            yield CounterMetricFamily(f"bursar_tasks_{field}", text, value=getattr(now, field))
        for field, name, text in _GAUGES:
            yield GaugeMetricFamily(f"bursar_{name}", text, value=float(getattr(now, field)))
        seconds = now.certificate_seconds
        yield GaugeMetricFamily(
            "bursar_certificate_remaining_seconds",
            "For which the service's certificate is good still; NaN without one.",
            value=math.nan if seconds is None else seconds,
        )
