"""
The market studied: every protocol and every pricing rule, among few and many customers.

There is no paper to rerun here: what textbooks expect stands in its place.

References
----------
.. [1] Krishna (2009). Auction Theory, 2nd edition. Chapters 2 and 3.
.. [2] Buyya, Abramson, Giddy, Stockinger (2002). Economic models for resource management
   and scheduling in grid computing. CCPE 14(13-15): 1507-1542.
"""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bursar.model.money import (
    DAY,
    MICROS,
    Adjusting,
    Advance,
    Bulk,
    Calendar,
    Demand,
    ForGroup,
    Loyalty,
    Rule,
)
from bursar_papers import drawing
from bursar_papers.experiment import Cell, Effort, Experiment, Row
from bursar_papers.market import market_findings
from bursar_papers.market.market_measures import (
    PROTOCOLS,
    MarketProtocol,
    mean_quotes,
    measure,
    simulate_market,
    sold_twice,
)
from bursar_papers.market.market_simulation import FIRST_GROUP, MarketScenario
from bursar_papers.nimrodg import JOBS, PRICES, SECONDS

if TYPE_CHECKING:
    import altair

DEADLINE, BUDGET = 1980.0, 171_000.0
USERS = (1, 2, 4)
AHEAD = BLOCK = 5
"""Periods ahead, and jobs in a row, for which quotes are asked besides."""

OUTAGE = (600.0, 1050.0)
"""Seconds from the begin in which the cheapest owner delivers nothing."""

_ZONE, _ALWAYS, _MORNING, _EVENING = "Australia/Melbourne", frozenset(range(7)), 32_400, 64_800

POLICIES: dict[str, tuple[Rule, ...]] = {
    "flat": (),
    "calendar": (
        Calendar(zone=_ZONE, days=_ALWAYS, begin=_MORNING, end=_EVENING, factor=1.25),
        Calendar(zone=_ZONE, days=_ALWAYS, begin=_EVENING, end=DAY, factor=0.75),
    ),
    "demand": (Demand(points=((0.0, 0.8), (1.0, 1.2))),),
    "adjusting": (Adjusting(target=0.5, gain=0.2, least=0.5, most=2.0, every=SECONDS),),
    "bulk": (Bulk(steps=((BLOCK * SECONDS, 0.85),)),),
    "loyalty": (Loyalty(steps=((9_000 * MICROS, 0.95), (18_000 * MICROS, 0.9))),),
    "advance": (Advance(steps=((AHEAD * SECONDS, 0.85),)),),
    "group": (ForGroup(groups=frozenset({FIRST_GROUP}), factor=0.8),),
}
"""Of all owners alike. Six in the evening, when the peak ends, is half way to the deadline."""

CHEAP, DEAR = "flat at 0.8", "demand from 1"
"""Beside demand, where owners have several processors: its lowest price, and a steeper rise."""


BUYERS = (2, 5, 20)
"""Buyers that compete; the jobs of all together stay the same."""

OWNERS: dict[int, tuple[float, ...]] = {1: (19.0,), 10: tuple(float(price) for price in PRICES)}
"""Base prices by number of owners, with the same mean; they have ten processors in all."""

BUYERS_PROTOCOLS: dict[int, tuple[MarketProtocol, ...]] = {
    1: ("posted", "tender", "bargaining"),
    10: ("posted", "tender", "bargaining", "first-price", "vickrey"),
}
"""
By number of owners. An owner auctions one processor in each period, so there are no auctions of one
owner; an order of the double auction is for ten jobs at once, which a small campaign cannot pay.
"""


def _rules(policy: str) -> tuple[Rule, ...]:
    if policy == CHEAP:
        return (Demand(points=((0.0, 0.8),)),)
    if policy == DEAR:
        return (Demand(points=((0.0, 1.0), (1.0, 1.6))),)
    return POLICIES[policy]


