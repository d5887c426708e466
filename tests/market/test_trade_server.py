"""The trade server keeps its word, and never sells what it does not have."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.market.trading import NOW, UNITS, WANTED, manager, only, server
from tests.thoroughness import examples

from bursar.market.agreement import Agreement, DealTemplate
from bursar.market.negotiation.auctioneers import SealedAuctioneer
from bursar.market.negotiation.bilateral import Concession
from bursar.market.trade_manager import TradeManager
from bursar.market.trade_messages import (
    Accept,
    Confirm,
    MessageExchange,
    Offer,
    PriceQuote,
    Reject,
    RequestQuote,
    TradeMessage,
)
from bursar.market.trade_server import TradeServer
from bursar.model.money import Adjusting, Advance, Demand, ForGroup, Loyalty, Pricing, Refusal

PROCESSORS = 5


def bought(exchange: MessageExchange, ann: TradeManager, now: float = NOW) -> Agreement:
    exchange.deliver(ann.ask("d", ["uni"], WANTED, now), now)
    exchange.deliver(ann.accept(only(ann.quotes("d", now)), now), now)
    return only(ann.agreements)


def quote(owner: TradeServer, template: DealTemplate = WANTED, **fields) -> PriceQuote:
    head = {"deal": "d", "sender": "ann", "to": "uni", "number": 1, **fields}
    return only(owner.deliver(RequestQuote(**head, template=template), NOW))


def test_a_deal_holds_its_price_whatever_pricing_does() -> None:
    exchange = MessageExchange([owner := server(), ann := manager()])
    agreement = bought(exchange, ann)

    owner.reprice(Pricing(100.0))
    exchange.deliver(ann.again("d"), NOW + 50)

    assert ann.agreements == owner.agreements == (agreement,)
    assert agreement.unit_price == 1.0


def test_a_quote_keeps_its_price_until_it_expires() -> None:
    exchange = MessageExchange([owner := server(), ann := manager()])
    exchange.deliver(ann.ask("d", ["uni"], WANTED, NOW), NOW)

    owner.reprice(Pricing(100.0))
    exchange.deliver(ann.accept(only(ann.quotes("d", NOW)), NOW), NOW)

    assert only(ann.agreements).terms.amount == 400 * UNITS


def test_the_cheapest_of_several_quotes_comes_first() -> None:
    owners = [server("dear", base=3.0), server("cheap", base=1.0), server("small", processors=1)]
    exchange = MessageExchange([ann := manager(), *owners])

    exchange.deliver(ann.ask("d", ["dear", "cheap", "small"], WANTED, NOW), NOW)

    assert [q.sender for q in ann.quotes("d", NOW)] == ["cheap", "dear"]
    assert ann.states("d")["small"] == "refused"


def test_what_does_not_fit_now_is_quoted_for_later() -> None:
    """All is sold from 5000 to 5100; the next window begins then."""
    exchange = MessageExchange([owner := server(), ann := manager()])
    bought(exchange, ann)

    assert quote(owner, sender="bob", deal="e").terms.start == 5_100.0


def test_prices_follow_the_policy_for_the_customer_and_the_machine() -> None:
    """Half is sold: 1.5 for demand; 0.5 for the group; 0.9 ahead; 0.8 once 400 SU are paid."""
    owner = TradeServer(
        "uni",
        processors=8,
        pricing=Pricing(
            1.0,
            (
                Demand(points=((0.0, 1.0), (1.0, 2.0))),
                ForGroup(groups=frozenset({"physics"}), factor=0.5),
                Advance(steps=((1_000.0, 0.9),)),
                Loyalty(steps=((400 * UNITS, 0.8),)),
            ),
        ),
        groups={"ann": frozenset({"physics"})},
    )
    exchange = MessageExchange([owner, bob := manager("bob")])
    assert bought(exchange, bob).unit_price == pytest.approx(0.9)

    assert quote(owner).terms.unit_price == pytest.approx(1.5 * 0.5 * 0.9)
    owner.note_payment("ann", 400 * UNITS)
    assert quote(owner, deal="e").terms.unit_price == pytest.approx(1.5 * 0.5 * 0.9 * 0.8)


def test_supply_and_demand_move_the_price_by_the_period() -> None:
    """Nothing is sold, target 0.5, gain 0.2: down by 0.1 each ten minutes, to the least."""
    rule = Adjusting(target=0.5, gain=0.2, least=0.6, most=2.0, every=600.0)
    owner = TradeServer("uni", processors=4, pricing=Pricing(1.0, (rule,)))

    owner.tick(600.0)
    prices = []
    for period in range(2, 8):
        request = RequestQuote(deal=f"d{period}", sender="ann", to="uni", number=1, template=WANTED)
        prices.append(only(owner.deliver(request, period * 600.0)).terms.unit_price)

    assert prices == pytest.approx([0.9, 0.8, 0.7, 0.6, 0.6, 0.6])


def test_a_protocol_it_does_not_speak_is_refused() -> None:
    owner = server(protocols=("bargaining",))

    answer = quote(owner)
    assert isinstance(answer, Reject)
    assert answer.number == 0


@pytest.mark.parametrize(
    "template",
    [
        DealTemplate(processors=4, seconds=1.0, currency="EUR"),
        DealTemplate(processors=5, seconds=1.0),
        DealTemplate(processors=4, seconds=1.0, customer="bob"),
        DealTemplate(processors=4, seconds=1.0, latest=500.0),
        DealTemplate(processors=4, seconds=1e11),
    ],
    ids=["currency", "too many", "for somebody else", "too late", "too large a deal"],
)
def test_what_it_cannot_sell_is_rejected_with_a_reason(template: DealTemplate) -> None:
    owner = server(base=100.0)

    assert quote(owner, template).reason
    assert isinstance(quote(owner, deal="e"), PriceQuote)


def test_a_stranger_is_refused_where_customers_are_known() -> None:
    owner = server(customers={"ann"})

    assert isinstance(quote(owner), PriceQuote)
    assert isinstance(quote(owner, sender="eve"), Reject)


def test_nobody_accepts_another_customers_quote() -> None:
    owner = server()
    quote(owner)

    answer = owner.deliver(Accept(deal="d", sender="eve", to="uni", number=2, of=1), NOW)

    assert isinstance(only(answer), Reject)
    assert owner.agreements == ()


def test_a_cancelled_deal_frees_its_processors_unless_it_has_begun() -> None:
    exchange = MessageExchange([owner := server(), ann := manager(), bob := manager("bob")])
    bought(exchange, ann)
    exchange.deliver(ann.cancel("d", "uni", NOW), NOW)
    assert (ann.agreements, owner.agreements) == ((), ())

    agreement = bought(exchange, bob)
    exchange.deliver(bob.cancel("d", "uni", 5_000.0), 5_000.0)
    assert bob.agreements == owner.agreements == (agreement,)


class Careful:
    """A clerk that signs only what it was told to, by names of its own."""

    def __init__(self) -> None:
        self.signs = False
        self.kept: list[Agreement] = []

    def name(self) -> str:
        return "a-name"

    def sign(self, agreement: Agreement, deal: str, now: float) -> Refusal | None:
        if not self.signs:
            return Refusal("there is no money", final=False)
        self.kept.append(agreement)
        return None

    def take_back(self, agreement: Agreement, now: float) -> None:
        self.kept.remove(agreement)


def test_a_clerk_names_agreements_and_has_a_say() -> None:
    """What it refuses binds nobody and takes no processors; what is taken back, it is told."""
    clerk = Careful()
    exchange = MessageExchange(
        [owner := server(registrar=clerk), ann := manager(), bob := manager("bob")]
    )
    exchange.deliver(ann.ask("d", ["uni"], WANTED, NOW), NOW)
    exchange.deliver(ann.accept(only(ann.quotes("d", NOW)), NOW), NOW)
    assert (ann.agreements, owner.agreements, owner.capacity.commitments) == ((), (), ())

    clerk.signs = True
    agreement = bought(exchange, bob)
    assert (agreement.id, clerk.kept) == ("a-name", [agreement])
    exchange.deliver(bob.cancel("d", "uni", NOW), NOW)
    assert (clerk.kept, owner.agreements) == ([], ())


def test_what_was_agreed_in_an_earlier_life_stays_sold() -> None:
    """Until it is forgotten."""
    exchange = MessageExchange([server(), ann := manager()])
    agreement = bought(exchange, ann)
    later = server()
    later.restore(agreement)
    assert later.agreements == (agreement,)
    assert quote(later).terms.start == agreement.terms.end
    later.forget_agreement(agreement.id, agreement.start)
    assert (later.agreements, later.capacity.commitments) == ((), ())


def test_what_an_agreement_had_until_its_early_end_is_not_sold_again() -> None:
    """A quote may be accepted for a start that has passed; a restart changes nothing."""
    exchange = MessageExchange([owner := server(), ann := manager()])
    agreement = bought(exchange, ann)
    ended = agreement.start + 0.25 * agreement.terms.seconds
    owner.forget_agreement(agreement.id, ended)
    later = server()
    later.restore(agreement, ended)
    for one in (owner, later):
        assert one.agreements == ()
        everything = one.capacity.processors
        assert one.capacity.free(ended, agreement.terms.end) == everything
        left = everything - agreement.processors
        assert one.capacity.free(agreement.start, agreement.terms.end) == left


def test_an_offer_that_was_taken_in_an_earlier_life_is_not_taken_again() -> None:
    """Whoever repeats it, since its answer was lost, is told of the agreement that there is."""
    exchange = MessageExchange([server(), ann := manager()])
    agreement = bought(exchange, ann)
    head = {"deal": "d", "sender": "ann", "to": "uni", "number": 1}
    offer = Offer(**head, template=WANTED, amount=10**12, currency=WANTED.currency)
    later = server()
    later.restore_conclusion("d", agreement)
    for _ in range(2):
        (answer,) = later.deliver(offer, NOW)
        assert isinstance(answer, Confirm)
        assert (answer.agreement, answer.deal, answer.to) == (agreement, "d", "ann")
    assert later.agreements == ()


def test_a_conversation_with_one_customer_is_forgotten_alone() -> None:
    """Others' of the same name go on."""
    owner = server(processors=8)
    quote(owner)
    eve = quote(owner, sender="eve")
    owner.forget("d", "ann")
    answer = owner.deliver(Accept(deal="d", sender="ann", to="uni", number=2, of=1), NOW)
    assert isinstance(only(answer), Reject)
    accept = Accept(deal="d", sender="eve", to="uni", number=2, of=eve.number)
    assert isinstance(only(owner.deliver(accept, NOW)), Confirm)


