"""Throwaway clusters under real Slurm: what they give, and that nothing of them is left."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.testgrid.clusters import end_orphans, need_slurm

from bursar.model.errors import InputError, SiteError
from bursar_devtools.testgrid import ports, slurm_requirements
from bursar_devtools.testgrid.slurm import MARK, SlurmCluster

PATIENCE = 60.0
"""Seconds after which a test gives up on a condition."""

NUMBERS = itertools.count()


def until(what: Callable[[], bool]) -> None:
    """Waits for something to become true."""
    give_up = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def said_of(cluster: SlurmCluster, job: str) -> dict[str, str]:
    """Slurm's record of a job."""
    words = cluster.run("scontrol", "--oneliner", "show", "job", job).split()
    return dict(word.partition("=")[::2] for word in words)


def submit(cluster: SlurmCluster, command: str, *options: str) -> str:
    """Number of a job whose output is not kept."""
    return cluster.run(
        "sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={command}"
    ).strip()


def runs(cluster: SlurmCluster, job: str) -> Callable[[], bool]:
    """Whether a job runs, with all its steps begun."""
    return lambda: said_of(cluster, job)["JobState"] == "RUNNING"


def naming(folder: Path) -> list[str]:
    """Command lines and working folders of all processes that have to do with a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
            words.append(os.readlink(process / "cwd"))
            words += (process / "environ").read_bytes().decode().split("\0")
        except OSError:
            continue
        found += [" ".join(words)] if any(str(folder) in word for word in words) else []
    return found


def commands() -> list[str]:
    """Command lines of all processes, also of such as say nothing else of themselves."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(process.read_bytes().decode().replace("\0", " ").strip())
    return found


def a_while() -> str:
    """A command that takes long, and is like no other."""
    return f"sleep {1000 + next(NUMBERS)}.{os.getpid()}"


def assert_nothing_left(cluster: SlurmCluster) -> None:
    """No process, no file, no port."""
    assert cluster.processes() == {}
    assert naming(cluster.folder) == []
    assert not cluster.folder.exists()
    first = cluster.settings.port
    assert all(map(ports.is_free, range(first, first + cluster.settings.nodes + 1)))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SlurmCluster]:
    """One of two nodes, for tests that break it."""
    need_slurm()
    made = SlurmCluster.up(tmp_path / "c", nodes=2, cpus=2)
    yield made
    if made.folder.exists():
        made.down(grace=0.0)


def test_a_cluster_runs_what_is_submitted(slurm: SlurmCluster) -> None:
    """
    On all its nodes.
    """
    printed = slurm.run("srun", "--nodes=4", "sh", "-c", "echo $SLURMD_NODENAME")
    assert sorted(printed.split()) == ["n1", "n2", "n3", "n4"]


def test_a_walltime_over_the_partitions_limit_never_starts(slurm: SlurmCluster) -> None:
    """
    The partition ``short`` has a limit, the default one has none.
    """
    job = submit(slurm, "true", "--partition=short", "--time=30")
    until(lambda: said_of(slurm, job)["Reason"] == "PartitionTimeLimit")
    assert said_of(slurm, job)["JobState"] == "PENDING"
    slurm.run("scancel", job)


def test_ended_jobs_are_recorded(slurm: SlurmCluster) -> None:
    """
    ``sacct`` reads completion records, without a database.
    """
    job = submit(slurm, "exit 3")
    asked = ("sacct", "--completion", "-nP", f"--jobs={job}", "--format=JobIDRaw,State,NCPUS")
    until(lambda: slurm.run(*asked) != "")
    assert slurm.run(*asked) == f"{job}|FAILED|1\n"


@pytest.mark.ci
def test_latency_delays_starts_and_holds_nothing(tmp_path: Path) -> None:
    """
    A job waits as pending, by Slurm's own times, and start estimates know of it.
    """
    need_slurm()
    cluster = SlurmCluster.up(tmp_path / "c", nodes=1, cpus=1, latency=3)
    try:
        job = submit(cluster, "true")
        assert said_of(cluster, job)["JobState"] == "PENDING"
        assert cluster.states() == {"n1": "idle"}
        until(lambda: said_of(cluster, job)["JobState"] == "COMPLETED")
        record = said_of(cluster, job)
        submitted, began = (
            time.mktime(time.strptime(record[key], "%Y-%m-%dT%H:%M:%S"))
            for key in ("SubmitTime", "StartTime")
        )
        assert began - submitted >= 3
    finally:
        cluster.down()


