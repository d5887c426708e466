"""Clusters under real Slurm for tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bursar_devtools.testgrid.processes import is_running
from bursar_devtools.testgrid.slurm import MARK, SlurmCluster
from bursar_devtools.testgrid.slurm_requirements import PACKAGES, missing_programs


def need_slurm() -> None:
    """Skips a test where there is no Slurm, and says what would bring it."""
    if absent := missing_programs():
        pytest.skip(f"no Slurm here ({', '.join(absent)}): install the packages {PACKAGES}")


def end_orphans(root: Path) -> None:
    """
    Ends clusters of test sessions that were killed.

    Each session keeps its number in a file of its folder while it lives.
    """
    for lock in root.glob("pytest-*/.lock"):
        try:
            alive = is_running(int(lock.read_text()))
        except (OSError, ValueError):
            continue
        # Listed before any goes, and once each: pytest links to its latest folders.
        marks = {mark.resolve() for mark in lock.parent.glob(f"*/**/{MARK}")}
        for mark in () if alive else marks:
            SlurmCluster.at(mark.parent).down(grace=0.0)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """
    A small cluster of the session: 4 nodes with 4 processors each.

    Leave it as it was: nodes and controller up, no job, no reservation.
    """
    need_slurm()
    end_orphans(tmp_path_factory.getbasetemp().parent)
    cluster = SlurmCluster.up(tmp_path_factory.mktemp("slurm") / "c", name="test", nodes=4, cpus=4)
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(scope="session")
def usual_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """
    Start a cluster for the session with Slurm's own times: a dead node is noticed after 300 s.

    It has 4 nodes with 12 processors each. Leave it as it was, as the other one.
    """
    need_slurm()
    end_orphans(tmp_path_factory.getbasetemp().parent)
    folder = tmp_path_factory.mktemp("usual") / "c"
    cluster = SlurmCluster.up(folder, name="usual", nodes=4, cpus=12, default_times=True)
    try:
        yield cluster
    finally:
        cluster.down()