def test_bargaining_through_both_sides_makes_a_deal_between_the_reserves() -> None:
    """The owner asks 400 and goes down to 320; the buyer goes up to 350."""
    exchange = MessageExchange([owner := server(), ann := manager()])
    concession = Concession(first=100 * UNITS, reserve=350 * UNITS)

    exchange.deliver(ann.bargain("d", "uni", WANTED, concession, NOW), NOW)

    assert ann.agreements == owner.agreements
    assert 320 * UNITS <= only(ann.agreements).terms.amount <= 350 * UNITS


# Random customers, and a network that loses, repeats and reorders.

templates = st.builds(
    lambda processors, seconds, earliest, slack: DealTemplate(
        processors=processors,
        seconds=float(seconds),
        earliest=float(earliest),
        latest=float(earliest + seconds + slack),
    ),
    st.integers(1, PROCESSORS),
    st.integers(1, 60),
    st.integers(1_000, 1_200),
    st.integers(0, 100),
)
acts = st.lists(
    st.tuples(
        st.sampled_from(["ask", "accept", "bargain", "call", "auction", "cancel", "again", "wait"]),
        st.sampled_from(["ann", "bob"]),
        templates,
    ),
    min_size=3,
    max_size=25,
)


def oversold(owner: TradeServer) -> bool:
    deals = owner.agreements
    return any(
        sum(d.processors for d in deals if d.start <= deal.start < d.terms.end) > PROCESSORS
        for deal in deals
    )


