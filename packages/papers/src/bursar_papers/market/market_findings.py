"""Hold what the study of the market shows against what textbooks expect."""

import math
from collections.abc import Callable, Mapping, Sequence

from bursar_papers.equivalence import ABOVE, BELOW, Uncounted, compare_with_bounds
from bursar_papers.experiment import PaperFinding, Row
from bursar_papers.market.selling import STEP
from bursar_papers.nimrodg import PRICES, SECONDS
from bursar_papers.summary import Summary, grouped, selected

INCREMENT = STEP * SECONDS
"""Step of the English auction and of the Dutch clock, currency units for a job."""

ALIKE = 3.0
"""Per cent within which two ways are called alike."""


def differences(rows: Sequence[Row], value: str, first: Row, second: Row) -> Summary:
    """Subtract the second's measure from the first's, seed by seed."""
    return _paired(rows, value, first, second, lambda a, b: a - b)


def changes(rows: Sequence[Row], value: str, first: Row, second: Row) -> Summary:
    """Return by how much the first is above the second, seed by seed, per cent."""
    return _paired(rows, value, first, second, lambda a, b: 100 * (a / b - 1))


def find_protocols(rows: Sequence[Row]) -> list[PaperFinding]:
    """Auctions against theory, and the others against posted prices."""
    return [
        *_overview(rows, "protocol", _OF_PROTOCOLS),
        *_of_auctions(rows),
        *_of_competition(rows),
        *_beside_posted(rows),
    ]


def _of_auctions(rows: Sequence[Row]) -> list[PaperFinding]:
    """Compare the first period with theory, which is of one sale; later, budgets link the sales."""
    found = []
    lots = len(PRICES)
    for first, second, expected in (
        ("english", "vickrey", "the same price, within one increment (45)"),
        ("dutch", "first-price", "the same game: within one step of the clock (45)"),
    ):
        for n in (2, 4):
            sample = differences(rows, "opening", _of(first, n), _of(second, n))
            sample = Summary(sample.mean / lots, sample.deviation / lots, sample.count)
            found.append(
                PaperFinding(
                    what=f"first period, earned for a lot, {first} less {second}, {n} users",
                    paper=expected,
                    ours=str(sample),
                    comparisons=(compare_with_bounds(sample, -INCREMENT, INCREMENT),),
                )
            )
            sample = differences(rows, "paid", _of(first, n), _of(second, n))
            found.append(
                PaperFinding(
                    what=f"all periods, paid for a job, {first} less {second}, {n} users",
                    paper=expected,
                    ours=str(sample),
                    comparisons=(compare_with_bounds(sample, -INCREMENT, INCREMENT),),
                )
            )
    for n in (2, 4):
        for value, when in (("opening", "first period"), ("earned", "all periods")):
            sample = changes(rows, value, _of("first-price", n), _of("vickrey", n))
            found.append(
                PaperFinding(
                    what=f"{when}, earned, first-price above vickrey, {n} users (%)",
                    paper="0: revenue equivalence",
                    ours=str(sample),
                    comparisons=(compare_with_bounds(sample, -ALIKE, ALIKE),),
                    remark=f"alike: within {ALIKE:g} %",
                )
            )
    return found


def _of_competition(rows: Sequence[Row]) -> list[PaperFinding]:
    found = []
    for protocol in ("english", "vickrey", "dutch", "first-price", "double", "share"):
        sample = changes(rows, "paid", _of(protocol, 4), _of(protocol, 1))
        found.append(
            PaperFinding(
                what=f"{protocol}: paid for a job by 4 users above what one pays (%)",
                paper="competition raises auction prices",
                ours=str(sample),
                comparisons=(compare_with_bounds(sample, at_least=ABOVE),),
            )
        )
    sample = changes(rows, "messages", _of("english", 4), _of("vickrey", 4))
    found.append(
        PaperFinding(
            what="messages for a deal, english above vickrey, 4 users (%)",
            paper="open bidding costs messages, sealed bids do not",
            ours=str(sample),
            comparisons=(compare_with_bounds(sample, at_least=ABOVE),),
        )
    )
    return found


