"""Bags of tasks brought to sites by deadline and budget, as their user does it."""

import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_json import documented, keys_of
from tests.cli.test_run import check_money

from bursar.broker.decision_reasons import DECISION, PlacementDecision
from bursar.dispatch.journal import read_journal

SWEEP = """\
[campaign]
name = "bag"
command = "sleep {seconds}"
[parameters]
x = { from = 1, to = 30, step = 1 }
seconds = 0.1
[task]
runtime = "{seconds}"
id = "x{x}"
[retry]
backoff = 0
"""
SITES = """\
[site.cheap]
kind = "local"
processors = 1
unit_price = 1
[site.dear]
kind = "local"
processors = 2
unit_price = 3
[site.dearest]
kind = "local"
processors = 1
unit_price = 9
"""


@pytest.fixture
def bag(folder: Any) -> Any:
    """A folder with thirty jobs and three sites."""
    folder.write("bag.toml", SWEEP)
    folder.write("sites.toml", SITES)
    return folder


def sent(run: Path) -> list[tuple[int, str]]:
    """Task and site of each job that was sent, by the journal."""
    import msgspec

    events = read_journal(run / "journal.sqlite").events
    decisions = [
        msgspec.json.decode(e.text, type=PlacementDecision) for e in events if e.kind == DECISION
    ]
    return [(task, site) for decision in decisions for task, site, _ in decision.sent]


@pytest.mark.ci
def test_a_bag_with_a_goal_on_several_sites_is_brought_there_by_our_own(bag: Any) -> None:
    """All jobs within both limits, decided as the run went on; the books are right."""
    told = bag.json("run", "bag.toml", "--sites", "sites.toml", "--deadline", "60", "--name", "r")

    assert (told["succeeded"], told["deadline_met"]) == (30, True)
    run = bag.path / "runs" / "r"
    assert {site for _, site in sent(run)} == {"cheap"}, "there is time for the cheapest alone"
    assert sorted(task for task, _ in sent(run)) == list(range(30))
    check_money(run, bag.json("bill", "r"))


@pytest.mark.parametrize("strategy", ["adaptive", pytest.param("none", marks=pytest.mark.ci)])
def test_every_strategy_keeps_to_the_budget_live(bag: Any, strategy: str) -> None:
    """Whatever it completes, it pays no more, and says what it left."""
    options = ("--strategy", strategy, "--deadline", "30", "--budget", "5", "--name", "r")
    done = bag.bursar(
        "run", "bag.toml", "--sites", "sites.toml", *options, "--anyway", "--json", status=None
    )
    told = json.loads(done.stdout)

    assert told["cost"] <= 5
    assert told["held"] == 0
    assert told["succeeded"] + told["not_run"] == 30
    assert done.returncode == (0 if told["succeeded"] == 30 else 4)
    check_money(bag.path / "runs" / "r", bag.json("bill", "r"))


@pytest.mark.ci
def test_a_strategy_is_forecast_before_anything_starts(bag: Any) -> None:
    """As the run would say, with odds once there were runs; and nothing is made."""
    goal = ("bag.toml", "--sites", "sites.toml", "--deadline", "60", "--history", "h.sqlite")
    named = ("--strategy", "cost", *goal)

    told = bag.json("plan", *named)
    assert (told["policy"], told["strategy"], told["feasible"]) == ("economy", "cost", True)
    assert "forecast" not in told
    assert not list((bag.path / "runs").glob("*"))
    bag.json("run", *named, "--name", "r")
    began = json.loads((bag.path / "runs" / "r" / "plan.json").read_text())["proposal"]
    assert told["expected_cost"] == pytest.approx(began["expected_cost"])
    told = bag.json("plan", *named, "--fresh")
    assert told["forecast"]["odds"] > 0.9
    assert keys_of(told) <= documented("json.md")

    said = bag.bursar("plan", *goal, "--fresh")
    assert "bursar plan --strategy adaptive shows what to expect" in said.stderr
    assert "strategy" not in bag.bursar("plan", *goal, "--fresh", "-p", "2").stderr
    out_of_reach = (
        "--strategy",
        "cost",
        "bag.toml",
        "--sites",
        "sites.toml",
        "--deadline",
        "0.4",
        "--fresh",
    )
    assert bag.json("plan", *out_of_reach, status=3)["counter_offers"]


