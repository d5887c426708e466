"""Agreements bought at the posted or a negotiated price, and what the service charges."""

import asyncio
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from bursar.market.agreement import Agreement, DealTemplate, SignedRecord, Terms, UsageRecord
from bursar.market.purchasing import DealRecord
from bursar.market.trade_manager import TradeLimits, TradeManager
from bursar.market.trade_messages import PriceQuote, Reject, TradeMessage
from bursar.market.usage import audit, check_chain
from bursar.model.allocation import Allocation
from bursar.model.errors import SiteError
from bursar.model.money import Micros, from_micros, rental_charge
from bursar.model.site import BuyingRules
from bursar.provisioning.accounting import PilotUsage, append_usage
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.http_transport import RemoteProblem
from bursar.remote.messages import AgreementInfo, SiteInfo
from bursar.remote.service_trading import ServiceTrader, TradingService, terms_of
from bursar.sites.protocol import MeteredTime
from bursar.sites.remote.held import HeldInstance
from bursar.sites.remote.purchase_journal import PurchaseJournal, PurchaseRecord

# Buy agreements with a service at the posted or a negotiated price, and end agreements.

_CLOSE = 1e-9
"""Relative tolerance of prices above the planned one, for rounding errors."""

_ENDED = ("over", "cancelled")


class PriceExceeded(SiteError):
    """
    The service asks more than was planned.
    """

    def __init__(self, message: str, terms: Terms) -> None:
        super().__init__(message, transient=True)
        self.terms = terms


class ServicePurchaser:
    """
    Buys processors of one service.

    Parameters
    ----------
    owner
        Name of the service in deals.
    customer
        Name of the run's user at the service.
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
        self._service = TradingService(
            name=owner, client=client, owner=owner, customer=customer, currency=currency
        )
        self._manager = TradeManager(customer)
        self._currency = currency
        self._record = record

    def partner(self, name: str) -> TradingService:
        """Return the service as one of several bidders, by the name of its site in the run."""
        return replace(self._service, name=name)

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

    async def negotiate(
        self,
        pilot: Allocation,
        seconds: float,
        rules: BuyingRules,
        on_deal: Callable[[DealRecord], None],
        *,
        earliest: float,
        latest: float | None,
    ) -> PurchaseRecord:
        """
        Negotiate about processors for a pilot, up to the price that the pilot expects.

        Parameters
        ----------
        seconds
            Duration.
        on_deal
            Called with what came of it, whatever that is.
        earliest, latest
            See :meth:`buy`.

        Raises
        ------
        SiteError
            When there is no agreement.
        """
        template = DealTemplate(
            processors=pilot.processors,
            seconds=seconds,
            earliest=earliest,
            latest=latest,
            currency=self._currency,
        )
        most = rental_charge(
            pilot.processors * seconds, pilot.unit_price or 0.0, pilot.fixed_price or 0.0
        )
        # On disk before any message that may end in an agreement: after a kill, the next process
        # finds the agreement by its negotiation.
        expected = Terms.of_amount(template, earliest, most)
        deals: list[str] = []

        async def bind(deal: str, _: str) -> None:
            deals.append(deal)
            self._record.write(PurchaseRecord(pilot.name, expected, deal=deal))

        trader = ServiceTrader([self.partner(pilot.site)], on_binding=bind)
        result = await trader.negotiate(
            rules.negotiated, template, TradeLimits(most=most, patience=rules.patience)
        )
        on_deal(DealRecord(site=pilot.site, result=result, lease=pilot.name))
        if result.agreement is not None:
            (deal,) = deals
            terms = result.agreement.terms
            bought = PurchaseRecord(pilot.name, terms, result.agreement.id, deal=deal)
            self._record.write(bought)
            return bought
        # Where an acceptance was not answered there may be one, which is looked for later.
        for deal in deals if not result.unknown else ():
            self._record.write(PurchaseRecord(pilot.name, expected, over=True, deal=deal))
        reason = "; ".join(answer.reason for answer in result.answers if answer.reason)
        raise SiteError(f"no agreement by {rules.market}: {reason or 'no answer'}", transient=True)

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


# Compare what a service charges with what our own count says was used.

_LATE = 5.0
"""Seconds by which our count may differ from the service's."""


class InvoiceReconciler:
    """
    Computes the paid time of a pilot's processors, so that our bill equals the service's invoice.

    Parameters
    ----------
    usage
        File that records what was delivered.
    currency
        Currency of all amounts.
    notify
        Called with a line for people when an invoice is odd.
    """

    def __init__(self, usage: Path, currency: str, notify: Callable[[str], None]) -> None:
        self._usage = usage
        self._currency = currency
        self._notify = notify
        self._guessed: dict[str, int] = {}  # micro-units, by pilot

    def settle(self, held: HeldInstance, terms: Terms, info: AgreementInfo) -> None:
        """
        Pay what an agreement charges, and report charges above our own count.

        Each of its processors counts from when it was ready; we see it a look later.
        """
        pilot = held.pilot
        charged = _seconds(pilot.paid, terms, info.charged)
        most = terms.charge(most_held(held, terms))
        if info.charged > most:
            self._notify(
                f"charged {from_micros(info.charged):.6g} {terms.currency} for {pilot.name}, "
                f"which by our count came to no more than {from_micros(most):.6g}"
            )
        elif charged is not None:
            # At the price that was agreed on, which may be below the one that was planned with.
            held.seconds, held.terms, held.charged = charged, terms, info.charged
        begun = info.ended if info.begun is None else info.begun
        if charged is None:  # free: what was delivered
            charged = max(0.0, (info.ended or 0.0) - (begun or 0.0))
        row = PilotUsage(
            pilot=pilot.name,
            job=info.id,
            processors=info.processors,
            seconds=charged,
            how=info.state,
        )
        append_usage(self._usage, [row])

    def settle_shared(self, held: HeldInstance, spent: int) -> None:
        """
        Pay what tasks cost on shared processors.

        Parameters
        ----------
        spent
            Micro-units, as the service says.
        """
        pilot = held.pilot
        seconds = time.monotonic() - held.since + _LATE
        price = (pilot.unit_price or 0.0) * pilot.processors
        if from_micros(spent) > price * seconds:
            self._notify(
                f"charged {from_micros(spent):.6g} {self._currency} for what ran on shared "
                f"processors, which by our count came to no more than {price * seconds:.6g}"
            )
        if pilot.unit_price and pilot.paid:
            held.seconds = from_micros(spent) / (pilot.unit_price * pilot.paid)
            held.charged = spent

    def guess(self, held: HeldInstance, bought: PurchaseRecord | None) -> None:
        """Pay for the time until the service's last answer; a silent service sends no invoice."""
        pilot = held.pilot
        if bought is None:
            if pilot.unit_price and pilot.paid:
                held.seconds = from_micros(held.spent) / (pilot.unit_price * pilot.paid)
            return
        held.seconds = max(0.0, held.seen - held.since)
        terms = held.terms = bought.terms
        self._guessed[pilot.name] = terms.charge(terms.processors * held.seconds)

    def settle_later(self, bought: PurchaseRecord, info: AgreementInfo) -> None:
        """Compare the guess for a closed pilot with the charge that the service now states."""
        guessed = self._guessed.pop(bought.pilot, None)
        if guessed is not None and info.charged != guessed:
            self._notify(
                f"answers again, and charged {from_micros(info.charged):.6g} "
                f"{bought.terms.currency} for {bought.pilot}; the bill says "
                f"{from_micros(guessed):.6g}"
            )


class UsageAuditor:
    """
    Checks a service's bills by the usage records that the service signs.

    The key that the service shows first counts for the whole run; the chain of records is read
    once, and then only what was added.

    Parameters
    ----------
    owner, customer
        Names of the service and of the run's user in usage records.
    key
        Ed25519 key, hexadecimal.

    Raises
    ------
    SiteError
        When it is no key.
    """

    def __init__(self, owner: str, customer: str, key: str) -> None:
        self._owner = owner
        self._customer = customer
        try:
            self._key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        except ValueError:
            raise SiteError("shows a key for usage records that is none") from None
        self._last: SignedRecord | None = None
        self._records: dict[str, list[UsageRecord]] = {}
        # Agreements may end together: two readers of the chain would each add the same records.
        self._reading = asyncio.Lock()

    async def audit(
        self, client: AsyncServiceClient, terms: Terms, info: AgreementInfo, held: float
    ) -> list[str]:
        """
        Return what is wrong with the bill for an agreement that is over; empty: nothing.

        Parameters
        ----------
        terms
            Terms that were agreed on.
        held
            Processor-seconds that can have been had, at the most.
        """
        async with self._reading:
            fresh = await client.usage(0 if self._last is None else self._last.number)
            # Signatures take a tenth of a millisecond each: not in the loop's thread.
            faults = await asyncio.to_thread(check_chain, fresh, self._key, self._last)
            for signed in fresh:
                self._records.setdefault(signed.record.agreement, []).append(signed.record)
                self._last = signed
        if len(faults) > 1:
            faults = [f"{faults[0]}, and {len(faults) - 1} more faults of signed records"]
        agreement = Agreement(
            id=info.id,
            owner=self._owner,
            customer=self._customer,
            terms=terms,
            signed_at=0.0,
        )
        return faults + audit(
            agreement,
            self._records.get(info.id, ()),
            charged=info.charged,
            penalty=info.penalty,
            ended=terms.end if info.ended is None else info.ended,
            held=held,
        )


def most_held(held: HeldInstance, terms: Terms) -> float:
    """Return the processor-seconds that a pilot can have had by our own count, at the most."""
    # Generous: both clocks and the last look are allowed for before a charge counts as odd.
    return terms.processors * (time.monotonic() - held.since + _LATE) + held.early


def _seconds(processors: int, terms: Terms, charged: Micros) -> float | None:
    """Convert a charge to paid seconds of each processor; None if processors cost nothing."""
    if not terms.unit_price or not processors:
        return None
    use = from_micros(charged) - terms.fixed_price
    return max(0.0, use / (terms.unit_price * processors))


def metered(info: AgreementInfo, processors: int) -> MeteredTime | None:
    """
    Return the paid time of an agreement that is over, with its prices and the charge.

    Parameters
    ----------
    processors
        Processors that are paid.

    Returns
    -------
    MeteredTime or None
        None: the processors cost nothing, so that the charge says nothing of the time.
    """
    seconds = _seconds(processors, terms_of(info), info.charged)
    if seconds is None:
        return None
    return MeteredTime(
        seconds=seconds,
        unit_price=info.unit_price,
        fixed_price=info.fixed_price,
        charged=info.charged,
    )
