"""The interfaces of the rest of the service that the API's routes call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bursar.market.agreement import SignedRecord
from bursar.market.trade_messages import TradeMessage
from bursar.model.money import Micros, Pricing
from bursar.remote import market_messages as market
from bursar.remote import messages as api
from bursar.remote.admin_messages import NewToken, TokenInfo
from bursar.service import interfaces
from bursar.service.config import HttpLimits
from bursar.service.interfaces import Clock, Entropy, Principal


class ApiEngine(interfaces.ExecutionEngine, Protocol):
    """The engine as the API uses it: instances, their tasks, results and files."""

    def home(self, user: str, handle: str) -> Path:
        """
        Return the folder with an instance's ``files`` and ``logs``; ServiceError 404 when unknown.
        """

    def homes(self, user: str) -> Sequence[Path]:
        """Return these folders for all instances of a user."""

    def output(self, user: str, handle: str, task: int, stream: str) -> str:
        """
        Return the name, in ``logs``, of the file with a task's ``"stdout"`` or ``"stderr"``.

        Raises
        ------
        ServiceError
            404, when there is no such task, or it has not ended.
        """


class CustomerAccounts(Protocol):
    """Accounts of users; changes are durable once the journal is."""

    def account(self, user: str) -> api.AccountInfo:
        """Return a user's account."""

    def deposit(self, user: str, deposit: api.Deposit) -> api.AccountInfo:
        """Add money to a user's account, once for each key."""

    def spent(self) -> Micros:
        """Return the micro-units that all users have paid."""

    def invoice(self, user: str, since: float, until: float) -> market.InvoiceInfo:
        """Return a user's charges from ``since`` to ``until``, seconds since the epoch."""

    def revenue(self, since: float, until: float) -> market.RevenueInfo:
        """Return what all users were charged from ``since`` to ``until``, for the owner."""

    def usage(self, user: str) -> Sequence[SignedRecord]:
        """Return a user's signed usage records."""


class CustomerBilling(Protocol):
    """Agreements and accounts; changes are durable once the journal is."""

    @property
    def accounts(self) -> CustomerAccounts:
        """Return the accounts of users."""

    def deliver(self, user: str, message: TradeMessage) -> tuple[TradeMessage, ...]:
        """Handle a user's trade message and return the answers."""

    def heard(self, user: str, deal: str, after: int) -> list[TradeMessage]:
        """Return what an auctioneer has told a bidder after a number; ServiceError 404: nobody."""

    def auctions(self) -> market.LotList:
        """Return the auctions that are held, were held lately, or come next."""

    def agreements(self, user: str) -> api.AgreementList:
        """Return a user's agreements."""

    def agreement(self, user: str, agreement: str) -> api.AgreementInfo:
        """Return one agreement of a user; ServiceError 404 when there is none of this id."""

    def cancel(self, user: str, agreement: str) -> api.AgreementInfo:
        """End an agreement early."""

    @property
    def pricing(self) -> Pricing:
        """Prices that the owner asks, with the rules by which they change."""

    def reprice(self, pricing: Pricing) -> None:
        """Set the prices that are asked from now on."""

    def sales(self) -> Mapping[str, api.AgreementList]:
        """Return all agreements by customer, for the owner."""


class TokenStore(Protocol):
    """The tokens by which users authenticate."""

    def create(self, new: NewToken) -> TokenInfo:
        """Create a token; return the token's description and secret."""

    def tokens(self) -> list[TokenInfo]:
        """Return all valid tokens."""

    def revoke(self, token: str) -> None:
        """Revoke a token; ServiceError 404 when there is none of this id."""


class RequestAuthenticator(Protocol):
    """Identifies senders; see :class:`bursar.service.identity.authentication.Authenticator`."""

    def authenticate(
        self, headers: Mapping[str, str], certificate: bytes | None, peer: str
    ) -> Principal:
        """
        Return the sender of a request; raise ServiceError 401 or 403 for an unproven identity.
        """


class ServiceControl(Protocol):
    """State and control of the whole service."""

    def site(self, user: str) -> api.SiteInfo:
        """Return the facts and free slots that a user may see."""

    def health(self) -> api.Health:
        """Return whether the process responds."""

    def ready(self) -> api.Health:
        """Return whether the service accepts work."""

    def degraded(self) -> str:
        """
        Return what does not work although work is accepted, for administrators; empty: nothing.
        """

    def metrics(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""

    def drain(self) -> None:
        """Stop accepting work."""


class DurabilityBarrier(Protocol):
    """The journal, as far as the API waits for it."""

    async def durable(self) -> None:
        """Return when everything done so far survives a power cut."""


class RequestObserver(Protocol):
    """Receives a record of each request, for logs and metrics."""

    def served(self, *, method: str, route: str, status: int, seconds: float, who: str) -> None:
        """
        Record an answered request.

        Parameters
        ----------
        route
            Name of the route in the table; empty: no route matched.
        who
            Pseudonym of the user until the service ends; empty: not authenticated.
        """

    def failed(self, incident: str, route: str, error: BaseException) -> None:
        """Record an internal error, of which the client has learnt only the incident's name."""


class NullObserver:
    """An observer that records nothing."""

    def served(self, *, method: str, route: str, status: int, seconds: float, who: str) -> None:
        """Do nothing."""

    def failed(self, incident: str, route: str, error: BaseException) -> None:
        """Do nothing."""


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

    engine: ApiEngine
    billing: CustomerBilling
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
        """Return the limits of a user."""
        return self.own_limits.get(user, self.limits)