def _beside_posted(rows: Sequence[Row]) -> list[PaperFinding]:
    less, more, alike = (-math.inf, BELOW), (ABOVE, math.inf), (-ALIKE, ALIKE)
    expected = [
        ("tender", "paid", alike, "0: both find the lowest price"),
        ("bargaining", "paid", less, "bargaining lowers what is paid"),
        ("vickrey", "efficiency", more, "to those who value them most: more welfare"),
        ("double", "efficiency", more, "nearly efficient: more welfare"),
        ("share", "efficiency", less, "shares do not look at values: less welfare"),
    ]
    found = []
    for protocol, value, (low, high), paper in expected:
        for n in (1, 2, 4):
            sample = changes(rows, value, _of(protocol, n), _of("posted", n))
            found.append(
                PaperFinding(
                    what=f"{value}, {protocol} above posted, {n} users (%)",
                    paper=paper,
                    ours=str(sample),
                    comparisons=(compare_with_bounds(sample, low, high),),
                )
            )
    return found


def find_policies(rows: Sequence[Row]) -> list[PaperFinding]:
    """
    Compare each pricing policy with flat prices; the paper's claim stands beside each figure.

    Owners of several processors count only in the findings on demand.
    """
    alone = selected(rows, processors=1)
    return [
        *_overview(alone, "policy", _OF_POLICIES),
        *_of_demand(rows),
        *_of_discounts(alone),
        *_of_calendar(alone),
        *_of_groups(alone),
        *(
            _against_flat(alone, value, "adjusting", n, text, low, high)
            for value in ("paid", "level")
            for n, text, low, high in (
                (1, "too little demand: cheaper", -math.inf, BELOW),
                (4, "too much demand: dearer", ABOVE, math.inf),
            )
        ),
        _against_flat(
            alone, "variation", "adjusting", 4, "spreads load over owners", at_most=BELOW
        ),
    ]


def _of_demand(rows: Sequence[Row]) -> list[PaperFinding]:
    several = selected(rows, processors=4)
    found = []
    chosen = "its points were chosen after steeper ones had been tried"
    tried: tuple[tuple[str, str, str, Uncounted | None], ...] = (
        ("demand", "flat", chosen, "calibrated"),
        ("demand", "flat at 0.8", f"{chosen}; its price begins at 0.8", "calibrated"),
        ("demand from 1", "flat", "1 when empty to 1.6 when full", None),
    )
    for policy, other, remark, uncounted in tried:
        sample = differences(several, "variation", _by(policy, 4), _by(other, 4))
        found.append(
            PaperFinding(
                what=f"{policy}: variation of jobs among owners above {other}'s, 4 users, "
                "4 processors of each owner",
                paper="demand pricing spreads load over owners",
                ours=str(sample),
                comparisons=(compare_with_bounds(sample, at_most=BELOW),),
                uncounted=uncounted,
                remark=remark,
            )
        )
    alone = Summary.of([r["level"] for r in selected(rows, processors=1, policy="demand", users=4)])
    found.append(
        PaperFinding(
            what="demand: paid, % of base prices, 4 users, one processor of each owner",
            paper="above 80: the price rises with load",
            ours=str(alone),
            comparisons=(compare_with_bounds(alone, at_least=80 + ABOVE),),
            uncounted="identity",
            remark="a single processor is free or sold: demand never shows in its price",
        )
    )
    return found


_SAVED = "what is saved buys at dearer owners: the mean for a job need not fall"


def _of_discounts(rows: Sequence[Row]) -> list[PaperFinding]:
    found = []
    for policy, paper in (
        ("advance", "booking ahead lowers what is paid"),
        ("bulk", "discounts lower what is paid"),
        ("loyalty", "discounts lower what is paid"),
    ):
        for n in (1, 2, 4):
            found.append(
                _against_flat(rows, "paid", policy, n, paper, at_most=BELOW, remark=_SAVED)
            )
        like = "for like processors less is paid"
        found.append(_against_flat(rows, "level", policy, 4, like, at_most=BELOW))
        more = "what is cheaper is bought more"
        found.append(_against_flat(rows, "completed", policy, 4, more, at_least=ABOVE))
    stay = "customers stay: load concentrates"
    found.append(_against_flat(rows, "variation", "loyalty", 4, stay, at_least=ABOVE))
    return found