def test_down_leaves_nothing(cluster: SlurmCluster) -> None:
    """
    Jobs that ignore signals, or that hide from their environment, end too.
    """
    stubborn, hidden = a_while(), a_while()
    submit(cluster, f"trap '' TERM; {stubborn}", "--export=NONE")
    deaf = f"env -i setsid --wait env --ignore-signal=TERM {hidden}"
    submit(cluster, f"srun --export=ALL {deaf}", "--nodes=2")
    until(lambda: stubborn in commands())
    until(lambda: commands().count(hidden) == 2)
    assert cluster.is_up
    assert "job" in cluster.processes().values()

    SlurmCluster.at(cluster.folder).down(grace=0.1)

    assert_nothing_left(cluster)
    assert not {stubborn, hidden} & set(commands())


def test_only_what_is_the_clusters_ends(cluster: SlurmCluster) -> None:
    """
    A shell in which its commands are used goes on, and so does one that stands in its folder.
    """
    shells = [
        subprocess.Popen(["sleep", "60"], env={**os.environ, **cluster.environment}),
        subprocess.Popen(["sleep", "60"], cwd=cluster.folder),
    ]
    try:
        cluster.down()
        assert [shell.poll() for shell in shells] == [None, None]
    finally:
        for shell in shells:
            shell.kill()
            shell.wait()


@pytest.mark.ci
def test_a_stopped_controller_comes_back_with_its_jobs(cluster: SlurmCluster) -> None:
    """
    Jobs go on meanwhile; commands fail in Slurm's own words.
    """
    job = submit(cluster, "sleep 1000")
    until(runs(cluster, job))
    cluster.stop_controller()
    assert not cluster.is_up
    with pytest.raises(SiteError, match="Unable to contact slurm controller"):
        cluster.run("scontrol", "show", "nodes")
    with pytest.raises(InputError, match="does not run"):
        cluster.stop_controller()

    cluster.start_controller()

    assert said_of(cluster, job)["JobState"] == "RUNNING"
    assert "job" in cluster.processes().values()


def test_a_node_crashes_with_its_jobs_only(cluster: SlurmCluster) -> None:
    """
    Slurm sees the node fail; the other node's job goes on; the node can come back.
    """
    hidden = a_while()
    here = submit(cluster, f"exec env -i {hidden}", "--nodelist=n1", "--no-requeue")
    there = submit(cluster, "sleep 1000", "--nodelist=n2")
    until(lambda: hidden in commands())
    until(runs(cluster, there))

    cluster.stop_node("n1", at_once=True)

    until(lambda: said_of(cluster, here)["JobState"] == "NODE_FAIL")
    assert said_of(cluster, there)["JobState"] == "RUNNING"
    assert hidden not in commands()
    assert not cluster.node_is_running("n1")
    with pytest.raises(InputError, match="does not run"):
        cluster.stop_node("n1")
    cluster.start_node("n1")
    assert cluster.states()["n1"] == "idle"
    with pytest.raises(InputError, match="no node 'n3', but n1 to n2"):
        cluster.stop_node("n3")


@pytest.mark.ci
def test_nothing_of_a_stopped_node_starts_anything_more(cluster: SlurmCluster) -> None:
    """
    Processes that keep starting their successors end, too: one look would miss some of them.
    """
    relay = "relay() { sleep 0.01; relay & }; for n in 1 2; do relay & done; sleep 1000"
    job = submit(cluster, relay, "-w", "n1")
    until(runs(cluster, job))

    cluster.stop_node("n1", at_once=True)

    time.sleep(0.1)
    found = cluster.processes()
    assert [pid for pid, what in found.items() if what == "job"] == []
    cluster.start_node("n1")


@pytest.mark.ci
def test_down_after_daemons_were_killed(cluster: SlurmCluster) -> None:
    """
    Without key daemon and controller nobody answers; all goes nevertheless.
    """
    until(runs(cluster, submit(cluster, "sleep 1000")))
    for pid, name in cluster.processes().items():
        if name in ("munged", "slurmctld", "slurmstepd"):
            os.kill(pid, signal.SIGKILL)

    cluster.down()

    assert_nothing_left(cluster)


