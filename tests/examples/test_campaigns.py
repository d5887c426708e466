"""The example campaigns run from end to end, as the guides say."""

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bursar

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_epidemic_sweeps_72_jobs() -> None:
    """12 values of R0, 3 coverages, 2 seeds, and one task that gathers."""
    tasks = bursar.read_campaign(EXAMPLES / "epidemic" / "epidemic.pln").workflow.tasks

    jobs = [task for task in tasks if task.parameters]
    assert len(jobs) == 72
    assert {task.parameters["r0"] for task in jobs} == {1.25 + 0.25 * i for i in range(12)}
    assert len(tasks) == 73


def test_the_federation_collects_the_estimate_of_each_draw() -> None:
    """Its column is found in the file that each draw makes."""
    (column,) = bursar.read_campaign(EXAMPLES / "federation" / "campaign.toml").results

    assert (column.name, column.source, column.type) == ("estimate", "draw-{seed}.txt", "number")


def test_a_small_epidemic_ends_in_a_table_and_a_chart(tmp_path: Path) -> None:
    """The plan with coarser steps: every job's result is a line of the table."""
    folder = shutil.copytree(EXAMPLES / "epidemic", tmp_path / "epidemic")
    plan = folder / "epidemic.pln"
    text = plan.read_text()
    for whole, part in (
        ("range from 1.25 to 4 step 0.25", "range from 2 to 4 step 2"),
        ("select anyof 0 0.3 0.6", "select anyof 0 0.6"),
    ):
        assert whole in text
        text = text.replace(whole, part)
    plan.write_text(text)

    result = bursar.run(plan, runs=tmp_path / "runs")

    assert result.succeeded, [outcome.reason for outcome in result.outcomes()]
    with (result.files / "epidemic.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert {row["r0"] for row in rows} == {"2.0", "4.0"}
    assert (result.files / "epidemic.png").stat().st_size > 10_000


def test_the_mosaic_is_56_tasks_in_six_steps() -> None:
    """Each tile is exposed, projected and corrected; each pair of neighbours is compared."""
    workflow = bursar.read_campaign(EXAMPLES / "mosaic" / "mosaic.toml").workflow
    level: dict[int, int] = {}
    for task in workflow.order:
        level[task] = 1 + max((level[parent] for parent in workflow.parents[task]), default=0)

    assert len(workflow.tasks) == 56
    assert max(level.values()) == 6


@pytest.mark.ci
def test_the_mosaic_ends_in_two_pictures(tmp_path: Path) -> None:
    """The whole workflow, files handed from task to task."""
    result = bursar.run(EXAMPLES / "mosaic" / "mosaic.toml", runs=tmp_path / "runs")

    assert result.succeeded, [outcome.reason for outcome in result.outcomes()]
    for name in ("mosaic.png", "unmatched.png"):
        assert (result.files / name).read_bytes().startswith(b"\x89PNG")


def test_the_first_campaign_is_planned_as_the_guide_says() -> None:
    """
    Eight tasks, 15 seconds of work: one processor misses the deadline of 10.

    Of those that meet it none is cheaper than two or three without a gap.
    """
    machine = bursar.SiteFacts(name="machine", processors=8, unit_price=1 / 3600)

    proposal = bursar.plan(EXAMPLES / "first.toml", machine)
    late = bursar.plan(EXAMPLES / "first.toml", machine, processors=1)

    assert proposal.chosen is not None
    assert proposal.chosen.makespan is not None
    assert proposal.chosen.makespan <= 10
    assert proposal.chosen.cost == pytest.approx(15 / 3600)
    assert late.chosen is None
    assert late.counter_offers


def test_the_sites_file_offers_a_choice() -> None:
    """The desk is cheap and slow, the hall dear and fast: both ends are on the curve."""
    proposal = bursar.plan(EXAMPLES / "mosaic" / "mosaic.toml", EXAMPLES / "sites.toml")

    cheapest, fastest = proposal.front.options[-1], proposal.front.options[0]
    assert [p.slot.site for p in cheapest.purchases] == ["desk"]
    assert "hall" in [p.slot.site for p in fastest.purchases]
    assert cheapest.currency == "EUR"


def test_the_executor_example_finds_pi(capsys: pytest.CaptureFixture[str]) -> None:
    """40 million points: the error is 0.0003, and its first digits are right."""
    import runpy

    runpy.run_path(str(EXAMPLES / "executor.py"), run_name="__main__")

    assert capsys.readouterr().out.startswith("pi = 3.14")


@pytest.mark.ci
def test_histograms_are_made_where_the_runs_lie(tmp_path: Path) -> None:
    """As the example's README says: nothing large is moved, and the resonance is there."""
    folder = shutil.copytree(EXAMPLES / "datagrid", tmp_path / "datagrid")
    sites = folder / "sites.toml"  # smaller runs, slower links
    sites.write_text(sites.read_text().replace('"8 Mbit/s"', '"500 kbit/s"'))
    command = Path(sys.executable).parent
    environment = {"PATH": f"{command}:/usr/bin:/bin"}
    subprocess.run(
        ["sh", "prepare.sh", "20000"], cwd=folder, env=environment, check=True, timeout=100
    )

    result = bursar.run(
        folder / "analysis.toml",
        sites,
        catalogue=folder / "replicas.sqlite",
        runs=tmp_path / "runs",
    )

    assert result.succeeded, [outcome.reason for outcome in result.outcomes()]
    drawn = (result.files / "sum.txt").read_text().splitlines()
    assert max(drawn, key=lambda line: int(line.split()[1])).startswith("3.05")
    lying = {path.relative_to(folder) for path in (folder / "storage").rglob("run?")}
    assert len([path for path in lying if path.parent.name == "events"]) == 6