def _of_calendar(rows: Sequence[Row]) -> list[PaperFinding]:
    found = []
    for n in (1, 2, 4):
        sample = differences(rows, "early", _by("calendar", n), _by("flat", n))
        found.append(
            PaperFinding(
                what=f"calendar: jobs done at peak, points above flat's, {n} users",
                paper="work moves off peak",
                ours=str(sample),
                comparisons=(compare_with_bounds(sample, at_most=BELOW),),
            )
        )
    return found


def _of_groups(rows: Sequence[Row]) -> list[PaperFinding]:
    found = []
    for n in (2, 4):
        for value, paper, (low, high) in (
            ("paid", "members pay less", (-math.inf, BELOW)),
            ("completed", "members get more", (ABOVE, math.inf)),
        ):
            sample = Summary.of(
                [
                    100 * (row[f"{value}_first"] / row[f"{value}_others"] - 1)
                    for row in selected(rows, policy="group", users=n)
                ]
            )
            found.append(
                PaperFinding(
                    what=f"group: {value}, a member's above the others', {n} users (%)",
                    paper=paper,
                    ours=str(sample),
                    comparisons=(compare_with_bounds(sample, low, high),),
                    remark=_SAVED if value == "paid" else "",
                )
            )
    return found


def find_prices(rows: Sequence[Row]) -> list[PaperFinding]:
    """Whether owners' prices come together."""
    found = []
    for n in sorted({row["users"] for row in rows}):
        mine = selected(rows, users=n)
        ratios = []
        for seed in sorted({row["seed"] for row in mine}):
            times: dict[float, list[float]] = {}
            for row in selected(mine, seed=seed):
                times.setdefault(row["time"], []).append(row["price"])
            full = [prices for _, prices in sorted(times.items()) if len(prices) >= _ENOUGH]
            ratios.append(max(full[-1]) / min(full[-1]) - max(full[0]) / min(full[0]))
        sample = Summary.of(ratios)
        found.append(
            PaperFinding(
                what=f"dearest price over cheapest, last trade less first, {n} users",
                paper="prices of like goods come together",
                ours=str(sample),
                comparisons=(compare_with_bounds(sample, at_most=BELOW),),
            )
        )
    return found


_ENOUGH = 5
"""Owners that must quote in a trade for its prices to be compared."""


def find_breakdowns(rows: Sequence[Row]) -> list[PaperFinding]:
    """Return the cost of an owner's failure for the customers."""
    found = []
    for n in sorted({row["users"] for row in rows}):
        broken, whole = {"outage": True, "users": n}, {"outage": False, "users": n}
        refunded = Summary.of([row["refunded"] for row in selected(rows, **broken)])
        paid = changes(rows, "paid", broken, whole)
        done = differences(rows, "completed", broken, whole)
        found += [
            PaperFinding(
                what=f"refunded, {n} users",
                paper="what was not delivered is not paid",
                ours=str(refunded),
                comparisons=(compare_with_bounds(refunded, at_least=ABOVE),),
                uncounted="identity",
                remark="the accounts refund it: the audit of each cell fails otherwise",
            ),
            PaperFinding(
                what=f"paid for a job done above an undisturbed market, {n} users (%)",
                paper="dearer: the cheapest owner is lost for a while",
                ours=str(paid),
                comparisons=(compare_with_bounds(paid, at_least=ABOVE),),
            ),
            PaperFinding(
                what=f"jobs completed, points above an undisturbed market, {n} users",
                paper="",
                ours=str(done),
            ),
        ]
    return found


def find_buyers(rows: Sequence[Row]) -> list[PaperFinding]:
    """What more buyers change, for the same jobs and money."""
    return [
        *(
            _by_buyers(rows, value, title, owners)
            for value, title in _OF_BUYERS.items()
            for owners in sorted({row["owners"] for row in rows})
        ),
        _never_sold_twice(rows),
        *_of_rivals(rows),
    ]


