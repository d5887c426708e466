"""What lies behind the API: all that its routes ask of the rest of the service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bursar.market.trade_messages import TradeMessage
from bursar.market.usage import SignedRecord
from bursar.model.money import Micros
from bursar.model.pricing import Pricing
from bursar.remote import messages as api
from bursar.service import interfaces
from bursar.service.http.http_limits import HttpLimits
from bursar.service.interfaces import Clock, Entropy, Principal


class ApiEngine(interfaces.ExecutionEngine, Protocol):
    """Instances, their tasks, results and files."""

    def home(self, user: str, handle: str) -> Path:
        """Folder with ``files`` and ``logs`` of an instance; ServiceError 404 as all methods."""

    def homes(self, user: str) -> Sequence[Path]:
        """Such folders of all instances of a user."""

    def output(self, user: str, handle: str, task: int, stream: str) -> str:
        """
        Name, in ``logs``, of the file with what a task printed on ``"stdout"`` or ``"stderr"``.

        Raises
        ------
        ServiceError
            404, when there is no such task, or it has not ended.
        """


class CustomerBilling(Protocol):
    """Deals and money; what changes something is durable once the journal is."""

    def deliver(self, user: str, message: TradeMessage) -> tuple[TradeMessage, ...]:
        """A user's message of a deal; the answers."""

    def agreements(self, user: str) -> api.AgreementList:
        """A user's own."""

    def agreement(self, user: str, agreement: str) -> api.AgreementInfo:
        """One of them; ServiceError 404 when it is not."""

    def cancel(self, user: str, agreement: str) -> api.AgreementInfo:
        """It ends before its time."""

    def account(self, user: str) -> api.AccountInfo:
        """What a user has."""

    def deposit(self, user: str, deposit: api.Deposit) -> api.AccountInfo:
        """Money for a user; once for a key."""

    def spent(self) -> Micros:
        """What all users have paid in all."""

    def invoice(self, user: str, since: float, until: float) -> api.InvoiceInfo:
        """What a user was charged in a time."""

    def usage(self, user: str) -> Sequence[SignedRecord]:
        """What a user was delivered."""

    def reprice(self, pricing: Pricing) -> None:
        """What is asked from now on."""

    def sales(self) -> Mapping[str, api.AgreementList]:
        """All agreements by customer, for the owner."""


class TokenStore(Protocol):
    """Who may come in by a token."""

    def create(self, new: api.NewToken) -> api.TokenInfo:
        """A new one, its secret included."""

    def tokens(self) -> list[api.TokenInfo]:
        """All that are good."""

    def revoke(self, token: str) -> None:
        """One is good no longer; ServiceError 404 when there is none of this id."""


class RequestAuthenticator(Protocol):
    """Says who asks; see :class:`bursar.service.identity.authentication.Authenticator`."""

    def authenticate(
        self, headers: Mapping[str, str], certificate: bytes | None, peer: str
    ) -> Principal:
        """Who sent a request; ServiceError 401 or 403 when that was not shown."""


class ServiceControl(Protocol):
    """The service as a whole."""

    def site(self, user: str) -> api.SiteInfo:
        """What it says of itself to a user."""

    def health(self) -> api.Health:
        """Whether it lives."""

    def ready(self) -> api.Health:
        """Whether it takes work."""

    def degraded(self) -> str:
        """What does not work though it takes work, for administrators; empty: all does."""

    def metrics(self) -> bytes:
        """In the text format of Prometheus."""

    def drain(self) -> None:
        """Begins to take nothing more."""


class DurabilityBarrier(Protocol):
    """Where all that was done becomes durable."""

    async def durable(self) -> None:
        """Returns when all that was done so far survives a power cut."""


class RequestObserver(Protocol):
    """Who is told what was asked."""

    def served(self, *, method: str, route: str, status: int, seconds: float, who: str) -> None:
        """
        A request was answered.

        Parameters
        ----------
        route
            Its name in the table; empty: there is none.
        who
            Stands for the user in this life of the service; empty: nobody.
        """

    def failed(self, incident: str, route: str, error: BaseException) -> None:
        """A fault of ours; the client was told no more than the incident's name."""


class NullObserver:
    """Nobody is told anything."""

    def served(self, *, method: str, route: str, status: int, seconds: float, who: str) -> None:
        """Nothing."""

    def failed(self, incident: str, route: str, error: BaseException) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiDependencies:
    """
    What the API is made of.

    Parameters
    ----------
    names
        Host names by which clients may call the service, besides those of the loopback
        interface, so that a web page cannot reach it under a name of its own (DNS rebinding).
    scrapers
        Users who may read the metrics without being administrators.
    own_limits
        Of users who have others than ``limits``, by name.
    """

    engine: ApiEngine
    till: CustomerBilling
    tokens: TokenStore
    authenticator: RequestAuthenticator
    manager: ServiceControl
    journal: DurabilityBarrier
    clock: Clock
    entropy: Entropy
    limits: HttpLimits = field(default_factory=HttpLimits)
    own_limits: Mapping[str, HttpLimits] = field(default_factory=dict)
    observer: RequestObserver = field(default_factory=NullObserver)
    names: frozenset[str] = frozenset()
    scrapers: frozenset[str] = frozenset()

    def limits_of(self, user: str) -> HttpLimits:
        """What a user may ask."""
        return self.own_limits.get(user, self.limits)
