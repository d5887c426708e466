"""The trade-off curve as table and as chart: readable, complete, offline."""

import io
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import bursar
from bursar.model.plan import Purchase
from bursar.model.slot import Slot
from bursar.planning.plan_choice import GoalCounterOffer
from bursar.report.charts import ROWS, describe, print_plan
from bursar.report.plan_documents import plan_to_dict
from bursar.report.tables import amount, span


def proposal(**how: object) -> bursar.Quote:
    """Of a bag of forty tasks of one to seven times ten seconds on sixty-four processors."""
    goal = bursar.Goal(**how.pop("goal", {}))  # type: ignore[arg-type]
    runtime: Any = how.pop("runtime", 10.0)
    tasks = tuple(
        bursar.Task(id=f"t{i}", runtime=runtime and runtime * (1 + i % 7)) for i in range(40)
    )
    site = bursar.SiteFacts(name="here", processors=64, fixed_price=0.0, **how)  # type: ignore[arg-type]
    campaign = bursar.Campaign(name="bag", workflow=bursar.Workflow(tasks), goal=goal)
    return bursar.plan(campaign, site)


def printed(shown: bursar.Quote, width: int = 80) -> str:
    """The table in a terminal of so many columns."""
    text = io.StringIO()
    print_plan(shown.campaign, shown.front, shown.choice, Console(file=text, width=width))
    return text.getvalue()


def test_the_choice_is_marked_and_explained() -> None:
    """One arrow at the row, the reason below, the bounds between."""
    shown = proposal(unit_price=1.0, goal={"deadline": 400.0})
    text = printed(shown)

    assert shown.chosen is not None
    (row,) = [line for line in text.splitlines() if line.startswith(" →")]
    assert int(row.split()[1]) == shown.chosen.processors
    assert "→ the cheapest plan that meets the deadline" in text
    assert "no plan takes less than" in text
    assert "(critical path 1 min 10 s" in text
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines())


def test_a_narrow_terminal_loses_no_name_and_no_price() -> None:
    """Names of sites are folded, and columns that matter less give way to them."""
    names = ("a-cluster-with-a-long-name", "the-supercomputer-of-the-university")
    tasks = tuple(bursar.Task(id=str(i), runtime=10.0) for i in range(8))
    sites = [
        bursar.SiteFacts(name=name, processors=4, unit_price=12.75 + i, fixed_price=0.0)
        for i, name in enumerate(names)
    ]
    campaign = bursar.Campaign(name="bag", workflow=bursar.Workflow(tasks))
    text = printed(bursar.plan(campaign, sites))
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines())

    # Each column read from top to bottom, without the folds.
    together = "".join(line[48:].strip() for line in text.splitlines() if "plan" not in line)
    for name in names:
        assert f"4{name}" in together.replace(" ", "")
    assert "…" not in text
    assert re.search(r" 8 +10 s +10[67]0 ", text), text


def test_what_is_unknown_says_so() -> None:
    """Neither a price nor a runtime that is not known becomes a figure."""
    free = printed(proposal(unit_price=None))
    blind = printed(proposal(unit_price=1.0, runtime=None))

    assert "unknown" in free
    assert "price of here is unknown" in free
    assert blind.count("unknown") >= 3
    assert "40 of 40 tasks is unknown" in blind


def test_a_goal_out_of_reach_is_answered() -> None:
    """What could be had instead, each with its time, its price and its share."""
    poor = printed(proposal(unit_price=1.0, goal={"deadline": 80.0, "budget": 100.0}))
    hasty = printed(proposal(unit_price=1.0, goal={"deadline": 50.0}))

    assert "for more money" in poor
    assert "a part: " in poor
    assert "in more time" in hasty
    assert poor.count("Instead:") == hasty.count("Instead:") == 1


def test_long_curves_are_thinned_but_never_of_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many rows, and the one that is picked."""
    monkeypatch.setattr("bursar.report.charts.ROWS", 8)
    tasks = tuple(bursar.Task(id=str(i), runtime=1.0 + i % 7) for i in range(700))
    sites = [
        bursar.SiteFacts(name=f"s{i}", processors=90, unit_price=1.0 + i, fixed_price=0.5)
        for i in range(3)
    ]
    shown = bursar.plan(
        bursar.Campaign(
            name="long", workflow=bursar.Workflow(tasks), goal=bursar.Goal(trade_off=0.3)
        ),
        sites,
    )
    text = printed(shown, width=120)

    rows = [line for line in text.splitlines() if re.match(r"^ [→ ] {6,12}\d+ ", line)]
    assert len(shown.front.options) > 15
    assert 8 <= len(rows) <= 9
    assert sum("→" in row for row in rows) == 1


@pytest.mark.parametrize("picked", [0, 1, 30, 59])
def test_sixty_options_become_twenty_four(picked: int) -> None:
    """The first and the last of them, evenly many between, and the one that is picked."""
    shown = proposal(unit_price=1.0)
    like = shown.front.options[0]
    options = tuple(
        replace(like, makespan=100.0 + i, cost=900.0 - i, purchases=(purchase(100 - i),))
        for i in range(60)
    )
    text = io.StringIO()
    print_plan(
        shown.campaign,
        replace(shown.front, options=options),
        replace(shown.choice, option=options[picked]),
        Console(file=text, width=80),
    )

    rows = re.findall(r"^ ([→ ])\s+(\d+) ", text.getvalue(), re.MULTILINE)
    numbers = [100 - int(processors) for _, processors in rows]
    assert len(rows) == ROWS + (picked not in {round(i * 59 / 23) for i in range(24)})
    assert numbers == sorted(set(numbers))
    assert {0, 59, picked} <= set(numbers)
    assert [int(p) for arrow, p in rows if arrow == "→"] == [100 - picked]
    assert max(b - a for a, b in itertools.pairwise(numbers)) <= 3


def test_counter_offers_say_what_they_are() -> None:
    """More time, more money, or a part; a price that is unknown stays so."""
    offers = [
        GoalCounterOffer(kind="time", makespan=75.2, cost=2.0, tasks=8, share=1.0),
        GoalCounterOffer(kind="budget", makespan=5.0, cost=12.34567, tasks=8, share=1.0),
        GoalCounterOffer(kind="share", makespan=4.5, cost=None, tasks=3, share=0.375),
    ]

    assert [describe(offer, "EUR") for offer in offers] == [
        "in more time: 1 min 15 s for 2 EUR, the shortest at this budget",
        "for more money: 5 s for 12.35 EUR, the cheapest in this time",
        "a part: 3 of the tasks (38%), 4.5 s for unknown",
    ]


def test_the_plan_as_json_is_the_curve() -> None:
    """Every option in order, the chosen one by its place; unknowns and for-ever are null."""
    told = plan_to_dict_of(proposal(unit_price=1.0, goal={"deadline": 400.0}))
    blind = plan_to_dict_of(proposal(unit_price=None, runtime=None))

    assert told["chosen"] == {
        "index": told["chosen"]["index"],
        **told["front"][told["chosen"]["index"]],
    }
    makespans = [option["makespan_s"] for option in told["front"]]
    costs = [option["cost"] for option in told["front"]]
    assert makespans == sorted(makespans)
    assert costs == sorted(costs, reverse=True)
    assert min(makespans) >= told["bounds"]["makespan_s"] - 1e-9
    assert min(costs) >= told["bounds"]["cost"] - 1e-9
    for option in told["front"]:
        assert option["cost"] == sum(slot["cost"] for slot in option["slots"])
        assert option["processors"] == sum(slot["processors"] for slot in option["slots"])
    assert told["feasible"]
    assert blind["front"][0]["makespan_s"] is None
    assert blind["front"][0]["cost"] is None
    assert blind["front"][0]["slots"][0]["duration_s"] is None


def plan_to_dict_of(shown: bursar.Quote) -> dict[str, Any]:
    """As JSON, there and back: with nothing in it that JSON lacks."""
    told = plan_to_dict(shown.campaign, shown.front, shown.choice)
    back: dict[str, Any] = json.loads(json.dumps(told, allow_nan=False))
    assert back == told
    return back


def purchase(processors: int) -> Purchase:
    """So many processors for a minute."""
    slot = Slot(
        site="here",
        start=0.0,
        duration=60.0,
        processors=processors,
        unit_price=1.0,
        fixed_price=0.0,
    )
    return Purchase(slot=slot)


def test_a_saved_chart_is_drawn_offline(tmp_path: Path, browse: Callable[..., str]) -> None:
    """The page brings its library with it: marks for every option, without a network."""
    shown = proposal(unit_price=1.0, goal={"deadline": 400.0})
    shown.save(tmp_path / "curve.html")

    document = browse(tmp_path / "curve.html")

    assert re.search(r"<(?:canvas|svg)[^>]*(?:marks|height=\"\d)", document)


def test_a_saved_picture_shows_options_choice_and_bounds(tmp_path: Path) -> None:
    """A dot for each option, one of them the chosen one, and two dashed lines."""
    shown = proposal(unit_price=1.0, goal={"deadline": 400.0})
    shown.save(tmp_path / "curve.svg")
    picture = (tmp_path / "curve.svg").read_text()

    dots = re.findall(r'aria-label="makespan, s: [^"]*; chosen: (\w+)', picture)
    assert sorted(dots) == ["chosen"] + ["possible"] * (len(shown.front.options) - 1)
    assert picture.count('stroke-dasharray="4,4"') == 2
    assert "cost, SU" in picture


@pytest.mark.parametrize("suffix", [".html", ".png", ".svg"])
def test_the_curve_is_saved_as_a_picture(tmp_path: Path, suffix: str) -> None:
    """Whole, and the page opens without a network."""
    path = tmp_path / f"curve{suffix}"
    proposal(unit_price=1.0).save(path)

    data = path.read_bytes()
    assert len(data) > 2000
    if suffix == ".html":
        assert not re.search(rb"<script[^>]*src=", data)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_notebook_gets_a_chart() -> None:
    """A chart to ask, a picture for where there is none, and words for a terminal."""
    bundle = proposal(unit_price=1.0)._repr_mimebundle_()

    (chart,) = [kind for kind in bundle if kind.startswith("application/vnd.vegalite.v")]
    version = chart.removeprefix("application/vnd.vegalite.v").removesuffix("+json")
    assert f"/vega-lite/v{version}." in bundle[chart]["$schema"]  # else it is drawn wrong, or not
    assert bundle["image/png"].startswith(b"\x89PNG")
    assert bundle["text/plain"]


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    """One line, and no file."""
    with pytest.raises(bursar.InputError, match=r"\.pdf"):
        proposal(unit_price=1.0).save(tmp_path / "curve.pdf")
    assert not list(tmp_path.iterdir())


def test_figures_read_like_figures() -> None:
    """Three digits, and a word for what is not known."""
    assert [span(s) for s in (None, 0, 0.0123, 75.2, 7265, 200_000)] == [
        "unknown", "0 s", "12.3 ms", "1 min 15 s", "2 h 1 min", "2 d 7 h",
    ]  # fmt: skip
    assert amount(None, "EUR") == "unknown"
    assert amount(12.3456, "EUR") == "12.35 EUR"
