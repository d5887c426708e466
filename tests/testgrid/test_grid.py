"""Several clusters side by side."""

import os
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.testgrid.clusters import need_slurm

from bursar.model.errors import InputError, SiteError
from bursar_devtools.testgrid import local_grid as grids
from bursar_devtools.testgrid import processes
from bursar_devtools.testgrid.local_grid import LocalTestGrid


def test_clusters_do_not_see_each_others_jobs(tmp_path: Path) -> None:
    """
    Nor their nodes' crashes; the sites file has both, and all of it goes together.
    """
    need_slurm()
    grid = LocalTestGrid.up(tmp_path / "g", clusters=2, nodes=2, cpus=3)
    first, second = grid.clusters
    try:
        first.run("sbatch", "--output=/dev/null", "--wrap=sleep 1000")
        second.stop_node("n2", at_once=True)

        status = {one.cluster.name: one for one in grid.status()}
        assert status["slurm1"].running + status["slurm1"].pending == 1  # type: ignore[operator]
        assert (status["slurm2"].running, status["slurm2"].pending) == (0, 0)
        assert status["slurm1"].is_whole
        assert not status["slurm2"].is_whole
        assert [node.running for node in status["slurm2"].nodes] == [True, False]

        sites = tomllib.loads(grid.sites_file.read_text())["site"]
        assert list(sites) == ["local", "slurm1", "slurm2"]
        assert sites["slurm2"]["environment"] == second.environment
        assert sites["slurm2"]["processors"] == 6

        with pytest.raises(InputError, match="runs here already"):
            LocalTestGrid.up(grid.folder)
        with pytest.raises(InputError, match="no cluster 'slurm3', but slurm1, slurm2"):
            grid.cluster("slurm3")
    finally:
        LocalTestGrid.at(grid.folder).down()
    assert not grid.folder.exists()
    assert not first.processes()
    assert not second.processes()


def test_a_grid_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The clusters that did start end with it.
    """
    need_slurm()

    def no_file(clusters: object) -> str:
        raise SiteError("the disk is full")

    monkeypatch.setattr(grids, "_sites", no_file)
    with pytest.raises(SiteError, match="the disk is full"):
        LocalTestGrid.up(tmp_path / "g", clusters=1, nodes=1)
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_was_killed_in_its_first_moment_is_cleared(tmp_path: Path) -> None:
    """
    When its mark was half written; and where nothing is, nothing is to be done.
    """
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "testgrid.json.new").write_text('{"clus')
    assert LocalTestGrid.clear(tmp_path / "g") == []
    assert LocalTestGrid.clear(tmp_path / "g") == []
    assert list(tmp_path.iterdir()) == []


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    """
    A folder without the grid's mark is not taken down.
    """
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="no test grid is there"):
        LocalTestGrid.clear(tmp_path)
    with pytest.raises(InputError, match="clusters must be 1 to 20, got 0"):
        LocalTestGrid.up(tmp_path, clusters=0)
    assert (tmp_path / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_left_alone(tmp_path: Path) -> None:
    """
    Slurm's commands run what its configuration names, and that is another's to write.
    """
    need_slurm()
    folder = tmp_path / "g"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(InputError, match="is another user's"):
        LocalTestGrid.up(folder, clusters=1, nodes=1)
    (folder / grids.MARK).write_text("{}")
    for use in (LocalTestGrid.at, LocalTestGrid.clear):
        with pytest.raises(InputError, match="is another user's"):
            use(folder)
    assert [path.name for path in folder.iterdir()] == [grids.MARK]


def test_a_link_in_the_place_of_the_usual_folder_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its name is foreseen easily; what the link leads to may be ours, and is left alone.
    """
    ours = tmp_path / "ours"
    ours.mkdir()
    link = tmp_path / "usual"
    link.symlink_to(ours)
    monkeypatch.setattr(grids, "default_folder", lambda: link)
    for use in (LocalTestGrid.at, LocalTestGrid.clear):
        with pytest.raises(InputError):
            use()
    with pytest.raises(InputError):
        LocalTestGrid.up(clusters=1, nodes=1)
    assert list(ours.iterdir()) == []


def test_a_process_that_no_look_finds_goes_with_its_group() -> None:
    """A job's process may begin while others are looked at, and start the next before its turn."""
    words = ["sh", "-c", "sleep 300 & echo $!; wait"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        hidden = int(leader.stdout.readline())

        processes.kill_until_none(lambda: {leader.pid} if leader.poll() is None else set())

        assert processes.wait_until(lambda: not processes.is_running(hidden), 30.0)