def test_a_strategy_that_leaves_jobs_undone_says_so_though_they_would_fit(bag: Any) -> None:
    goal = ("--strategy", "cost", "bag.toml", "--sites", "sites.toml", "--history", "none")

    told = bag.json("plan", *goal, "--deadline", "0.9")

    assert told["expected_jobs"] < 30
    assert told["reason"].endswith(f", but {told['expected_jobs']} of 30 are expected to be done")


def test_what_a_simulation_says_does_not_fit_is_refused_where_that_is_asked_for(bag: Any) -> None:
    """Before anything is bought, and with what could be had instead."""
    goal = ("--strategy", "cost", "bag.toml", "--sites", "sites.toml", "--history", "none")
    refused = ("--out-of-reach", "refuse", "--deadline", "0.9")

    told = bag.json("run", *goal, *refused, status=3)

    assert told == bag.json("plan", *goal, *refused, status=3)
    assert not told["feasible"]
    assert told["reason"].endswith(" of 30 are expected to be done")
    assert not list((bag.path / "runs").glob("bag*"))
    offers = {offer["kind"]: offer for offer in told["counter_offers"]}
    assert set(offers) == {"time", "share"}
    assert offers["share"]["tasks"] < 30
    later = ("--out-of-reach", "refuse", "--deadline", str(offers["time"]["makespan_s"]))
    taken = bag.json("plan", *goal, *later)
    assert taken["feasible"]
    assert taken["expected_jobs"] == 30


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--strategy", "cost", "--exact", "1s"), "--exact: goes with a plan; a strategy decides"),
        (("--strategy", "cost", "--check"), "--check: goes with a plan; a strategy decides"),
        (("--out-of-reach", "fit"), "--out-of-reach: goes with --strategy"),
    ],
)
def test_options_of_plans_and_strategies_are_not_mixed(
    bag: Any, options: tuple[str, ...], words: str
) -> None:
    done = bag.bursar("plan", "bag.toml", "--sites", "sites.toml", *options, status=2)

    assert words in done.stderr


def test_a_workflow_is_planned_by_the_trade_off_of_a_strategy(bag: Any) -> None:
    bag.write(
        "chain.toml",
        '[campaign]\nname = "chain"\n[[task]]\nid = "a"\ncommand = "true"\nruntime = 1\n'
        '[[task]]\nid = "b"\ncommand = "true"\nruntime = 1\nafter = ["a"]\n',
    )
    bag.write(
        "two.toml",
        "[site.cheap]\nprocessors = 1\nunit_price = 1\n"
        "[site.fast]\nprocessors = 1\nunit_price = 3\nspeed = 2\n",
    )
    options = ("plan", "chain.toml", "--sites", "two.toml", "--strategy")

    cheap, fast = bag.json(*options, "cost"), bag.json(*options, "time")

    assert (cheap["policy"], fast["policy"]) == ("planned", "planned")
    assert cheap["expected_cost"] < fast["expected_cost"]
    assert cheap["expected_finish_s"] > fast["expected_finish_s"]


def test_a_goal_out_of_reach_is_answered_with_what_could_be_had(bag: Any) -> None:
    """And nothing is started; an offer that is taken as it is printed holds, live."""
    goal = ("--deadline", "1.9", "--budget", "3.6")
    told = bag.json(
        *("run", "bag.toml", "--sites", "sites.toml", "--strategy", "adaptive"), *goal, status=3
    )

    assert not told["feasible"]
    assert told["expected_jobs"] < 30
    assert not list((bag.path / "runs").glob("*"))
    offers = {offer["kind"]: offer for offer in told["counter_offers"]}
    assert set(offers) == {"time", "budget", "share"}
    assert offers["share"]["tasks"] < 30
    assert offers["budget"]["margin_cost"] > 0
    taken = bag.json(
        *("run", "bag.toml", "--sites", "sites.toml", "--strategy", "adaptive", "--name", "r"),
        *("--deadline", "1h", "--budget", str(offers["budget"]["cost"])),
    )
    assert taken["succeeded"] == 30
    assert taken["cost"] <= offers["budget"]["cost"]


