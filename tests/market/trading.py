"""Owners, buyers and lots as the tests of trading use them."""

from collections.abc import Iterable

from bursar.market.agreement import Agreement, DealTemplate, Terms
from bursar.market.trade_manager import TradeManager
from bursar.market.trade_messages import TradeMessage
from bursar.market.trade_server import TradeServer
from bursar.model.money import Pricing, Refusal

NOW = 1_000.0

WANTED = DealTemplate(processors=4, seconds=100.0, earliest=5_000.0, latest=9_000.0)
"""400 processor-seconds: at a unit price of 1, 400 million micro-units."""

UNITS = 1_000_000


def server(name: str = "uni", base: float = 1.0, processors: int = 4, **settings) -> TradeServer:
    return TradeServer(name, processors=processors, pricing=Pricing(base), **settings)


def manager(name: str = "ann") -> TradeManager:
    return TradeManager(name)


def only(messages: Iterable[TradeMessage]) -> TradeMessage:
    (message,) = messages
    return message


class Shop:
    """A seller without capacity: it asks one amount for anything."""

    def __init__(self, amount: int, *, validity: float = 600.0) -> None:
        self.name = "uni"
        self.currency = "SU"
        self.validity = validity
        self.amount = amount
        self.sold: list[Agreement] = []

    def terms(self, deal: str, customer: str, template: DealTemplate, now: float) -> Terms:
        return Terms.of_amount(template, template.earliest, self.amount)

    def hold(self, deal: str, customer: str, terms: Terms, until: float, now: float) -> None:
        pass

    def let_go(self, deal: str, customer: str) -> None:
        pass

    def sell(self, deal: str, customer: str, terms: Terms, now: float) -> Agreement | Refusal:
        self.sold.append(
            Agreement(
                id=f"uni-{len(self.sold) + 1}",
                owner=self.name,
                customer=customer,
                terms=terms,
                signed_at=now,
            )
        )
        return self.sold[-1]

    def take_back(self, agreement: Agreement, now: float) -> Refusal | None:
        self.sold.remove(agreement)
        return None
