"""``bursar run`` on a real Slurm, in good and bad moments; none of its jobs is left, ever."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import PATIENCE, Folder
from tests.forked import ForkedCommand
from tests.live_files import files_below

from bursar.dispatch.journal import read_journal
from bursar.provisioning.counting import SILENCE
from bursar.sites.job_watch import LATEST
from bursar_devtools.testgrid.slurm import SlurmCluster

CAMPAIGN = """\
[campaign]
name = "live"
command = "{command}"
[parameters]
i = {{ from = 1, to = {count}, step = 1 }}
[task]
runtime = {runtime}
{more}
"""

CLUSTER = """\
[site.c]
kind = "slurm"
processors = {processors}
unit_price = "2 SU/core-hour"
queue = "{queue}"
environment = {{ SLURM_CONF = "{conf}" }}
reach = "127.0.0.1"
{more}
"""

LOCAL = """\
[site.local]
kind = "local"
processors = 1
unit_price = "1 SU/core-hour"
"""


class Ground:
    """A folder with a campaign and sites, and the session's cluster."""

    def __init__(self, folder: Folder, cluster: SlurmCluster) -> None:
        self.folder = folder
        self.cluster = cluster

    def campaign(
        self, count: int = 12, command: str = "sleep 0.2", runtime: float = 0.3, more: str = ""
    ) -> None:
        text = CAMPAIGN.format(count=count, command=command, runtime=runtime, more=more)
        self.folder.write("c.toml", text)

    def sites(self, *others: str, queue: str = "main", more: str = "", conf: str = "") -> None:
        conf = conf or self.cluster.environment["SLURM_CONF"]
        processors = self.cluster.processors
        text = CLUSTER.format(queue=queue, conf=conf, more=more, processors=processors)
        self.folder.write("s.toml", "\n".join([*others, text]))

    @property
    def made(self) -> Path:
        """The only run there is."""
        (path,) = (p for p in (self.folder.path / "runs").iterdir() if p.is_dir())
        return path

    def run(self, *words: str, status: int = 0, **options: Any) -> str:
        """Runs it to its end; what it said."""
        done = self.folder.bursar(
            "run", "c.toml", "--sites", "s.toml", *words, status=status, **options
        )
        return f"{done.stdout}{done.stderr}"

    def start(self, *words: str) -> ForkedCommand:
        return self.folder.start("run", "c.toml", "--sites", "s.toml", *words)

    def finish(self, process: ForkedCommand, status: int = 0) -> str:
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == status, (out, err)
        assert "Traceback" not in err
        return out + err

    def jobs(self, *options: str, name: str = "bursar-") -> list[str]:
        """Ids of pilots' jobs that are there, and have not been told to end."""
        said = self.cluster.run("squeue", "--noheader", "--array", "--format=%i|%j|%T", *options)
        rows = [line.split("|") for line in said.splitlines()]
        return [id for id, job, state in rows if job.startswith(name) and state != "COMPLETING"]

    def results(self, run: Path | None = None) -> list[dict[str, Any]]:
        """Of a run, each of them once."""
        lines = ((run or self.made) / "results.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        assert len({row["task"] for row in rows}) == len(rows)
        return rows

    def pilots(self) -> dict[str, Any]:
        return self.folder.json("pilots", self.made.name)


def until(what: Callable[[], Any]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.fixture
def ground(folder: Folder, slurm: SlurmCluster) -> Iterator[Ground]:
    """With a cluster that is as it was, before and after."""
    made = Ground(folder, slurm)
    try:
        yield made
        until(lambda: not made.jobs())
        assert "No reservations" in slurm.run("scontrol", "show", "reservation")
    finally:
        folder.close()
        if left := made.jobs():
            slurm.run("scancel", *left)


def test_a_campaign_runs_over_a_cluster_and_this_machine(ground: Ground) -> None:
    """Each result once; what was held is what Slurm says, within two seconds a processor."""
    ground.campaign(40)
    ground.sites(LOCAL)

    said = ground.run()

    assert "40 of 40 succeeded" in said
    assert {row["status"] for row in ground.results()} == {"succeeded"}
    assert len(ground.results()) == 40
    assert {row["site"] for row in ground.results()} == {"local", "c"}
    rows = [row for row in ground.pilots()["requests"] if row["site"] == "c"]
    assert rows
    for row in rows:
        assert row["agrees"] is True, row
        assert row["recorded_cpu_s"] is not None
    # No secret is left, nor anything else of the pilots but the record.
    kept = {path.name for path in (ground.made / "pilots").iterdir()}
    assert kept == {"c.jobs", "c.usage.jsonl"}


@pytest.mark.ci
def test_no_secret_is_where_others_may_read_it(ground: Ground) -> None:
    """Not in a command line, an environment, the queue, the job's script or a file of others."""
    ground.campaign(16, command="sleep 2", runtime=3)
    ground.sites(more='[site.c.pool]\nacquisition = "all-at-once"')  # one pilot
    process = ground.start()
    ground.folder.until(lambda: ground.jobs("--states=R"), process)
    (file,) = (ground.made / "pilots").rglob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    token = json.loads(file.read_text())["token"]
    assert len(token) >= 32

    (job,) = ground.jobs()
    shown = ground.cluster.run("scontrol", "show", "job", "--details", job)
    shown += ground.cluster.run("scontrol", "write", "batch_script", job, "-")
    shown += ground.cluster.run("squeue", "--Format=name:200,command:200,comment:200")
    assert str(file) in shown
    assert token not in shown
    for other in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                assert token.encode() not in (other / name).read_bytes()
            except OSError:
                continue
    for made in files_below(ground.made):
        if made.mode & 0o077:
            assert token.encode() not in made.content, made.path
    ground.finish(process)


@pytest.fixture
def usual(folder: Folder, usual_slurm: SlurmCluster) -> Iterator[Ground]:
    """With a cluster by Slurm's own times, whose nodes are all there before and after."""
    made = Ground(folder, usual_slurm)
    try:
        yield made
        until(lambda: not made.jobs())
    finally:
        folder.close()
        if left := made.jobs():
            usual_slurm.run("scancel", *left)
        for node in usual_slurm.nodes:
            if not usual_slurm.node_is_running(node):
                usual_slurm.start_node(node)


class Losses:
    """What a pool did after a loss, by the run's journal."""

    def __init__(self, ground: Ground, moment: float) -> None:
        events = read_journal(ground.made / "journal.sqlite").events
        steps = [(e.time - moment, json.loads(e.text)) for e in events if e.kind == "asked"]
        self.steps = [(after, step) for after, step in steps if after > 0]

    def after(self, step: str) -> list[float]:
        """Seconds from the loss to each such step."""
        return [after for after, one in self.steps if one["step"] == step]

    def reasons(self, step: str) -> list[str]:
        return [one["reason"] for _, one in self.steps if one["step"] == step]


@pytest.mark.ci
def test_pilots_that_are_cancelled(usual: Ground) -> None:
    """Their tasks run again; nothing is lost and nothing done twice in the results."""
    usual.campaign(48, command="sleep 0.5", runtime=0.5, more="[retry]\nattempts = 6")
    usual.sites(LOCAL, more='[site.c.pool]\nacquisition = "one-at-a-time"\nmost = 8')
    process = usual.start()
    usual.folder.until(lambda: len(usual.jobs("--states=R")) == 8, process)
    usual.cluster.run("scancel", *usual.jobs("--states=R")[:4])
    said = usual.finish(process)

    assert "48 of 48 succeeded" in said
    assert "cancelled" in said
    assert len(usual.results()) == 48


@pytest.mark.ci
def test_a_node_that_crashes_is_replaced_before_slurm_notices(usual: Ground) -> None:
    """
    Slurm believes in it for five minutes; the run does not.

    Twelve of 16 pilots run on it. Others are asked for, those go back, and each task has one
    result.
    """
    usual.campaign(16, command="sleep 6", runtime=6, more="[retry]\nattempts = 6")
    usual.sites(more='[site.c.pool]\nacquisition = "one-at-a-time"')
    process = usual.start()
    usual.folder.until(lambda: len(usual.jobs("--states=R")) == 16, process)
    time.sleep(1.5)  # so that tasks run
    on_first = usual.jobs("--states=R", "--nodelist=n1")
    assert len(on_first) == 12
    crashed = time.time()
    usual.cluster.stop_node("n1")
    said = usual.finish(process)

    assert usual.cluster.states()["n1"].rstrip("*") not in ("down", "idle")
    assert "16 of 16 succeeded" in said
    assert len(usual.results()) == 16
    losses = Losses(usual, crashed)
    assert len(losses.after("asked")) == 12
    assert losses.reasons("given back").count(SILENCE) == 12


@pytest.mark.long
def test_half_of_48_pilots_are_cancelled_in_a_calm_moment(usual: Ground) -> None:
    """Replacements are asked for long before the next look would have been due."""
    usual.campaign(96, command="sleep 60", runtime=60)
    usual.sites(more='[site.c.pool]\nacquisition = "one-at-a-time"\nmax_pending = 64')
    process = usual.start()
    usual.folder.until(lambda: len(usual.jobs("--states=R")) == 48, process)
    time.sleep(50.0)  # by then the queue is looked at every 10 s
    cancelled = time.time()
    usual.cluster.run("scancel", *usual.jobs("--states=R")[::2])
    until(lambda: len(Losses(usual, cancelled).after("asked")) >= 24)
    began = time.monotonic()
    usual.cluster.run("squeue")
    losses = Losses(usual, cancelled)
    asked, gone = losses.after("asked"), losses.after("lost")
    print(f"lost after {gone[0]:.2f} to {gone[-1]:.2f} s, asked after {asked[0]:.2f} to "
          f"{asked[23]:.2f} s; one squeue takes {time.monotonic() - began:.2f} s")  # fmt: skip
    assert asked[23] < LATEST
    process.send_signal(signal.SIGINT)
    usual.finish(process, status=130)


@pytest.mark.ci
def test_a_controller_that_is_away_for_a_while(ground: Ground) -> None:
    """Tasks go on meanwhile; that it is away is said once, and pilots end when it is back."""
    ground.campaign(96, command="sleep 0.8", runtime=0.8)
    ground.sites()
    process = ground.start()
    ground.folder.until(lambda: ground.jobs("--states=R"), process)
    time.sleep(1.0)  # so that tasks run
    ground.cluster.stop_controller()
    time.sleep(8.0)
    ground.cluster.start_controller()

    said = ground.finish(process)

    assert "96 of 96 succeeded" in said
    assert said.count("asked again until it answers") <= 1
    assert len(ground.results()) == 96


@pytest.mark.ci
def test_a_job_that_is_held_is_given_up(ground: Ground) -> None:
    """Somebody else has the cluster; the run's job waits and is held: others do its work."""
    wall = ground.cluster.run(
        "sbatch", "--parsable", "--ntasks=16", "--output=/dev/null", "--wrap=sleep 600"
    ).strip()
    try:
        ground.campaign(12, command="sleep 0.7", runtime=0.7)
        ground.sites(LOCAL)
        process = ground.start()
        ground.folder.until(lambda: ground.jobs("--states=PD"), process)
        for job in ground.jobs("--states=PD"):
            ground.cluster.run("scontrol", "hold", job)
        said = ground.finish(process)
    finally:
        ground.cluster.run("scancel", wall)

    assert "12 of 12 succeeded" in said
    assert re.search(r"c: lease-\d+ \(job \d+\) is held: JobHeld(User|Admin)", said)


def test_killed_and_resumed_each_result_is_there_once(ground: Ground) -> None:
    """What the killed life left is ended first, and is no longer in the queue."""
    ground.campaign(40, command="sleep 1.5", runtime=1.5)
    ground.sites()
    process = ground.start()
    ground.folder.until(lambda: ground.jobs("--states=R"), process)
    time.sleep(1.5)
    process.kill()
    process.communicate()
    before = ground.jobs()
    assert before

    said = ground.folder.bursar("run", "--resume", ground.made.name)

    assert "40 of 40 succeeded" in said.stdout
    assert len(ground.results()) == 40
    assert not set(before) & set(ground.jobs())


@pytest.mark.ci
def test_killed_and_not_resumed_its_pilots_end(ground: Ground) -> None:
    """They look for their run for a while (here 2 s instead of a minute), then go."""
    ground.campaign(16, command="sleep 600", runtime=600)
    ground.sites()
    program = (
        "import sys, bursar.sites.pilot_job as job; job.PATIENCE = 2.0; "
        "from bursar.cli.main import main; sys.argv[0] = 'bursar'; main()"
    )
    words = [sys.executable, "-c", program, "run", "c.toml", "--sites", "s.toml"]
    with subprocess.Popen(
        words, cwd=ground.folder.path, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            until(
                lambda: list(ground.folder.path.glob("runs/*/logs/*")) or ground.jobs("--states=R")
            )
            time.sleep(1.0)
            assert process.poll() is None
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert ground.jobs()
    until(lambda: not ground.jobs())


def test_an_interrupted_run_leaves_no_job(ground: Ground) -> None:
    ground.campaign(16, command="sleep 600", runtime=600)
    ground.sites()
    process = ground.start()
    ground.folder.until(lambda: ground.jobs("--states=R"), process)
    process.send_signal(signal.SIGINT)

    ground.finish(process, status=130)

    assert ground.jobs() == []


@pytest.mark.ci
def test_wide_tasks_have_a_node_to_themselves(ground: Ground) -> None:
    """Four processors each, on nodes of four: eight of them on four nodes."""
    ground.campaign(8, command="sleep 0.3", runtime=0.5, more="processors = 4")
    ground.sites(LOCAL)

    said = ground.run()

    assert "8 of 8 succeeded" in said
    assert {row["site"] for row in ground.results()} == {"c"}


@pytest.mark.ci
@pytest.mark.parametrize(
    "words",
    [
        ("--provisioning", "planned"),
        ("--strategy", "cost", "--deadline", "5min", "--budget", "5 SU"),
        ("--choice", "best"),
    ],
)
def test_a_plan_a_strategy_and_the_broker_use_pilots_too(
    ground: Ground, words: tuple[str, ...]
) -> None:
    """Each on time: nothing has to be planned again because workers take time to start."""
    ground.campaign(20, command="sleep 0.3", runtime=0.5)
    ground.sites()

    said = ground.run(*words)

    assert "20 of 20 succeeded" in said
    assert "has ended" not in said
    assert "planned again" not in said
    assert len(ground.results()) == 20


@pytest.mark.ci
def test_two_runs_leave_each_others_jobs_alone(ground: Ground) -> None:
    """The first ends while the second still needs its pilots."""
    ground.campaign(8, command="sleep 0.2")
    ground.sites(more='[site.c.pool]\nmost = 8\nacquisition = "one-at-a-time"')
    first = ground.start("--name", "first")
    ground.campaign(32, command="sleep 0.6", runtime=0.6)
    second = ground.start("--name", "second")

    assert "succeeded" in ground.finish(first)
    said = ground.finish(second)

    assert "32 of 32 succeeded" in said
    assert "cancelled" not in said
    assert len(ground.results(ground.folder.path / "runs" / "first")) in (8, 32)
    assert len(ground.results(ground.folder.path / "runs" / "second")) == 32


@pytest.mark.ci
def test_no_more_time_is_asked_for_than_the_partition_allows(ground: Ground) -> None:
    """The limit of the partition holds, whatever the pool's rules are."""
    ground.campaign(4)
    ground.sites(queue="short", more="[site.c.pool]\nshortest = 3600\nlongest = 7200")

    assert "4 of 4 succeeded" in ground.run()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        pytest.param('directives = ["--nonsense=1"]', "nonsense", marks=pytest.mark.ci),
        ('directives = ["--constraint=gpu9000"]', r"Invalid feature|not available"),
        pytest.param(
            'python = "/nowhere/python3"', r"it said \".*/nowhere/python3", marks=pytest.mark.ci
        ),
    ],
)
def test_what_a_site_refuses_is_said_and_done_elsewhere(
    ground: Ground, more: str, words: str
) -> None:
    """In Slurm's words, or those of the pilot; the campaign goes on at this machine."""
    ground.campaign(6, command="sleep 0.4")
    ground.sites(LOCAL, more=more)

    said = ground.run()

    assert "6 of 6 succeeded" in said
    assert re.search(words, said)
    assert {row["site"] for row in ground.results()} == {"local"}


# Nothing to run on.


def one_line(said: str) -> str:
    lines = [line for line in said.splitlines() if line.startswith(("bursar:", "hint:", "c: "))]
    assert lines, said
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("queue", "conf", "words"),
    [
        ("nowhere", "", "partition 'nowhere'"),
        ("main", "/nowhere/slurm.conf", "SLURM_CONF"),
    ],
)
@pytest.mark.parametrize("command", ["run", "plan", "sites"])
def test_a_site_that_cannot_be_asked_is_one_line(
    ground: Ground, command: str, queue: str, conf: str, words: str
) -> None:
    """Exit status 1 or more and no run half-made; ``sites`` shows the others."""
    ground.campaign(2)
    ground.sites(queue=queue, conf=conf)
    given = ("--sites", "s.toml") if command == "sites" else ("c.toml", "--sites", "s.toml")

    done = ground.folder.bursar(command, *given, status=None)

    assert words in done.stdout + done.stderr
    assert len(one_line(done.stdout + done.stderr).splitlines()) <= 2
    assert done.returncode == (0 if command == "sites" else done.returncode)
    assert done.returncode in (0, 1, 2, 4)
    if command != "sites":
        assert done.returncode != 0
        assert not (ground.folder.path / "runs").exists()