@pytest.mark.ci
def test_end_and_cost_are_said_before_a_strategy_runs_and_after_an_amendment(bag: Any) -> None:
    """The summary holds them against what came out."""
    goal = ("--strategy", "cost", "--budget", "2", "--deadline", "100", "--name", "r")
    done = bag.bursar("run", "bag.toml", "--sites", "sites.toml", *goal, "--anyway", status=4)
    before = bag.json("report", "r")

    assert "expected: end " in done.stderr
    assert "(expected " in done.stdout
    assert "unknown" not in done.stdout.partition("cost")[2]
    assert before["predicted_makespan_s"] is not None
    assert before["predicted_cost"] is not None

    amended = bag.json("amend", "r", "--budget", "100")
    after = bag.json("report", "r")

    assert amended["expected_finish_s"] > amended["elapsed_s"]
    assert amended["spent"] < amended["expected_cost"] < 100
    assert after["predicted_cost"] == pytest.approx(amended["expected_cost"])
    assert after["predicted_makespan_s"] == pytest.approx(amended["expected_finish_s"])
    assert "expected: end " in bag.bursar("amend", "r", "--budget", "101").stdout


def test_a_run_killed_at_any_moment_goes_on_by_its_strategy(bag: Any) -> None:
    """Each job succeeds once, and the budget holds over all lives."""
    process = bag.start(
        *("run", "bag.toml", "--sites", "sites.toml", "--strategy", "adaptive"),
        *("--deadline", "120", "--budget", "40", "--name", "r", "-q"),
    )
    journal = bag.path / "runs" / "r" / "journal.sqlite"
    for ended in (3, 9):
        bag.until(lambda count=ended: journal.exists() and _ended(journal) >= count, process)
        process.signal_group(signal.SIGKILL)
        process.wait()
        process = bag.start("run", "--resume", "r", "-q")
    process.communicate(timeout=60)

    told = bag.json("report", "r")
    assert process.returncode == 0
    assert told["succeeded"] == 30
    assert told["cost"] <= 40
    records = read_journal(journal).records
    assert sorted(r.outcome.task for r in records if r.final) == list(range(30))
    check_money(bag.path / "runs" / "r", bag.json("bill", "r"))


@pytest.mark.ci
def test_a_running_campaign_gets_another_goal(bag: Any) -> None:
    """What could not be done in time is, once there is more money."""
    bag.write("bag.toml", SWEEP.replace("seconds = 0.1", "seconds = 0.6"))
    process = bag.start(
        *("run", "bag.toml", "--sites", "sites.toml", "--strategy", "adaptive"),
        *("--deadline", "60", "--budget", "16", "--name", "r", "--anyway", "-q"),
    )
    journal = bag.path / "runs" / "r" / "journal.sqlite"
    bag.until(lambda: journal.exists() and _ended(journal) >= 2, process)

    given = bag.json("amend", "r", "--budget", "+100", "--deadline", "+1m")
    looked = bag.json("amend", "r", "--budget", "+100", "--dry-run")
    process.communicate(timeout=60)

    assert (looked["applied"], given["applied"]) == (False, True)
    assert (given["budget"], given["deadline_s"], given["feasible"]) == (116, 120, True)
    told = bag.json("report", "r")
    assert (told["succeeded"], told["budget"], told["deadline_s"]) == (30, 116, 120)
    assert process.returncode == 0


def test_a_stopped_run_has_its_new_goal_when_it_is_resumed(bag: Any) -> None:
    """The budget stops it, more money lets it end."""
    options = ("--strategy", "cost", "--budget", "2", "--deadline", "100", "--name", "r")
    bag.bursar("run", "bag.toml", "--sites", "sites.toml", *options, "--anyway", status=4)

    bag.bursar("amend", "r", "--budget", "50")

    assert bag.json("run", "--resume", "r")["succeeded"] == 30