def _by_buyers(rows: Sequence[Row], value: str, title: str, owners: int) -> PaperFinding:
    means = grouped(selected(rows, owners=owners), ("protocol", "users"), value)
    told = [
        f"{kind}: {', '.join(str(mean) for (of, _), mean in means.items() if of == kind)}"
        for kind in dict.fromkeys(kind for kind, _ in means)
    ]
    place = "one owner" if owners == 1 else f"{owners} owners"
    what = f"{title}, {place}, by 2, 5, 20 buyers"
    return PaperFinding(what=what, paper="", ours="\n".join(told))


def _never_sold_twice(rows: Sequence[Row]) -> PaperFinding:
    sample = Summary.of([row["sold_twice"] for row in rows])
    return PaperFinding(
        what="processor-seconds sold twice, all cells",
        paper="0",
        ours=str(sample),
        comparisons=(compare_with_bounds(sample, 0.0, 0.0),),
        own=True,
        uncounted="identity",
        remark="the audit of each cell fails otherwise",
    )


def _of_rivals(rows: Sequence[Row]) -> list[PaperFinding]:
    found = []
    for owners in sorted({row["owners"] for row in rows}):
        place = "one owner" if owners == 1 else f"{owners} owners"
        for protocol, value, paper in (
            ("vickrey", "paid", "rivals raise the second bid"),
            ("first-price", "paid", "rivals raise bids"),
        ):
            if not selected(rows, protocol=protocol, owners=owners):
                continue
            many = {"protocol": protocol, "owners": owners, "users": 20}
            few = many | {"users": 2}
            sample = changes(rows, value, many, few)
            found.append(
                PaperFinding(
                    what=f"{protocol}: {value}, 20 buyers above 2, {place} (%)",
                    paper=paper,
                    ours=str(sample),
                    comparisons=(compare_with_bounds(sample, at_least=ABOVE),),
                )
            )
    return found


_OF_BUYERS = {
    "efficiency": "efficiency (%)",
    "earned": "earned by all owners",
    "paid": "paid for a job",
    "completed": "jobs done by the deadline (%)",
    "kept": "buyers who keep their deadline (%)",
}


def _overview(rows: Sequence[Row], factor: str, measures: Mapping[str, str]) -> list[PaperFinding]:
    """
    List each measure under each kind, by number of users.

    Parameters
    ----------
    measures
        Name in the rows to what is said of it.
    """
    found = []
    for measure, title in measures.items():
        means = grouped(rows, (factor, "users"), measure)
        kinds = dict.fromkeys(kind for kind, _ in means)
        told = [
            f"{kind}: {', '.join(str(s) for (of, _), s in means.items() if of == kind)}"
            for kind in kinds
        ]
        found.append(
            PaperFinding(what=f"{title}, by 1, 2, 4 users", paper="", ours="\n".join(told))
        )
    return found


_OVERVIEW = {"paid": "paid for a job", "completed": "jobs completed (%)"}
_OF_PROTOCOLS = _OVERVIEW | {
    "utilisation": "utilisation (%)",
    "messages": "messages for a deal",
    "efficiency": "efficiency (%)",
}
_OF_POLICIES = _OVERVIEW | {"level": "paid of base prices (%)", "earned": "earned by all owners"}


def _against_flat(
    rows: Sequence[Row],
    value: str,
    policy: str,
    users: int,
    expected: str,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    remark: str = "",
) -> PaperFinding:
    sample = changes(rows, value, _by(policy, users), _by("flat", users))
    return PaperFinding(
        what=f"{policy}: {value} above flat's, {users} users (%)",
        paper=expected,
        ours=str(sample),
        comparisons=(compare_with_bounds(sample, at_least, at_most),),
        remark=remark,
    )


def _paired(
    rows: Sequence[Row],
    value: str,
    first: Row,
    second: Row,
    of: Callable[[float, float], float],
) -> Summary:
    below = {row["seed"]: row[value] for row in selected(rows, **second)}
    return Summary.of(
        [
            of(row[value], below[row["seed"]])
            for row in selected(rows, **first)
            if row[value] is not None and below.get(row["seed"]) is not None
        ]
    )


def _of(protocol: str, users: int) -> Row:
    return {"protocol": protocol, "users": users}


def _by(policy: str, users: int) -> Row:
    return {"policy": policy, "users": users}