class Troubled:
    """A network that loses, repeats and reorders as a generator says, unless it is calm."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator
        self.calm = False
        self.old: list[TradeMessage] = []

    def __call__(self, messages: list[TradeMessage]) -> list[TradeMessage]:
        if self.calm:
            return messages
        draw = self.generator
        arriving = [m for m in messages for _ in range(draw.choice((0, 1, 1, 2)))]
        if self.old and draw.random() < 0.2:
            arriving.append(draw.choice(self.old))
        self.old += messages
        draw.shuffle(arriving)
        return arriving


@given(acts, st.integers(0, 2**32), st.booleans())
@settings(max_examples=examples(75))
def test_capacity_is_never_oversold_whatever_is_lost_repeated_or_reordered(
    script: list[tuple[str, str, DealTemplate]], seed: int, holds: bool
) -> None:
    """
    And what a buyer holds for a deal is one, at the same price; when the network is calm
    again, asking again brings both sides to agree on what was sold.
    """
    owner = server(processors=PROCESSORS, holds=holds, validity=50.0)
    buyers = {name: manager(name) for name in ("ann", "bob")}
    troubled = Troubled(random.Random(seed))
    exchange = MessageExchange([owner, *buyers.values()], troubled)
    now = NOW
    deals: list[tuple[str, str]] = []
    for i, (act, name, template) in enumerate(script):
        buyer, deal = buyers[name], f"d{i}"
        said: tuple[TradeMessage, ...] = ()
        if act == "ask":
            said = buyer.ask(deal, ["uni"], template, now)
        elif act == "bargain":
            concession = Concession(first=1, reserve=10**9, rounds=4)
            said = buyer.bargain(deal, "uni", template, concession, now)
        elif act == "call":
            said = buyer.call(deal, ["uni"], template, now + 10, now)
        elif act == "auction":
            for each in buyers:
                buyers[each].join(deal, "uni", 10**9)
                deals.append((each, deal))
            auctioneer = SealedAuctioneer(
                "uni", deal, list(buyers), template, reserve=0, closes=now + 10
            )
            opened = owner.auction(auctioneer, now)
            said = () if isinstance(opened, Refusal) else opened
        elif act == "accept":
            said = tuple(
                m for _, d in deals for q in buyer.quotes(d, now) for m in buyer.accept(q, now)
            )
        elif act == "cancel":
            said = tuple(m for n, d in deals if n == name for m in buyer.cancel(d, "uni", now))
        elif act == "again":
            said = tuple(m for n, d in deals if n == name for m in buyer.again(d))
        else:
            now += 20.0
            exchange.tick(now)
        if act in ("ask", "bargain", "call"):
            deals.append((name, deal))
        exchange.deliver(said, now)
        assert not oversold(owner)
        assert owner.capacity.free(0.0, 1e9) >= 0

    troubled.calm = True
    for _ in range(3):
        for name, deal in deals:
            exchange.deliver(buyers[name].again(deal), now)
    assert not oversold(owner)
    for name, buyer in buyers.items():
        sold = {a.id: a for a in owner.agreements if a.customer == name}
        assert {a.id: a for a in buyer.agreements} == sold


def test_an_answer_that_was_lost_comes_when_asked_again() -> None:
    """Every message is lost the first time it is sent."""
    lost: set[tuple[str, int]] = set()

    def lose(messages: list[TradeMessage]) -> list[TradeMessage]:
        kept = [m for m in messages if (m.sender, m.number) in lost]
        lost.update((m.sender, m.number) for m in messages)
        return kept

    exchange = MessageExchange([owner := server(), ann := manager()], lose)
    exchange.deliver(ann.ask("d", ["uni"], WANTED, NOW), NOW)
    while not ann.quotes("d", NOW):
        exchange.deliver(ann.again("d"), NOW)
    exchange.deliver(ann.accept(only(ann.quotes("d", NOW)), NOW), NOW)
    while not ann.agreements:
        exchange.deliver(ann.again("d"), NOW)

    assert ann.agreements == owner.agreements


def test_parties_with_nothing_more_to_say_have_nothing_to_wait_for() -> None:
    exchange = MessageExchange([owner := server(), ann := manager()])
    bought(exchange, ann)

    assert owner.next_tick() == ann.next_tick() == float("inf")
    assert owner.tick(NOW + 1e6) == ()


def test_processors_that_were_held_a_moment_ago_are_not_sold_for_that_moment() -> None:
    """One quote is for 1000 to 1100, accepted at 1070; from 1050 to 1060 all were held."""
    early = DealTemplate(processors=4, seconds=10.0, earliest=1_050.0, latest=1_060.0)
    long = DealTemplate(processors=4, seconds=100.0, earliest=NOW, latest=1_100.0)
    exchange = MessageExchange([owner := server(), ann := manager(), bob := manager("bob")])
    exchange.deliver(ann.ask("d", ["uni"], long, NOW), NOW)
    exchange.deliver(bob.ask("d", ["uni"], early, NOW), NOW)
    exchange.deliver(bob.accept(only(bob.quotes("d", NOW)), NOW), NOW)

    exchange.deliver(ann.accept(only(ann.quotes("d", 1_070.0)), 1_070.0), 1_070.0)

    assert ann.agreements == ()
    assert owner.agreements == bob.agreements


def test_an_offer_after_bargaining_ended_is_refused() -> None:
    owner = server()
    offer = Offer(
        deal="d", sender="ann", to="uni", number=1, amount=1, currency="SU", template=WANTED
    )
    counter = only(owner.deliver(offer, NOW))
    accept = Accept(deal="d", sender="ann", to="uni", number=2, of=counter.number)

    assert isinstance(only(owner.deliver(accept, NOW + 600)), Reject)
    assert owner.agreements == ()