def test_limits_that_make_no_sense_change_nothing(bag: Any) -> None:
    """One line says what is wrong; the goal stays."""
    goal = ("--strategy", "cost", "--budget", "2", "--deadline", "100", "--name", "r")
    bag.bursar("run", "bag.toml", "--sites", "sites.toml", *goal, "--anyway", status=4)

    for options, words in (
        ((), "give a deadline, a budget, or both"),
        (("--deadline", "0"), "deadline"),
        (("--deadline", "1e-9"), "have passed"),
        (("--budget", "1e-6"), "are spent already"),
        (("--budget", "-3"), "budget"),
        (("--budget", "5 EUR"), "counts in SU"),
        (("--deadline", "+x"), "--deadline"),
    ):
        assert words in bag.bursar("amend", "r", *options, status=2).stderr
    assert bag.json("report", "r")["budget"] == 2


@pytest.mark.ci
def test_every_placement_is_explained(bag: Any) -> None:
    """Where a job went, by which rule, how the others were weighed; and why a site got none."""
    goal = ("--strategy", "adaptive", "--deadline", "60", "--budget", "50", "--name", "r")
    bag.bursar("run", "bag.toml", "--sites", "sites.toml", *goal)

    (placed,) = bag.json("why", "r", "x7")["placed"]
    against = bag.json("why-not", "r", "dearest")

    assert (placed["site"], placed["status"]) == ("cheap", "succeeded")
    assert placed["why"].startswith("adaptive: ")
    assert {site["site"] for site in placed["sites"]} == {"cheap", "dear", "dearest"}
    assert against["tasks"] == 0
    assert "not needed" in against["reasons"][0]["reason"]
    assert "cheap" in bag.bursar("why", "r", "x7").stdout
    assert "did you mean" in bag.bursar("why", "r", "x77", status=2).stderr
    assert "did you mean" in bag.bursar("why-not", "r", "cheep", status=2).stderr


@pytest.mark.ci
def test_every_key_is_documented(bag: Any) -> None:
    """Of what these commands print."""
    goal = ("--strategy", "adaptive", "--deadline", "60", "--budget", "2", "--name", "r")
    bag.bursar("run", "bag.toml", "--sites", "sites.toml", *goal, "--anyway", status=4)
    page = documented("json.md")

    for document in (
        bag.json("run", "bag.toml", "--sites", "sites.toml", *goal[:-1], "s", "--fresh", status=3),
        bag.json("amend", "r", "--budget", "+1", "--dry-run"),
        bag.json("why", "r", "x7"),
        bag.json("why-not", "r", "dear"),
        bag.json("simulate", "--replay", "r", "--policy", "cost"),
    ):
        assert keys_of(document) <= page, keys_of(document) - page


@pytest.mark.ci
def test_a_planned_run_is_explained_by_its_plan(bag: Any) -> None:
    bag.bursar("run", "bag.toml", "--sites", "sites.toml", "--name", "r", "-p", "2")

    (placed,) = bag.json("why", "r", "x1")["placed"]

    assert "planned there from" in placed["why"]
    assert bag.json("why-not", "r", "dearest")["reasons"]


