"""Plans of campaigns that ran before: run times, quantiles and odds; a confidence buys a margin."""

import json
from dataclasses import replace

import numpy as np
import pytest

import bursar
from bursar.formats.campaign_file import read_campaign
from bursar.history.observation import TaskObservation
from bursar.history.store import History

CAMPAIGN = """\
[campaign]
name = "sweep"
[parameters]
x = { from = 1, to = 40, step = 1 }
[task]
command = "sim --x {x}"
"""
SITES = """\
[[site]]
name = "slow"
kind = "simulated"
processors = 16
unit_price = "1 EUR/core-hour"

[[site]]
name = "fast"
kind = "simulated"
processors = 32
speed = 2
unit_price = "5 EUR/core-hour"
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "c.toml").write_text(CAMPAIGN)
    (tmp_path / "sites.toml").write_text(SITES)
    return tmp_path


def remembered(place, executions=3, spread=0.3, template="sim --x {x}"):
    """A history of executions whose tasks take x seconds and 20, more or less."""
    random = np.random.default_rng(1)
    history = History(place / "history.sqlite")
    history.add(
        TaskObservation(
            execution=f"run-{number}",
            task=f"sweep-{x}",
            kind="sweep",
            template=template,
            parameters={"x": x},
            site="slow",
            start=1e9 + 1e4 * number + x,
            seconds=float((20 + x) * np.exp(level + random.normal(0, 0.05))),
        )
        for number, level in enumerate(random.normal(0, spread, executions))
        for x in range(1, 41)
    )
    return history


def test_a_campaign_without_run_times_has_them_after_earlier_runs(place):
    nothing = bursar.plan(place / "c.toml", place / "sites.toml", history="none")
    assert nothing.makespan is None
    known = bursar.plan(place / "c.toml", place / "sites.toml", history=remembered(place).path)
    assert known.makespan is not None
    runtimes = {task.parameters["x"]: task.runtime for task in known.campaign.workflow.tasks}
    assert runtimes[40] / runtimes[1] == pytest.approx(60 / 21, rel=0.15)


def test_another_command_of_the_same_name_says_nothing(place):
    history = remembered(place, template="other --x {x}")
    assert (
        bursar.plan(place / "c.toml", place / "sites.toml", history=history.path).makespan is None
    )


def test_stated_run_times_are_taken_at_their_word_where_no_run_has_checked_them(place):
    campaign = read_campaign(place / "c.toml")
    workflow = replace(
        campaign.workflow,
        tasks=tuple(replace(task, runtime=30.0) for task in campaign.workflow.tasks),
    )
    quote = bursar.plan(
        replace(campaign, workflow=workflow), place / "sites.toml", history=place / "none.sqlite"
    )
    assert quote.forecasts is None
    assert "forecast" not in quote.to_dict()


def test_the_cheapest_plan_with_the_confidence_is_chosen_and_its_margin_priced(place):
    history = remembered(place).path
    campaign = read_campaign(place / "c.toml")
    free = bursar.plan(campaign, place / "sites.toml", history=history).to_dict()
    cheapest = min(free["front"], key=lambda option: option["cost"])["forecast"]["end_s"]
    deadline = (cheapest["p50"] + cheapest["p90"]) / 2
    costs = {}
    for confidence in (0.5, 0.9):
        goal = replace(campaign.goal, deadline=deadline, confidence=confidence)
        quote = bursar.plan(replace(campaign, goal=goal), place / "sites.toml", history=history)
        assert quote.feasible
        told = quote.to_dict()
        assert told["forecast"]["odds"] >= confidence
        assert told["forecast"]["end_s"]["p50"] < told["forecast"]["end_s"]["p90"]
        costs[confidence] = quote.cost
        odds = [option["forecast"]["odds"] for option in told["front"]]
        cheaper = [
            chance
            for option, chance in zip(told["front"], odds, strict=True)
            if option["cost"] < quote.cost - 1e-9
        ]
        assert all(chance < confidence for chance in cheaper)
    assert costs[0.9] > costs[0.5]
    assert "with a probability of" in quote.reason
    assert "less would keep it with" in quote.reason


@pytest.mark.ci
def test_where_no_plan_is_sure_enough_the_likeliest_is_chosen_and_said(place):
    campaign = read_campaign(place / "c.toml")
    history = remembered(place).path
    fastest = bursar.plan(campaign, place / "sites.toml", history=history)
    goal = replace(campaign.goal, deadline=fastest.makespan * 1.02)
    quote = bursar.plan(replace(campaign, goal=goal), place / "sites.toml", history=history)
    assert quote.feasible
    assert "no plan reaches the 90 % asked for" in quote.reason
    odds = quote.to_dict()["forecast"]["odds"]
    assert odds == max(option["forecast"]["odds"] for option in quote.to_dict()["front"])


@pytest.mark.ci
def test_counter_offers_hold_with_the_confidence(place):
    campaign = read_campaign(place / "c.toml")
    history = remembered(place).path
    goal = replace(campaign.goal, deadline=10.0)
    refused = bursar.plan(replace(campaign, goal=goal), place / "sites.toml", history=history)
    offer = next(one for one in refused.counter_offers if one.kind == "time")
    taken = replace(campaign.goal, deadline=offer.makespan)
    quote = bursar.plan(replace(campaign, goal=taken), place / "sites.toml", history=history)
    assert quote.to_dict()["forecast"]["odds"] >= 0.9


def test_the_table_shows_quantiles_and_odds(place, capsys):
    quote = bursar.plan(
        place / "c.toml", place / "sites.toml", deadline=150, history=remembered(place).path
    )
    quote.print()
    shown = capsys.readouterr().out
    assert "end 50 %" in shown
    assert "odds" in shown
    assert "run times are known from 120 tasks of 3 earlier runs" in shown
    json.dumps(quote.to_dict())


def test_a_run_learns_from_the_run_before(tmp_path):
    (tmp_path / "c.toml").write_text(
        '[campaign]\nname = "sleep"\n[parameters]\nx = [1, 2, 3, 4]\n'
        '[task]\ncommand = "sleep 0.2; echo {x}"\n'
    )
    history = tmp_path / "history.sqlite"
    for _ in range(2):
        bursar.run(tmp_path / "c.toml", runs=tmp_path / "runs", history=history, fresh=True)
    quote = bursar.plan(tmp_path / "c.toml", history=history)
    assert quote.foreseen.known.executions == 2
    assert quote.campaign.workflow.tasks[0].runtime == pytest.approx(0.2, abs=0.15)


@pytest.mark.parametrize("text", ["0", "1", "100%", "nine"])
def test_a_confidence_that_is_none_is_refused(place, text):
    value = text if text in "01" else f'"{text}"'
    (place / "wrong.toml").write_text(CAMPAIGN + f"[goal]\nconfidence = {value}\n")
    with pytest.raises(bursar.InputError, match="confidence"):
        read_campaign(place / "wrong.toml")
