"""Reports of the service: health, figures, and what is offered to a user."""

import logging
from collections.abc import Callable
from typing import Protocol

from bursar.remote import messages as api
from bursar.service.config import ServiceConfig
from bursar.service.interfaces import Clock, ExecutionEngine, ServiceJournal
from bursar.service.logs import LOGGER
from bursar.service.metrics import MetricsSnapshot, ServiceMetrics
from bursar.service.provisioner.worker_provisioner import WorkerProvisioner
from bursar.version import VERSION

log = logging.getLogger(f"{LOGGER}.http")


class SlotCatalogue(Protocol):
    """Offers slots and prices."""

    def slots(self, user: str, now: float) -> tuple[api.SlotInfo, ...]:
        """Return the slots that a user can buy now."""

    def posted(self, user: str, now: float) -> float | None:
        """Return a user's price now, per processor-second; None: nothing is sold."""


class ServiceManager:
    """
    Reports health, figures and offers; see :class:`.http.dependencies.ServiceControl`.

    Parameters
    ----------
    config
        Configuration of the service.
    engine, billing, provisioner, journal
        Parts of the service from which the figures are taken.
    clock
        Seconds since the epoch.
    state
        Returns the state of the service, ``"ok"``, ``"draining"`` or ``"failing"``, and why.
    drain
        Starts draining.
    seal
        PEM of the certificate to which tasks may be sealed; empty: no task may be sealed.
    certificate_ends
        Returns when the service's certificate ends, seconds since the epoch; None: there is none.
    """

    def __init__(
        self,
        config: ServiceConfig,
        *,
        engine: ExecutionEngine,
        billing: SlotCatalogue,
        provisioner: WorkerProvisioner,
        journal: ServiceJournal,
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
            attributes=dict(facts.attributes),
            seal=self._seal,
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
        """Start draining."""
        self._drain()

    def metrics(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return self._metrics.text()

    # See bursar.service.http.dependencies.RequestObserver.

    def served(self, *, method: str, route: str, status: int, seconds: float, who: str) -> None:
        """Count a request that was answered, and log the request if configured."""
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

    def _figures(self) -> MetricsSnapshot:
        seen, state = self._engine.overview(), self._state()
        ends = self._certificate_ends()
        there = [worker for worker in seen.workers if worker.connected]
        return MetricsSnapshot(
            submitted=seen.submitted,
            started=seen.started,
            finished=seen.finished,
            delivered=seen.delivered,
            waiting=sum(instance.counts.waiting for instance in seen.instances),
            running=sum(instance.counts.running for instance in seen.instances),
            instances=len(seen.instances),
            workers=len(there),
            processors=sum(worker.processors for worker in there),
            processors_busy=sum(worker.busy for worker in there),
            accounts_failing=len(self._provisioner.failing),
            journal_bytes=self._journal.size,
            ready=state.status == "ok",
            draining=state.status == "draining",
            certificate_seconds=None if ends is None else ends - self._clock(),
        )