@pytest.mark.ci
def test_a_run_is_tried_again_under_other_policies(bag: Any) -> None:
    """Time minimisation bought dear processors; what would have been cheaper is said."""
    # Enough of both on a busy machine, too, where each job of 0.1 s may take a second.
    goal = ("--strategy", "time", "--deadline", "600", "--budget", "500", "--name", "r")
    bag.bursar("run", "bag.toml", "--sites", "sites.toml", *goal)

    told = bag.json("simulate", "--replay", "r", "--policy", "all")

    rows = {row["policy"]: row for row in told["rows"]}
    assert len(rows) == 9
    assert rows["adaptive"]["cost"] < rows["as it was, simulated"]["cost"]
    assert rows["time"]["saved_cost"] == 0
    assert "would have saved" in told["lesson"]
    assert "as it was" in bag.bursar("simulate", "--replay", "r", "--policy", "cost").stdout
    assert "--policy" in bag.bursar("simulate", "--replay", "r", "--policy", "x", status=2).stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--strategy", "cost", "-p", "2"), "processors"),
        (("--strategy", "cheap"), "cheap"),
        (("--strategy", "cost", "--deadline-factor", "-1"), "deadline"),
        (("--strategy", "cost", "--deadline-factor", "nan"), "deadline-factor"),
        (("--strategy", "cost", "--budget", "0 EUR"), "count in SU"),
    ],
)
def test_what_makes_no_sense_is_refused(bag: Any, options: tuple[str, ...], words: str) -> None:
    """With one line, before anything is started."""
    done = bag.bursar("run", "bag.toml", "--sites", "sites.toml", *options, status=2)

    assert words in done.stderr
    assert not list((bag.path / "runs").glob("*"))


def test_factors_stand_between_the_least_and_the_most(bag: Any) -> None:
    """0 is out of reach of nobody but the perfect; 1 is always feasible."""
    told = bag.json(
        *("simulate", "bag.toml", "--sites", "sites.toml", "--strategy", "cost"),
        *("--deadline-factor", "1", "--budget-factor", "1"),
    )

    assert told["deadline_s"] == pytest.approx(3.0)
    assert told["succeeded"] == 30


@pytest.mark.ci
def test_jobs_of_unknown_length_are_learned_of(bag: Any) -> None:
    """Without any estimate at first one job is sent; the rest follows."""
    bag.write("bag.toml", SWEEP.replace('runtime = "{seconds}"\n', ""))
    told = bag.json("run", "bag.toml", "--sites", "sites.toml", "--deadline", "60", "--name", "r")

    assert told["succeeded"] == 30
    first = sent(bag.path / "runs" / "r")[0]
    assert first[1] == "cheap"


@pytest.mark.ci
def test_a_site_whose_jobs_only_fail_is_left_out(bag: Any) -> None:
    """Its jobs are tried again elsewhere, and all succeed."""
    command = "case $BURSAR_WORKER in cheap*) exit 1;; esac; sleep 0.05"
    tries = "[retry]\nattempts = 5\nbackoff = 0"
    text = SWEEP.replace("sleep {seconds}", command).replace("[retry]\nbackoff = 0", tries)
    bag.write("bag.toml", text)
    goal = ("--strategy", "time", "--deadline", "60", "--name", "r")
    told = bag.json("run", "bag.toml", "--sites", "sites.toml", *goal)

    assert told["succeeded"] == 30
    assert told["attempts"] <= 40


def _ended(journal: Path) -> int:
    try:
        with sqlite3.connect(f"file:{journal}?mode=ro", uri=True) as base:
            return int(base.execute("select count(*) from attempts").fetchone()[0])
    except sqlite3.Error:
        return 0


@pytest.mark.ci
def test_a_workflow_that_would_be_late_is_planned_again(bag: Any) -> None:
    """Its tasks take three times as long as estimated; more processors make the deadline."""
    bag.write(
        "flow.toml",
        """\
[campaign]
name = "flow"
[tasks.first]
command = "sleep 0.1"
runtime = 0.1
[tasks.member]
command = "sleep 0.45"
parameters = { n = { from = 1, to = 50, step = 1 } }
runtime = 0.15
after = ["first"]
[goal]
deadline = "10 s"
""",
    )
    bag.write(
        "hall.toml", '[site.hall]\nkind = "local"\nprocessors = 8\nunit_price = "1 SU/core-hour"\n'
    )
    told = bag.json("run", "flow.toml", "--sites", "hall.toml", "--strategy", "cost", "--name", "r")

    assert told["succeeded"] == 51
    first, *later = bag.json("bill", "r")["leases"]
    # Planned again more than once, the last lease may be of the few tasks that are left.
    most = max((lease["processors"] for lease in later), default=0)
    assert first["processors"] < most, "one that would do by the estimates"
    check_money(bag.path / "runs" / "r", bag.json("bill", "r"))
