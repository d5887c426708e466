"""Pages of docs/papers: what they say of a run is what the run's JSON says."""

import json
from pathlib import Path

import pytest
from tests.papers.checking import check_documents

from bursar_papers.catalogue import EXPERIMENTS, TITLES, figures_of, find
from bursar_papers.documenting import ALL, blocks, entry_of, read_entries, rendered
from bursar_papers.experiment_runner import run_experiment

DOCS = Path(__file__).resolve().parents[2] / "docs" / "papers"
NOWHERE = Path("nowhere")
HOW = "`bursar reproduce PAPER --docs docs/papers` (docs/guides/reproduce.md) writes them anew"

AT_ONCE = [("drp", "2"), ("drp", "table-1"), ("hpdc07", "4")]
"""Without chance, and measured within a second."""
SOON = [*AT_ONCE, ("nimrodg", "table-2"), ("nimrodg", "3"), ("nimrodg", "4"), ("nimrodg", "5")]
"""Without chance, and measured within a minute."""


@pytest.mark.parametrize("paper", TITLES)
def test_a_page_says_what_the_run_said(paper: str) -> None:
    page, entries = (DOCS / f"{paper}.md").read_text(), read_entries(DOCS / f"{paper}.json")
    assert rendered(page, paper, entries) == page, HOW
    of_figures = [figure for figure in blocks(page) if figure != ALL]
    assert sorted(of_figures) == sorted(entries), "every figure that was run has its block"
    assert set(entries) <= set(figures_of(paper))
    assert ALL in blocks(page)


@pytest.mark.parametrize("paper", TITLES)
def test_verdicts_of_the_pages_are_by_the_rule(paper: str) -> None:
    for entry in read_entries(DOCS / f"{paper}.json").values():
        check_documents(entry["findings"])


def test_every_figure_that_is_not_live_is_on_its_page() -> None:
    for experiment in EXPERIMENTS:
        if not experiment.live:
            assert experiment.figure in read_entries(DOCS / f"{experiment.paper}.json"), HOW


def assert_as_documented(paper: str, figure: str, folder: Path) -> None:
    (experiment,) = find(paper, figure)
    told = read_entries(DOCS / f"{paper}.json")[figure]
    outcome = run_experiment(experiment, told["effort"], data=NOWHERE, kept=folder / "cells.jsonl")
    assert json.loads(json.dumps(entry_of(outcome))) == told, HOW


@pytest.mark.parametrize(("paper", "figure"), AT_ONCE)
def test_what_is_without_chance_is_what_todays_code_gives(
    paper: str, figure: str, tmp_path: Path
) -> None:
    assert_as_documented(paper, figure, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("paper", "figure"), [each for each in SOON if each not in AT_ONCE])
def test_what_is_without_chance_and_takes_longer_is_what_todays_code_gives(
    paper: str, figure: str, tmp_path: Path
) -> None:
    assert_as_documented(paper, figure, tmp_path)