def setting(cell: Cell) -> MarketScenario:
    """
    The market of a cell.

    A smaller campaign has a deadline and a budget as much smaller. Where a policy is
    studied, quotes are asked also for later and for more, whatever the policy.
    """
    size = cell["jobs"] / JOBS
    studied = "policy" in cell
    return MarketScenario(
        customers=cell["users"],
        jobs=cell["jobs"],
        seconds=SECONDS,
        deadline=DEADLINE * size,
        budget=BUDGET * size,
        prices=tuple(float(price) for price in PRICES),
        processors=cell.get("processors", 1),
        rules=_rules(cell.get("policy", "flat")),
        ahead=AHEAD if studied else 0,
        block=BLOCK if studied else 0,
        outage=OUTAGE if cell.get("outage") else None,
        seed=cell["seed"],
    )


def buyers_setting(cell: Cell) -> MarketScenario:
    """
    The market of a cell in which buyers compete.

    All buyers together have the jobs and the money of two users of the other figures, so that
    nothing but the number of brokers differs: they need 91 % of the processors until the deadline.
    Each buyer counts on its share of the processors.
    """
    prices = OWNERS[cell["owners"]]
    jobs = max(1, cell["jobs"] // cell["users"])
    # A smaller market, for a test, has a deadline that is as much nearer.
    size = jobs * cell["users"] / (2 * JOBS)
    return MarketScenario(
        customers=cell["users"],
        jobs=jobs,
        seconds=SECONDS,
        deadline=DEADLINE * size,
        budget=BUDGET * jobs / JOBS,
        prices=prices,
        processors=len(PRICES) // len(prices),
        counted_on=1 / cell["users"],
        seed=cell["seed"],
    )


def _repeated(effort: Effort, cells: Sequence[Cell]) -> list[Cell]:
    repetitions: dict[Effort, int] = {"quick": 2, "normal": 5, "full": 20}
    return [
        {**cell, "jobs": JOBS, "seed": seed}
        for cell in cells
        for seed in range(repetitions[effort])
    ]


def _protocol_cells(effort: Effort) -> list[Cell]:
    return _repeated(effort, [{"protocol": p, "users": n} for p in PROTOCOLS for n in USERS])


def _policy_cells(effort: Effort) -> list[Cell]:
    alone = [{"policy": p, "processors": 1, "users": n} for p in POLICIES for n in USERS]
    several = [{"policy": p, "processors": 4, "users": 4} for p in ("flat", CHEAP, "demand", DEAR)]
    return _repeated(effort, [*alone, *several])


def _price_cells(effort: Effort) -> list[Cell]:
    return _repeated(effort, [{"policy": "adjusting", "users": n} for n in USERS])


def _outage_cells(effort: Effort) -> list[Cell]:
    return _repeated(effort, [{"outage": out, "users": n} for out in (False, True) for n in USERS])


def _buyers_cells(effort: Effort) -> list[Cell]:
    repetitions: dict[Effort, int] = {"quick": 2, "normal": 5, "full": 20}
    return [
        {"protocol": p, "owners": owners, "users": n, "jobs": 2 * JOBS, "seed": seed}
        for owners, protocols in BUYERS_PROTOCOLS.items()
        for p in protocols
        for n in BUYERS
        for seed in range(repetitions[effort])
    ]


def _measure_buyers(cell: Cell, data: Path) -> list[Row]:
    place = simulate_market(buyers_setting(cell), cell["protocol"])
    buyers = place.customers.values()
    kept = sum(len(buyer.ended) == len(buyer.values) for buyer in buyers)
    measures = measure(place)
    return [
        dict(cell)
        | {
            "efficiency": measures.efficiency,
            "earned": measures.earned,
            "paid": measures.paid,
            "completed": measures.completed,
            "kept": 100 * kept / len(buyers),
            "sold_twice": sold_twice(place),
        }
    ]


def _measure(cell: Cell, data: Path) -> list[Row]:
    place = simulate_market(setting(cell), cell.get("protocol", "posted"))
    return [dict(cell) | asdict(measure(place))]


def _measure_prices(cell: Cell, data: Path) -> list[Row]:
    place = simulate_market(setting(cell), "posted")
    return [
        dict(cell) | {"time": time, "owner": owner, "price": price}
        for (time, owner), price in mean_quotes(place).items()
    ]


def _draw(rows: Sequence[Row], x: str) -> "dict[str, altair.TopLevelMixin]":
    shown = [row | {"of": f"{row['users']} users"} for row in rows]
    titles = {
        "paid": "paid for a job",
        "earned": "earned by all owners",
        "utilisation": "utilisation until the last end (%)",
        "completed": "jobs completed (%)",
        "efficiency": "welfare, % of the largest",
    }
    return {
        what: drawing.bars(shown, x=x, y=what, by="of", titles=(x, title))
        for what, title in titles.items()
    }


def _draw_buyers(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    titles = {
        "efficiency": "welfare, % of the largest",
        "earned": "earned by all owners",
        "completed": "jobs done by the deadline (%)",
        "kept": "buyers who keep their deadline (%)",
    }
    return {
        f"{what}-{owners}": drawing.bars(
            [row | {"of": f"{row['users']} buyers"} for row in rows if row["owners"] == owners],
            x="protocol",
            y=what,
            by="of",
            titles=("protocol", title),
        )
        for what, title in titles.items()
        for owners in OWNERS
    }


def _draw_policies(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    return _draw([row for row in rows if row["processors"] == 1], "policy")


def _draw_prices(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    titles = ("time (s)", "price per processor-second")
    return {
        f"{n}-users": drawing.curves(
            [row for row in rows if row["users"] == n],
            x="time",
            y="price",
            by="owner",
            titles=titles,
            zero=True,
        )
        for n in USERS
    }


def _draw_outage(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    shown = [row | {"of": "breaks down" if row["outage"] else "holds"} for row in rows]
    draw = partial(drawing.bars, shown, x="users", by="of")
    return {
        "completed": draw(y="completed", titles=("users", "jobs completed (%)")),
        "paid": draw(y="paid", titles=("users", "paid for a job")),
    }


ABOUT = (
    "1, 2 or 4 users, each with 100 jobs of 90 s, 1,980 s and 171,000; ten owners of a "
    "processor each, at 10 to 28 per processor-second. Means ± half the 95 % interval."
)

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        paper="market",
        figure="protocols",
        title="what is paid, earned and completed under each protocol",
        about=ABOUT,
        cells=_protocol_cells,
        measure=_measure,
        findings=market_findings.find_protocols,
        charts=partial(_draw, x="protocol"),
    ),
    Experiment(
        paper="market",
        figure="policies",
        title="the same under each pricing policy, at posted prices",
        about=ABOUT + " Quotes are asked also for five periods later, and for five jobs at once.",
        cells=_policy_cells,
        measure=_measure,
        findings=market_findings.find_policies,
        charts=_draw_policies,
    ),
    Experiment(
        paper="market",
        figure="prices",
        title="prices over time that follow supply and demand",
        about=ABOUT,
        cells=_price_cells,
        measure=_measure_prices,
        findings=market_findings.find_prices,
        charts=_draw_prices,
    ),
    Experiment(
        paper="market",
        figure="breakdown",
        title="the cheapest owner delivers nothing from 600 to 1,050 s",
        about=ABOUT + " Posted prices. Who was failed avoids the owner for 450 s.",
        cells=_outage_cells,
        measure=_measure,
        findings=market_findings.find_breakdowns,
        charts=_draw_outage,
    ),
    Experiment(
        paper="market",
        figure="buyers",
        title="2, 5 and 20 buyers compete at one owner and at ten",
        about=(
            "200 jobs of 90 s in all, divided among the buyers with 342,000; ten processors of one "
            "owner or of ten, of which they need 91 % until the deadline. Means ± half the 95 % "
            "interval."
        ),
        cells=_buyers_cells,
        measure=_measure_buyers,
        findings=market_findings.find_buyers,
        charts=_draw_buyers,
    ),
)
