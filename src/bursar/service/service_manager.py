"""Reports of the service: health, figures, what is offered, and the metrics for Prometheus."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from bursar.remote import messages as api
from bursar.service.billing import ServiceBilling
from bursar.service.config import ServiceConfig
from bursar.service.engine.engine import ServiceEngine
from bursar.service.interfaces import Clock
from bursar.service.logs import LOGGER
from bursar.service.provisioner.worker_provisioner import WorkerProvisioner
from bursar.store import RecordStore
from bursar.version import VERSION

# Metrics of the service in the text format of Prometheus.

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
"""Bounds in seconds of the histogram of requests; the last are for requests that wait."""


FIGURES = {
    "tasks_submitted_total": "Tasks that were taken.",
    "tasks_started_total": "Attempts that were given to a worker.",
    "tasks_finished_total": "Tasks whose end was recorded.",
    "tasks_delivered_total": "Results that were sent to clients.",
    "tasks_waiting": "Tasks that wait.",
    "tasks_running": "Tasks that workers have.",
    "instances": "Instances that there are.",
    "workers": "Workers that are connected.",
    "processors": "Processors of these.",
    "processors_busy": "Processors with tasks.",
    "accounts_failing": "Local accounts whose workers cannot be had.",
    "journal_bytes": "Size of the journal on disk.",
    "ready": "Whether the service takes work.",
    "draining": "Whether it is on its way out.",
    "certificate_remaining_seconds": (
        "For which the service's certificate is good still; NaN without one."
    ),
}
"""What each figure is; those whose names end in ``_total`` count since the start."""


class ServiceMetrics:
    """
    Measurements in a registry of their own: no user, handle or task is in them.

    Parameters
    ----------
    figures
        Returns the current :data:`FIGURES`; called at each scrape.
    """

    def __init__(self, figures: Callable[[], Mapping[str, float]]) -> None:
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

    def __init__(self, figures: Callable[[], Mapping[str, float]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield all figures as metrics."""
        now = self._figures()
        for name, text in FIGURES.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(f"bursar_{name}", text, value=float(now[name]))


# Reports of the service: health, figures, and what is offered to a user.

log = logging.getLogger(f"{LOGGER}.http")


class ServiceManager:
    """
    Reports health, figures and offers.

    Parameters
    ----------
    engine, billing, provisioner, journal
        Parts of the service from which the figures are taken.
    state
        Returns the state of the service, ``"ok"``, ``"draining"`` or ``"failing"``, and why.
    seal
        PEM of the certificate to which tasks may be sealed; empty: no task may be sealed.
    certificate_ends
        Returns when the service's certificate ends, seconds since the epoch; None: there is none.
    """

    def __init__(
        self,
        config: ServiceConfig,
        *,
        engine: ServiceEngine,
        billing: ServiceBilling,
        provisioner: WorkerProvisioner,
        journal: RecordStore,
        clock: Clock,
        state: Callable[[], api.Health],
        drain: Callable[[], None],
        seal: str,
        certificate_ends: Callable[[], float | None],
    ) -> None:
        self._config = config
        self._engine = engine
        self._billing = billing
        self._provisioner = provisioner
        self._journal = journal
        self._clock = clock
        self._state = state
        self._drain = drain
        self._seal = seal
        self._certificate_ends = certificate_ends
        self._metrics = ServiceMetrics(self._figures)

    def site(self, user: str) -> api.SiteInfo:
        """Return what the site offers to a user."""
        config, facts, now = self._config, self._config.site, self._clock()
        free, price = self._provisioner.free, self._billing.posted(user, now)
        return api.SiteInfo(
            name=config.name,
            processors=facts.processors,
            free=free,
            speed=facts.speed,
            memory=facts.memory,
            currency=facts.currency,
            unit_price=price,
            fixed_price=facts.fixed_price or 0.0,
            protocols=config.selling.protocols,
            must_buy=config.selling.must_buy,
            shared_price=(price or 0.0) if config.selling.price_shared else 0.0,
            slots=self._billing.slots(user, now),
            waiting=0.0 if free else None,
            resources=dict(facts.resources),
            attributes=dict(facts.attributes),
            seal=self._seal,
            usage_key=self._billing.usage_key,
            draining=self._state().status == "draining",
            version=VERSION,
        )

    def health(self) -> api.Health:
        """Return that the process is alive; a service whose disk has failed ends."""
        return api.Health(status="ok", version=VERSION)

    def ready(self) -> api.Health:
        """Return whether the service accepts work, and if not, why; without names of users."""
        return self._state()

    def degraded(self) -> str:
        """Return what fails while the service accepts work, for administrators; empty: nothing."""
        failing = self._provisioner.failing.items()
        return "; ".join(
            f'workers of the account "{account}" cannot be had: {reason}'
            if account
            else f"workers cannot be had: {reason}"
            for account, reason in failing
        )

    def drain(self) -> None:
        """Accept no submissions and give out no tasks from now on; running tasks go on."""
        self._drain()

    def metrics(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return self._metrics.text()

    def served(self, *, method: str, route: str, status: int, seconds: float, who: str) -> None:
        """
        Count a request that was answered, and log the request if configured.

        Parameters
        ----------
        route
            Name of the route in the table; empty: no route matched.
        who
            Pseudonym of the user until the service ends; empty: not authenticated.
        """
        self._metrics.served(method=method, route=route, status=status, seconds=seconds, who=who)
        if self._config.log.requests:
            fields = {
                "method": method,
                "route": route,
                "status": status,
                "ms": round(seconds * 1000, 3),
                "who": who,
            }
            log.info("request", extra={"fields": fields})

    def failed(self, incident: str, route: str, error: BaseException) -> None:
        """Log an internal error; the client was told the identifier of the incident."""
        self._metrics.failed(incident, route, error)
        exc_info = (type(error), error, error.__traceback__)
        log.error("incident %s", incident, exc_info=exc_info, extra={"fields": {"route": route}})

    def _figures(self) -> dict[str, float]:
        seen, state = self._engine.overview(), self._state()
        ends = self._certificate_ends()
        there = [worker for worker in seen.workers if worker.connected]
        return {
            "tasks_submitted_total": seen.submitted,
            "tasks_started_total": seen.started,
            "tasks_finished_total": seen.finished,
            "tasks_delivered_total": seen.delivered,
            "tasks_waiting": sum(instance.counts.waiting for instance in seen.instances),
            "tasks_running": sum(instance.counts.running for instance in seen.instances),
            "instances": len(seen.instances),
            "workers": len(there),
            "processors": sum(worker.processors for worker in there),
            "processors_busy": sum(worker.busy for worker in there),
            "accounts_failing": len(self._provisioner.failing),
            "journal_bytes": self._journal.size,
            "ready": state.status == "ok",
            "draining": state.status == "draining",
            "certificate_remaining_seconds": math.nan if ends is None else ends - self._clock(),
        }