@pytest.mark.parametrize("command", ["run", "plan"])
def test_without_schedulers_commands_it_says_what_is_missing(ground: Ground, command: str) -> None:
    """PATH without them, as on a machine that is no login node."""
    ground.campaign(2)
    ground.sites()
    path = ground.folder.path / "bin"
    path.mkdir()

    done = ground.folder.bursar(
        command, "c.toml", "--sites", "s.toml", status=None, env={"PATH": str(path)}
    )

    assert done.returncode in (1, 2, 4)
    assert "not found on this machine" in done.stderr
    assert not (ground.folder.path / "runs").exists()


@pytest.mark.ci
@pytest.mark.parametrize(
    "acquisition",
    [
        "exponential",
        "additive",
        "adaptive",
    ],
)
def test_in_simulated_time_it_asks_for_the_same(ground: Ground, acquisition: str) -> None:
    """
    The same campaign over the same idle cluster, real and simulated: the same requests.

    A simulated cluster has no nodes. By our own policy what takes more than a node of the real
    one, which has 4 processors, is asked for node by node there.
    """
    ground.campaign(12, command="sleep 1.5", runtime=1.5)
    ground.sites(more=f'[site.c.pool]\nacquisition = "{acquisition}"')
    ground.run("--name", "real")
    ground.folder.bursar(
        *("simulate", "c.toml", "--sites", "s.toml", "--provisioning", "dynamic"),
        *("--name", "simulated"),
    )

    def asked(run: str) -> list[tuple[str, int, float]]:
        steps = [
            json.loads(event.text)
            for event in read_journal(ground.folder.path / "runs" / run / "journal.sqlite").events
            if event.kind == "asked"
        ]
        return [
            (step["site"], step["processors"], step["seconds"])
            for step in steps
            if step["step"] == "asked"
        ]

    expected = asked("simulated")
    if acquisition == "adaptive":
        expected = [
            (site, min(4, processors - done), seconds)
            for site, processors, seconds in expected
            for done in range(0, processors, 4)
        ]
    assert asked("real") == expected
    assert sum(processors for _, processors, _ in asked("real")) == 12
