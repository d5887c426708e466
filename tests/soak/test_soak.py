"""Rounds of live faults: a few in continuous integration, hundreds by ``make test-long``."""

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.forked import start_forked
from tests.soak.__main__ import done_before, main
from tests.soak.campaigns import (
    PATIENCE,
    LocalRuns,
    PaidTime,
    Soaked,
    check_end,
    count_overlaps,
    kill_run,
    kill_workers,
)
from tests.soak.clusters import ClusterRuns, GridEngineDaemons, SlurmDaemons, check_record
from tests.soak.rounds import Findings, Target, run_rounds
from tests.soak.services import Services

from bursar_devtools.testgrid import gridengine, slurm_requirements

SEED = 20261123


def hold(target: Target, folder: Path, numbers: list[int]) -> None:
    """Carry out rounds in which everything must hold, and something must be killed."""
    rows = list(run_rounds(target, folder, seed=SEED, numbers=numbers))
    assert {row.number: row.broken for row in rows if row.broken} == {}
    assert [row.number for row in rows] == numbers
    assert sum(sum(row.kills.values()) for row in rows) > 0
    # Folders of rounds in which everything held are gone.
    assert [path.name for path in folder.iterdir() if path.name != "shared"] == []


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_a_few_rounds_on_runs_of_this_machine(tmp_path: Path) -> None:
    """Runs and workers are killed: results, money, files and processes are as promised."""
    hold(LocalRuns(start_forked), tmp_path, [0, 1])


@pytest.mark.ci
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers_too", [False, True])
def test_time_between_a_kill_and_the_resumption_is_paid_where_workers_go_on(
    tmp_path: Path, workers_too: bool
) -> None:
    """The pause is longer than all starts, so that it cannot hide in what they take."""
    pause, found = 4.0, Findings()
    sites = '[site.local]\nkind = "local"\nprocessors = 2\nunit_price = "3600 SU/core-hour"\n'
    soaked = Soaked.lay_out(tmp_path, sites, start_forked, pieces=8, step=0.03, budget=2_000.0)
    try:
        paid = PaidTime.start(soaked)
        assert soaked.wait_for(2)
        if workers_too:
            kill_workers(soaked, random.Random(0), found, 1.0)
        kill_run(soaked, found)
        assert bool(soaked.workers()) is not workers_too
        paid.resume(found, pause)
        assert soaked.run.finish(PATIENCE) == 0
        ended = time.monotonic()
        check_end(soaked, found)
        paid.check(2, ended, found)
    finally:
        soaked.run.close()
    assert found.broken == []
    assert (found.billed >= 2 * pause) is not workers_too
    assert (paid.away >= pause) is workers_too


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_a_few_rounds_on_a_service(tmp_path: Path) -> None:
    """A service and its workers are killed while a client submits."""
    hold(Services(start_forked), tmp_path, [0, 1])


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("name", "rounds"), [("local", 500), ("service", 300), ("slurm", 150), ("gridengine", 50)]
)
def test_a_thousand_rounds(tmp_path: Path, name: str, rounds: int) -> None:
    """The same at length, on both test clusters too."""
    if name == "slurm" and slurm_requirements.missing_programs():
        pytest.skip("no Slurm here")
    if name == "gridengine" and gridengine.missing_programs():
        pytest.skip("no Grid Engine here")
    start = start_forked
    targets: dict[str, Target] = {
        "local": LocalRuns(start),
        "service": Services(start),
        "slurm": ClusterRuns(SlurmDaemons, start),
        "gridengine": ClusterRuns(GridEngineDaemons, start),
    }
    hold(targets[name], tmp_path, list(range(rounds)))


class Breaking:
    """A target in which something does not hold, or fails, by the number drawn."""

    name = "breaking"

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def up(self, folder: Path) -> "Breaking":
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None

    def strike(self, folder: Path, rng: random.Random, found: Findings) -> None:
        self.drawn.append(rng.random())
        (folder / "evidence").touch()
        found.kills["runner"] += 1
        if len(self.drawn) == 1:
            found.need(False, "a promise")
        if len(self.drawn) == 2:
            raise OSError("no way")


def test_a_round_that_fails_is_told_and_kept_and_can_be_repeated_alone(tmp_path: Path) -> None:
    """A broken promise and an exception end their round only; equal numbers draw alike."""
    target = Breaking()
    first, second, third = run_rounds(target, tmp_path, seed=7, numbers=[4, 5, 6])

    assert first.broken == ["a promise"]
    assert second.broken == ["OSError: no way"]
    assert third.broken == []
    assert {path.name for path in tmp_path.iterdir()} == {"breaking-7-4", "breaking-7-5"}
    again = Breaking()
    list(run_rounds(again, tmp_path / "again", seed=7, numbers=[5]))
    assert again.drawn == [target.drawn[1]]


def test_rounds_that_a_file_holds_are_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for each round; what was stopped goes on where it stood."""
    file = tmp_path / "rounds.jsonl"
    line = '{{"target":"local","seed":3,"number":{},"kills":{{}},"tasks":1,"repeated":0,"billed":1.0,"recorded":1.0,"seconds":1.0}}\n'  # noqa: E501
    file.write_text("".join(line.format(number) for number in range(4)))

    assert done_before(file, "local", 3) == {0, 1, 2, 3}
    assert done_before(file, "service", 3) == set()
    assert main(["local", "--rounds", "4", "--seed", "3", "--json", str(file)]) == 0
    assert len(file.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("lines", "overlapped"),
    [
        ("begin 1 10/end 1 10/begin 1 11/end 1 11", 0),
        ("begin 1 10/begin 1 11/end 1 11", 0),  # the first was killed
        ("begin 1 10/begin 1 11/end 1 10/end 1 11", 1),  # the first went on
        ("begin 1 10/begin 2 11/end 1 10/end 2 11", 0),
    ],
)
def test_attempts_that_go_on_beside_their_successors_are_found(lines: str, overlapped: int) -> None:
    """By the order of what the attempts themselves have written."""
    found = Findings()
    count_overlaps([line.split() for line in lines.split("/")], found)
    assert found.overlapped == overlapped


@pytest.mark.parametrize(
    ("leases", "rows", "broken"),
    [
        ([("record", 10.0)], [(4, 10.0)], 0),
        ([("record", 10.0)], [(4, 20.0)], 1),
        ([("record", 20.0)], [(4, 10.0)], 1),
        ([("record", 10.0), ("bound", 90.0)], [(4, 10.0)], 0),
        ([("record", 10.0), ("bound", 90.0)], [(4, 10.0), (4, 60.0)], 0),
        ([("record", 10.0), ("bound", 90.0)], [(4, 10.0), (4, 120.0)], 1),
        ([("record", 10.0), ("bound", 90.0)], [], 1),
    ],
)
def test_money_is_held_against_the_record(
    leases: list[tuple[str, float]], rows: list[tuple[int, float]], broken: int
) -> None:
    """What records settled must be in the record; a bound is never below it."""
    found = Findings(billed=sum(4 * seconds for _, seconds in leases))
    found.recorded = sum(processors * seconds for processors, seconds in rows)
    bill = {
        "leases": [
            {"settled_by": how, "processors": 4, "seconds": seconds} for how, seconds in leases
        ]
    }
    check_record(bill, rows, found)
    assert len(found.broken) == broken
    assert found.bound == Counter(how for how, _ in leases)["bound"]
