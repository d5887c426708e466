"""Campaigns whose jobs the resource broker brings to sites and to their files, live."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_json import documented, keys_of
from tests.cli.test_run import check_money

from bursar.dispatch.journal import read_journal
from bursar.model.task import Status
from bursar.replicas.catalogue import Catalogue

SITES = """\
[site.bari]
processors = 2
unit_price = 1
storage = "store/bari"
attributes = { OpSys = "LINUX" }
[site.pisa]
processors = 2
unit_price = 1
storage = "store/pisa"
attributes = { OpSys = "LINUX" }
[site.roma]
processors = 2
unit_price = 1
storage = "store/roma"
attributes = { OpSys = "Solaris" }
"""
LINKS = "".join(
    f'[[link]]\nfrom = "{a}"\nto = "{b}"\nbandwidth = "1 MB/s"\n'
    for a, b in (("bari", "pisa"), ("bari", "roma"), ("pisa", "roma"))
)


@pytest.fixture
def grid(folder: Any) -> Any:
    """A folder with three sites, their storages, and throttled links."""
    folder.write("sites.toml", SITES + LINKS)
    return folder


def put(grid: Any, name: str, site: str, size: int) -> None:
    """A file in a site's storage, and in the catalogue."""
    path = grid.path / "store" / site / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(name.encode() * (size // len(name)))
    grid.bursar(
        "replicas", "add", name, str(path), "--site", site, "--catalogue", "replicas.sqlite"
    )


def ran_at(run: Path, tasks: list[str]) -> dict[str, str]:
    """Where each task succeeded."""
    return {
        tasks[record.outcome.task]: record.site
        for record in read_journal(run / "journal.sqlite").records
        if record.outcome.status is Status.SUCCEEDED
    }


def started(run: Path, tasks: list[str]) -> dict[str, float]:
    """When each task began, seconds since the run's begin."""
    records = read_journal(run / "journal.sqlite").records
    return {tasks[r.outcome.task]: r.outcome.start for r in records}


def test_work_goes_to_its_data(grid: Any) -> None:
    """Each job runs where its file is: bringing it elsewhere would take a second."""
    for i, site in enumerate(("bari", "pisa", "roma")):
        put(grid, f"run{i}.dat", site, 1_000_000)
    grid.write(
        "c.toml",
        """\
[campaign]
name = "c"
command = "wc -c < run{i}.dat && sleep 0.1"
[parameters]
i = [0, 1, 2]
again = [0, 1]
[task]
id = "t{i}{again}"
runtime = 0.1
data = ["run{i}.dat"]
""",
    )

    options = ("--sites", "sites.toml", "--catalogue", "replicas.sqlite", "--name", "r")
    told = grid.json("run", "c.toml", *options)

    assert told["succeeded"] == 6
    tasks = [f"t{i}{j}" for i in range(3) for j in range(2)]
    where = ran_at(grid.path / "runs" / "r", tasks)
    assert where == {t: ("bari", "pisa", "roma")[int(t[1])] for t in tasks}
    assert "1000000" in grid.bursar("logs", "r", "t00").stdout
    check_money(grid.path / "runs" / "r", grid.json("bill", "r"))


def test_files_come_to_work_that_must_run_elsewhere_and_stay_there(grid: Any) -> None:
    """The job waits for its file, which takes at least what its link allows."""
    put(grid, "a.dat", "roma", 500_000)
    grid.write(
        "c.toml",
        """\
[campaign]
name = "c"
[[task]]
id = "t"
command = "cat a.dat > out"
runtime = 0.1
data = ["a.dat"]
outputs = ["out"]
requirements = 'other.OpSys == "LINUX" && other.Name != "pisa"'
register = { out = "copy/of/a.dat" }
[[task]]
id = "u"
command = "cmp a.dat copy/of/a.dat"
runtime = 0.1
data = ["a.dat", "copy/of/a.dat"]
""",
    )
    options = ("--sites", "sites.toml", "--catalogue", "replicas.sqlite", "--name", "r")

    told = grid.json("run", "c.toml", *options)

    assert told["succeeded"] == 2
    run = grid.path / "runs" / "r"
    assert ran_at(run, ["t", "u"]) == {"t": "bari", "u": "bari"}
    assert started(run, ["t", "u"])["t"] > 0.4
    with Catalogue(grid.path / "replicas.sqlite") as catalogue:
        assert {copy.site for copy in catalogue.locate("a.dat")} == {"roma", "bari"}
        assert {copy.site for copy in catalogue.locate("copy/of/a.dat")} == {"bari"}
    assert "bari" in grid.bursar("why", "r", "t").stdout


@pytest.mark.ci
def test_a_burst_spreads_as_the_choice_says(folder: Any) -> None:
    """
    The index was read before the burst. By it the widest site is the best for every job; ours
    counts the jobs that are there already.
    """
    folder.write(
        "sites.toml", "".join(f"[site.{n}]\nprocessors = {i}\n" for i, n in enumerate("abc", 1))
    )
    folder.write(
        "burst.toml",
        '[campaign]\nname = "burst"\ncommand = "true"\n[parameters]\n'
        'i = { from = 1, to = 120, step = 1 }\n[task]\nid = "t{i}"\nruntime = 5\n'
        'rank = "other.FreeCPUs"\n',
    )
    shares = {}
    for choice in ("best", "stochastic", "completion"):
        options = ("--sites", "sites.toml", "--choice", choice, "--rank-by", "index")
        options += ("--refresh", "1h", "--fresh")
        told = folder.json("run", "burst.toml", *options, "--name", choice)
        assert told["succeeded"] == 120
        where = ran_at(folder.path / "runs" / choice, [f"t{i}" for i in range(1, 121)])
        shares[choice] = [Counter(where.values())[site] for site in "abc"]

    assert shares["best"] == [0, 0, 120]
    assert min(shares["stochastic"]) > 0
    # A job that ends before the last are handed out leaves its place to another.
    assert shares["completion"] == pytest.approx([20, 40, 60], abs=6)


def test_a_job_that_no_site_would_have_is_said_before_anything_starts(grid: Any) -> None:
    grid.write(
        "c.toml",
        '[campaign]\nname = "c"\n[[task]]\nid = "t"\ncommand = "true"\n'
        "requirements = 'other.OpSys == \"IRIX\"'\n",
    )

    told = grid.json("run", "c.toml", "--sites", "sites.toml", "--name", "r", status=3)

    assert told["feasible"] is False
    assert told["unmatched"][0]["task"] == "t"
    assert "IRIX" in told["unmatched"][0]["reason"]
    assert keys_of(told) <= documented("json.md")
    assert not (grid.path / "runs" / "r").exists()


def test_a_broken_copy_is_passed_over_and_said(grid: Any) -> None:
    """The one at bari is not what it was registered as; the one at pisa is brought there."""
    put(grid, "a.dat", "bari", 100_000)
    put(grid, "a.dat", "pisa", 100_000)
    (grid.path / "store" / "bari" / "a.dat").write_bytes(b"x" * 99_999)
    grid.write(
        "c.toml",
        '[campaign]\nname = "c"\n[[task]]\nid = "t"\ncommand = "head -c 5 a.dat"\nruntime = 1\n'
        'data = ["a.dat"]\nsite = "roma"\n',
    )
    options = ("--sites", "sites.toml", "--catalogue", "replicas.sqlite", "--name", "r")

    told = grid.json("run", "c.toml", *options)

    assert told["succeeded"] == 1
    assert grid.bursar("logs", "r", "t").stdout.strip().endswith("a.dat")


def test_a_run_killed_while_files_come_is_resumed(grid: Any) -> None:
    """What had come is not brought again, and each result is there once."""
    for i in range(4):
        put(grid, f"f{i}", "roma", 300_000)
    grid.write(
        "c.toml",
        '[campaign]\nname = "c"\ncommand = "cat f{i} > o{i}"\n[parameters]\ni = [0, 1, 2, 3]\n'
        '[task]\nid = "t{i}"\nruntime = 0.1\ndata = ["f{i}"]\noutputs = ["o{i}"]\n'
        'register = { "o{i}" = "made/o{i}" }\nsite = "bari"\n',
    )
    options = ("--sites", "sites.toml", "--catalogue", "replicas.sqlite", "--name", "r")
    runner = grid.start("run", "c.toml", *options, "--quiet")
    grid.until((grid.path / "store" / "bari" / "f0").exists, runner)
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()

    told = grid.json("run", "--resume", "r")

    assert told["succeeded"] == 4
    run = grid.path / "runs" / "r"
    records = read_journal(run / "journal.sqlite").records
    succeeded = [r.outcome.task for r in records if r.outcome.status is Status.SUCCEEDED]
    assert sorted(succeeded) == [0, 1, 2, 3]
    with Catalogue(grid.path / "replicas.sqlite") as catalogue:
        for i in range(4):
            assert {copy.site for copy in catalogue.locate(f"made/o{i}")} == {"bari"}
    check_money(run, grid.json("bill", "r"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--alpha", "2"), "--alpha: alpha must be between 0 and 1, got 2"),
        (("--choice", "bets"), "--choice: choice: expected one of completion"),
        (("--choice", "best", "--strategy", "cost"), "the broker sends these jobs"),
        (("--choice", "best", "--processors", "2"), "leases processors as it goes"),
        (("--refresh", "0"), "--refresh: "),
    ],
)
def test_options_that_make_no_sense_are_refused(
    grid: Any, options: tuple[str, ...], said: str
) -> None:
    grid.write("c.toml", '[campaign]\nname = "c"\ncommand = "true"\n')

    assert said in grid.bursar("run", "c.toml", *options, status=2).stderr


def test_logical_files_need_a_catalogue(grid: Any) -> None:
    grid.write(
        "c.toml",
        '[campaign]\nname = "c"\n[[task]]\nid = "t"\ncommand = "true"\ndata = ["a"]\n',
    )

    told = grid.bursar("run", "c.toml", "--sites", "sites.toml", status=2).stderr

    assert "there is no replica catalogue" in told


def test_a_storage_that_cannot_be_used_is_said_before_a_run_is_made(grid: Any) -> None:
    """Its name stays free."""
    put(grid, "a.dat", "bari", 1000)
    (grid.path / "store" / "roma").write_text("a file, not a folder")
    grid.write(
        "c.toml",
        '[campaign]\nname = "c"\n[[task]]\nid = "t"\ncommand = "true"\ndata = ["a.dat"]\n',
    )
    options = ("--sites", "sites.toml", "--catalogue", "replicas.sqlite", "--name", "r")

    assert "roma" in grid.bursar("run", "c.toml", *options, status=2).stderr
    assert not (grid.path / "runs" / "r").exists()


def test_a_seed_without_a_draw_is_refused(folder: Any) -> None:
    """A run whose jobs no broker matches has nothing random in it."""
    folder.write("c.toml", '[campaign]\nname = "c"\ncommand = "true"\n')
    refused = folder.bursar("run", "c.toml", "--seed", "3", status=2)
    assert "seed: only the broker draws at random" in refused.stderr
    folder.json("run", "c.toml", "--seed", "3", "--choice", "random")
