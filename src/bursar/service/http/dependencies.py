"""The rest of the service, as the API's routes call it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bursar.service.billing import ServiceBilling
from bursar.service.config import HttpLimits
from bursar.service.engine.engine import ServiceEngine
from bursar.service.identity.authentication import Authenticator, JournalTokenStore
from bursar.service.interfaces import Clock, Entropy
from bursar.service.service_manager import ServiceManager
from bursar.store import RecordStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiDependencies:
    """
    The components that the API is made of.

    Parameters
    ----------
    names
        Host names by which clients may call the service, besides those of the loopback
        interface, so that a web page cannot reach it under a name of its own (DNS rebinding).
    scrapers
        Users who may read the metrics without being administrators.
    own_limits
        Limits of users for whom ``limits`` do not apply, by name.
    """

    engine: ServiceEngine
    billing: ServiceBilling
    tokens: JournalTokenStore
    authenticator: Authenticator
    manager: ServiceManager
    journal: RecordStore
    clock: Clock
    entropy: Entropy
    limits: HttpLimits = field(default_factory=HttpLimits)
    own_limits: Mapping[str, HttpLimits] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    scrapers: frozenset[str] = frozenset()

    def limits_of(self, user: str) -> HttpLimits:
        """Return the limits of a user."""
        return self.own_limits.get(user, self.limits)
