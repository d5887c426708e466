"""What a run buys of one service, by whichever market, and gives back."""

from collections.abc import Callable
from dataclasses import replace

from msgspec.structs import replace as replace_record

from bursar.market.agreement import Agreement, Terms
from bursar.market.purchasing import MarketRecord
from bursar.model.allocation import Allocation
from bursar.model.errors import SiteError
from bursar.model.site import SiteFacts
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.messages import AgreementInfo, SiteInfo
from bursar.remote.service_trading import TradingService
from bursar.sites.remote.agreement_purchase import (
    PriceExceeded,
    ServicePurchaser,
    UsageAuditor,
    end_deal,
)
from bursar.sites.remote.purchase_journal import PurchaseJournal, PurchaseRecord
from bursar.sites.remote.site_client import RemoteSiteClient, RemoteSiteStatus


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
        if pilot.unit_price is None:
            raise SiteError(f"{name}: had not said its price", transient=True)
        # The sites file is the user's limit: a service that raised its price is not paid more.
        most = self._published.unit_price
        if most is not None and pilot.unit_price > most:
            pilot = replace(pilot, unit_price=most)
        try:
            rules = self._published.buying
            if rules.negotiates:
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
        info = await self._contact.ask(end_deal(client, bought, self._record.agreements))
        # Only after the service has answered: a kill in between repeats the ending, which changes
        # nothing.
        # One that was found by its terms is known by its name from now on, for the settlement.
        name = bought.agreement or ("" if info is None else info.id)
        self._record.write(replace_record(bought, agreement=name, over=True))
        return info
