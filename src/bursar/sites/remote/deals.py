"""What a run buys of one service, by whichever market, and gives back."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec.structs import replace as replace_record

from bursar.market.agreement import Agreement, Terms
from bursar.market.purchasing import DealRecord, MarketRecord
from bursar.model.allocation import Allocation
from bursar.model.errors import SiteError
from bursar.model.site import SiteFacts
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.market_messages import LotInfo
from bursar.remote.messages import AgreementInfo, SiteInfo
from bursar.remote.service_trading import TradingService, bid_at, result_of
from bursar.sites.remote.agreement_purchase import (
    PriceExceeded,
    ServicePurchaser,
    UsageAuditor,
    end_deal,
)
from bursar.sites.remote.purchase_journal import PurchaseJournal, PurchaseRecord
from bursar.sites.remote.site_client import RemoteSiteClient, RemoteSiteStatus

_STANDING = 60.0
"""Seconds for which the end of an auction is waited for where a bid is not wanted any more."""

_SETTLED = 1.0
"""Seconds after the close of an auction until its agreement is there, or will not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLot:
    """
    Processors of a service that are had as a whole.

    Parameters
    ----------
    id
        Of the agreement, or of the auction.
    terms
        Terms of the agreement; in an auction those of the highest bid.
    auction
        The auction; None: the agreement is there already.
    """

    id: str
    terms: Terms
    auction: LotInfo | None = None

    @classmethod
    def up_for_auction(cls, lot: LotInfo, most: float) -> "RemoteLot":
        """Return the lot of an auction, with the most that is bid per processor-second."""
        terms = Terms(
            processors=lot.processors,
            start=lot.start,
            seconds=lot.seconds,
            unit_price=most,
            currency=lot.currency,
        )
        return cls(id=lot.id, terms=terms, auction=lot)


class RemoteDeals:
    """
    Makes and ends the deals of a run with one service.

    Parameters
    ----------
    facts
        Facts of the site from the sites file.
    contact, status
        Client of the service, and its last known status.

    Attributes
    ----------
    auditor
        Checks the service's bills; None until something was bought of a service that signs.
    on_deal
        Called with each negotiation, and with each bill that is wrong.
    lot_of
        Returns the lot that a pilot is to have; None: processors are bought as they are needed.
    """

    def __init__(
        self,
        *,
        facts: SiteFacts,
        contact: RemoteSiteClient,
        status: RemoteSiteStatus,
        record: PurchaseJournal,
    ) -> None:
        self._published = facts
        self._contact = contact
        self._status = status
        self._record = record
        self._buyer: ServicePurchaser | None = None
        self.auditor: UsageAuditor | None = None
        self.on_deal: Callable[[MarketRecord], None] = lambda record: None
        self.lot_of: Callable[[str], RemoteLot | None] = lambda pilot: None

    async def buy(
        self,
        pilot: Allocation,
        info: SiteInfo,
        seconds: float,
        *,
        earliest: float = 0.0,
        latest: float | None = None,
    ) -> PurchaseRecord:
        """
        Buy processors for a pilot as the site's market says.

        Parameters
        ----------
        seconds
            Duration.
        earliest, latest
            Start and end, seconds since the epoch; 0 and None: as soon as there are so many.

        Raises
        ------
        SiteError
            When the service does not sell them within the limits.
        """
        name = self._published.name
        buyer = await self._purchaser(info)
        if (lot := self.lot_of(pilot.name)) is not None:
            return await self._take(pilot, lot, buyer.partner(name))
        if pilot.unit_price is None:
            raise SiteError(f"{name}: had not said its price", transient=True)
        # The sites file is the user's limit: a service that raised its price is not paid more.
        most = self._published.unit_price
        if most is not None and pilot.unit_price > most:
            pilot = replace(pilot, unit_price=most)
        try:
            rules = self._published.buying
            if rules.market != "posted":
                buying = buyer.negotiate(
                    pilot, seconds, rules, self.on_deal, earliest=earliest, latest=latest
                )
            else:
                buying = buyer.buy(pilot, seconds, earliest=earliest, latest=latest)
            return await self._contact.ask(buying)
        except PriceExceeded as error:
            self._status.take_price(error.terms.unit_price, error.terms.fixed_price)
            raise SiteError(f"{name}: {error}", transient=True) from None
        except SiteError as error:
            problem = f"{name}: {self._contact.plain(error)}"
            raise SiteError(problem, transient=error.transient) from None

    async def _take(
        self, pilot: Allocation, lot: RemoteLot, service: TradingService
    ) -> PurchaseRecord:
        """Take an agreement made by hand, or bid for a lot until its auction is over."""
        if lot.auction is None:
            kept = PurchaseRecord(
                pilot.name, lot.terms, lot.id, is_kept=not self._published.buying.gives_back
            )
            self._record.write(kept)
            return kept
        # On disk before the first bid, which cannot be withdrawn: after a kill, the next process
        # finds the agreement by the auction.
        expected = PurchaseRecord(pilot.name, lot.terms, deal=lot.id, closes=lot.auction.closes)
        self._record.write(expected)
        value = lot.terms.amount
        try:
            outcome = await self._contact.ask(bid_at(service, lot.auction, value))
        except SiteError as error:
            problem = f"{self._published.name}: {self._contact.plain(error)}"
            raise SiteError(problem, transient=error.transient) from None
        result = result_of(lot.auction, outcome)
        self.on_deal(DealRecord(site=pilot.site, result=result, lease=pilot.name))
        if outcome.agreement is None:
            self._record.write(replace_record(expected, over=True))
            why = outcome.reason or "others bid more"
            raise SiteError(f"{self._published.name}: {lot.id} is lost: {why}", transient=True)
        return self.agreed(pilot.name, outcome.agreement)

    async def partner(self, info: SiteInfo) -> TradingService:
        """Return the service as one of several bidders, by the name of its site in the run."""
        return (await self._purchaser(info)).partner(self._published.name)

    async def _purchaser(self, info: SiteInfo) -> ServicePurchaser:
        """Return who buys there, once the service has said the user's name."""
        if self._buyer is None:
            customer = (await self._contact.ask(self._contact.client.account())).user
            if info.usage_key:  # the one that is shown first counts
                self.auditor = UsageAuditor(info.name, customer, info.usage_key)
            self._buyer = ServicePurchaser(
                self._contact.client,
                owner=info.name,
                customer=customer,
                currency=info.currency,
                record=self._record,
            )
        return self._buyer

    # Made together with other owners.

    def expect(self, pilot: str, terms: Terms, deal: str) -> None:
        """Note, on disk, that a deal may become an agreement for a pilot."""
        self._record.write(PurchaseRecord(pilot, terms, deal=deal))

    def agreed(self, pilot: str, agreement: Agreement) -> PurchaseRecord:
        """Note the agreement that came of an expected deal."""
        expected = self._record.of(pilot)
        deal = "" if expected is None else expected.deal
        bought = PurchaseRecord(pilot, agreement.terms, agreement.id, deal=deal)
        self._record.write(bought)
        return bought

    def refused(self, pilot: str) -> None:
        """Note that nothing came of an expected deal."""
        if (expected := self._record.of(pilot)) is not None:
            self._record.write(replace_record(expected, over=True))

    # Given back.

    async def end(self, bought: PurchaseRecord, client: AsyncServiceClient) -> AgreementInfo | None:
        """
        End a purchase, and return the last state of its agreement; None: there was none.

        Raises
        ------
        SiteError
            When the service does not confirm the end.
        """
        if bought.is_kept:
            self._record.write(replace_record(bought, over=True))
            return None
        info = await self._contact.ask(end_deal(client, bought, self._record.agreements))
        left = bought.closes + _SETTLED - time.time()
        if info is None and left > 0:
            # A bid stands until the auction is over, and may yet win.
            if left > _STANDING:
                raise SiteError(f"a bid for {bought.deal} stands for {left:.0f} s", transient=True)
            await asyncio.sleep(left)
            info = await self._contact.ask(end_deal(client, bought, self._record.agreements))
        # Only after the service has answered: a kill in between repeats the ending, which changes
        # nothing.
        # One that was found by its terms is known by its name from now on, for the settlement.
        name = bought.agreement or ("" if info is None else info.id)
        self._record.write(replace_record(bought, agreement=name, over=True))
        return info
