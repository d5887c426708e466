"""Buy agreements with a service at the posted price, and end agreements."""

import math
import secrets
from collections import deque
from collections.abc import Collection, Iterable

from bursar.market.agreement import DealTemplate, Terms
from bursar.market.trade_manager import TradeManager
from bursar.market.trade_messages import PriceQuote, Reject, TradeMessage
from bursar.model.allocation import Allocation
from bursar.model.errors import SiteError
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.messages import AgreementInfo, SiteInfo
from bursar.remote.problems import RemoteProblem
from bursar.sites.remote.purchase_journal import PurchaseJournal, PurchaseRecord

_CLOSE = 1e-9
"""Relative tolerance of prices above the planned one, for rounding errors."""

_ENDED = ("over", "cancelled")


class PriceExceeded(SiteError):
    """
    The service asks more than was planned.

    Parameters
    ----------
    terms
        Terms that the service asks for.
    """

    def __init__(self, message: str, terms: Terms) -> None:
        super().__init__(message, transient=True)
        self.terms = terms


class ServicePurchaser:
    """
    Buys processors of one service.

    Parameters
    ----------
    client
        Client of the service.
    owner
        Name of the service in deals.
    customer
        Name of the run's user at the service.
    currency
        Currency of all prices.
    record
        Journal of purchases.
    """

    def __init__(
        self,
        client: AsyncServiceClient,
        *,
        owner: str,
        customer: str,
        currency: str,
        record: PurchaseJournal,
    ) -> None:
        self._client = client
        self._owner = owner
        self._manager = TradeManager(customer)
        self._currency = currency
        self._record = record

    async def buy(
        self, pilot: Allocation, seconds: float, *, earliest: float, latest: float | None
    ) -> PurchaseRecord:
        """
        Buy processors for a pilot.

        Parameters
        ----------
        seconds
            Duration.
        earliest, latest
            Start and end, seconds since the epoch; 0 and None: as soon as there are so many.

        Raises
        ------
        PriceExceeded
            When the processors cost more than the pilot expects.
        SiteError
            When the service does not sell them.
        """
        deal = secrets.token_hex(16)
        template = DealTemplate(
            processors=pilot.processors,
            seconds=seconds,
            earliest=earliest,
            latest=latest,
            currency=self._currency,
        )
        try:
            reason = await self._exchange(self._manager.ask(deal, [self._owner], template, 0.0))
            quotes = self._manager.quotes(deal, -math.inf)
            if not quotes:
                raise _refused(reason)
            return await self._accept(pilot, quotes[0])
        finally:
            self._manager.forget(deal)

    async def _accept(self, pilot: Allocation, quote: PriceQuote) -> PurchaseRecord:
        terms = quote.terms
        self._check_price(pilot, terms)
        # On disk before the acceptance is sent: after a kill, the next process finds the agreement
        # by these terms and ends it.
        self._record.write(PurchaseRecord(pilot.name, terms))
        # The owner's clock says whether it still holds.
        reason = await self._exchange(self._manager.accept(quote, -math.inf))
        agreed = [a for a in self._manager.agreements if a.terms == terms]
        if not agreed:
            # A clear refusal: nothing is left to look for.
            self._record.write(PurchaseRecord(pilot.name, terms, over=True))
            raise _refused(reason)
        bought = PurchaseRecord(pilot.name, terms, agreed[0].id)
        self._record.write(bought)
        return bought

    def _check_price(self, pilot: Allocation, terms: Terms) -> None:
        for asked, planned in (
            (terms.unit_price, pilot.unit_price),
            (terms.fixed_price, pilot.fixed_price),
        ):
            if planned is not None and asked > planned * (1 + _CLOSE):
                raise PriceExceeded(
                    f"asks {terms.unit_price:.6g} {self._currency} per processor-second and "
                    f"{terms.fixed_price:g} for each agreement, not {pilot.unit_price or 0:.6g} "
                    f"and {pilot.fixed_price or 0:g}",
                    terms,
                )

    async def _exchange(self, messages: Iterable[TradeMessage]) -> str:
        """
        Send messages, and answer the replies until neither side has more to say.

        Returns
        -------
        str
            Reason of the service's last rejection; empty after an agreement.
        """
        reason = ""
        outgoing = deque(messages)
        while outgoing:
            for answer in await self._client.trade(outgoing.popleft()):
                reason = answer.reason if isinstance(answer, Reject) else ""
                outgoing.extend(self._manager.deliver(answer, 0.0))
        return reason


def check_shared_price(name: str, pilot: Allocation, info: SiteInfo, most: float | None) -> None:
    """
    Check that shared processors cost no more than was planned.

    Parameters
    ----------
    name
        Name of the site.
    most
        Highest price per processor-second by the sites file; None: no limit.

    Raises
    ------
    SiteError
        When the service asks for more.
    """
    planned = pilot.unit_price or 0.0
    limit = planned if most is None else min(planned, most)
    if info.shared_price > limit * (1 + _CLOSE):
        raise SiteError(
            f"{name}: asks {info.shared_price:.6g} {info.currency} per processor-second that is "
            f"shared, not {limit:.6g}",
            transient=True,
        )


def _refused(reason: str) -> SiteError:
    return SiteError(f"sells no processors: {reason or 'no answer'}", transient=True)


async def end_deal(
    client: AsyncServiceClient, bought: PurchaseRecord, named: Collection[str]
) -> AgreementInfo | None:
    """
    End an unneeded purchase; return the agreement's last state, None if none was made.

    Parameters
    ----------
    named
        Ids of agreements that are known to belong to other purchases.

    Raises
    ------
    RemoteProblem, SiteError
        When the service does not confirm the end.
    """
    info = await _find(client, bought, named)
    if info is None or info.state in _ENDED:
        return info
    return await client.cancel_agreement(info.id)


async def _find(
    client: AsyncServiceClient, bought: PurchaseRecord, named: Collection[str]
) -> AgreementInfo | None:
    """Return the agreement that came of a purchase; None if there is none."""
    if not bought.agreement:
        matching = [a for a in await client.agreements() if bought.is_of(a) and a.id not in named]
        # Terms may match several: one that still runs, and costs, comes first.
        return min(matching, key=lambda a: a.state in _ENDED, default=None)
    try:
        return await client.agreement(bought.agreement)
    except RemoteProblem as problem:
        if problem.kind == "not-found":
            return None
        raise