@pytest.mark.parametrize("sign", [MARK, "run/munge.sock", "run/slurmctld.pid"])
def test_down_after_a_start_was_killed(tmp_path: Path, sign: str) -> None:
    """
    From the first file on, the folder alone tells what there is to end.
    """
    need_slurm()
    folder = tmp_path / "c"
    code = (
        "from bursar_devtools.testgrid.slurm import SlurmCluster;"
        f" SlurmCluster.up({str(folder)!r}, nodes=3)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as starting:
        until(lambda: (folder / sign).exists())
        starting.kill()

    cluster = SlurmCluster.at(folder)
    cluster.down()

    assert_nothing_left(cluster)


def test_a_taken_folder_is_left_alone(cluster: SlurmCluster, tmp_path: Path) -> None:
    """
    By a cluster that runs, and by files of somebody's.
    """
    with pytest.raises(InputError, match="runs here already"):
        SlurmCluster.up(cluster.folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all of it")
    with pytest.raises(InputError, match=r"thesis\.tex is in it"):
        SlurmCluster.up(tmp_path / "mine")
    with pytest.raises(InputError, match="no test cluster"):
        SlurmCluster.at(tmp_path / "mine").down()
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "all of it"
    assert cluster.is_up


def test_a_dead_clusters_folder_is_used_again(cluster: SlurmCluster) -> None:
    """
    What a reboot left behind is in nobody's way.
    """
    for pid in cluster.processes():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not cluster.processes())

    again = SlurmCluster.up(cluster.folder, nodes=1, cpus=1)

    assert again.states() == {"n1": "idle"}


def test_clusters_of_test_sessions_that_were_killed_end(
    cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """
    Those of sessions that live go on.
    """
    sessions = tmp_path_factory.mktemp("s")  # sockets want short paths
    session = sessions / "pytest-7"
    other = SlurmCluster.up(session / "test0" / "c", nodes=1, cpus=1)
    (session / ".lock").write_text(str(os.getpid()))
    end_orphans(sessions)
    assert other.is_up
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    (session / ".lock").write_text(str(dead.pid))
    end_orphans(sessions)
    assert_nothing_left(other)
    assert cluster.is_up


def test_a_number_that_is_anothers_by_now_is_not_taken_for_the_daemon(
    cluster: SlurmCluster,
) -> None:
    """
    Process numbers come again.
    """
    cluster.stop_controller()
    (cluster.folder / "run" / "slurmctld.pid").write_text(f"{os.getpid()}\n")
    assert not cluster.is_up


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    """
    In Slurm's words.
    """
    need_slurm()
    with pytest.raises(SiteError, match=r"slurmctld of cluster test .*NoSuchThing"):
        SlurmCluster.up(tmp_path / "c", extra=["NoSuchThing=1"])
    assert not (tmp_path / "c").exists()
    assert naming(tmp_path / "c") == []


@pytest.mark.ci
@pytest.mark.parametrize("which", [0, 1])
def test_a_port_that_is_taken_meanwhile_is_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """
    The controller's or a node's: others are chosen.
    """
    need_slurm()
    choose = ports.free_block
    first = choose(3)
    answers = iter([first])
    monkeypatch.setattr(ports, "free_block", lambda count: next(answers, None) or choose(count))
    with socket.socket() as somebody:
        somebody.bind(("", first + which))
        somebody.listen()
        cluster = SlurmCluster.up(tmp_path / "c", nodes=1, cpus=1)
        cluster.down()
    assert cluster.settings.port != first
    assert not cluster.folder.exists()


def test_what_cannot_be_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """
    Names, sizes and paths.
    """
    with pytest.raises(InputError, match="nodes must be 1 to 500, got 0"):
        SlurmCluster.up(tmp_path / "c", nodes=0)
    with pytest.raises(InputError, match="a cluster's name is"):
        SlurmCluster.up(tmp_path / "c", name="My cluster")
    with pytest.raises(InputError, match="path is too long"):
        SlurmCluster.up(tmp_path / ("x" * 120))
    with pytest.raises(InputError, match="takes no path with ' '"):
        SlurmCluster.up(tmp_path / "my folder")
    assert list(tmp_path.iterdir()) == []


def test_without_slurm_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Rather than which file was not found.
    """
    monkeypatch.setattr(slurm_requirements, "PROGRAMS", ("slurmctld", "no-such-slurm"))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SiteError, match=r"no-such-slurm: not found; .* slurmd slurm-client munge"):
        SlurmCluster.up(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []
