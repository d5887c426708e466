"""The trade-off curve as table and as chart: readable, complete, offline."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import bursar
from bursar.report.plan_table import print_plan
from bursar.report.words import amount, span


def proposal(**how: object) -> bursar.Proposal:
    """Of a bag of forty tasks of one to seven times ten seconds on sixty-four processors."""
    goal = bursar.Goal(**how.pop("goal", {}))  # type: ignore[arg-type]
    runtime: Any = how.pop("runtime", 10.0)
    tasks = tuple(
        bursar.Task(id=f"t{i}", runtime=runtime and runtime * (1 + i % 7)) for i in range(40)
    )
    site = bursar.SiteFacts(name="here", processors=64, fixed_price=0.0, **how)  # type: ignore[arg-type]
    campaign = bursar.Campaign(name="bag", workflow=bursar.Workflow(tasks), goal=goal)
    return bursar.plan(campaign, site)


def printed(shown: bursar.Proposal, width: int = 80) -> str:
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
    assert "no plan can beat: critical path 1 min 10 s" in text
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines())


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
    monkeypatch.setattr("bursar.report.plan_table.ROWS", 8)
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

    rows = [line for line in text.splitlines() if re.match(r"^ [→ ]\s+\d+ ", line)]
    assert len(shown.front.options) > 15
    assert 8 <= len(rows) <= 9
    assert sum("→" in row for row in rows) == 1


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
    """A mime bundle with something any notebook draws."""
    bundle = proposal(unit_price=1.0)._repr_mimebundle_()

    assert any(kind.startswith(("image/", "application/vnd.vegalite")) for kind in bundle)


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
