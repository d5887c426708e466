"""``bursar testgrid`` as its user meets it."""

from pathlib import Path
from typing import Any

from tests.cli.test_json import documented, keys_of
from tests.testgrid.clusters import need_slurm


def test_a_test_grid_from_up_to_down(folder: Any) -> None:
    """
    Every command, for people and for scripts; nothing is left in the end.
    """
    need_slurm()
    there = ("--folder", "grid")
    up = folder.json("testgrid", "up", "--clusters", "1", "--nodes", "2", "--cpus", "3", *there)
    try:
        assert up["whole"]
        assert Path(up["sites"]) == folder.path / "grid" / "testgrid.toml"
        assert up["clusters"][0]["processors"] == 6
        (conf,) = up["clusters"][0]["environment"].values()

        told = folder.bursar("testgrid", "env", "slurm1", *there).stdout
        assert told == f"export SLURM_CONF={conf}\n"
        assert "runs here already" in folder.bursar("testgrid", "up", *there, status=2).stderr

        folder.bursar("testgrid", "stop-node", "slurm1", "n2", *there)
        assert "n2 has stopped" in folder.bursar("testgrid", "status", *there, status=1).stdout
        folder.bursar("testgrid", "start-node", "slurm1", "n2", *there)
        assert keys_of(up) - set(up["clusters"][0]["environment"]) <= documented("json.md")
        stopped = folder.json("testgrid", "stop-controller", "slurm1", *there)
        assert not stopped["whole"]
        assert stopped["clusters"][0]["jobs_running"] is None
        folder.bursar("testgrid", "start-controller", "slurm1", *there)
        assert folder.json("testgrid", "status", *there)["whole"]
        wrong = folder.bursar("testgrid", "stop-node", "slurm1", "n9", *there, status=2).stderr
        assert wrong == "bursar: cluster slurm1 has no node 'n9', but n1 to n2\n"
    finally:
        down = folder.json("testgrid", "down", *there)
    assert down == {"folder": str(folder.path / "grid"), "ended": ["slurm1"]}
    assert list(folder.path.iterdir()) == []
    assert folder.json("testgrid", "down", *there)["ended"] == []


def test_bad_input_is_one_line(folder: Any) -> None:
    """
    What is wrong, and where.
    """
    said = folder.bursar("testgrid", "up", "--latency", "0.5s", "--folder", "g", status=2).stderr
    assert said == "bursar: --latency: Slurm counts in whole seconds, got '0.5s'\n"
    said = folder.bursar("testgrid", "status", "--folder", "g", status=2).stderr
    assert "no test grid is there" in said
    said = folder.bursar(
        "testgrid", "up", "--folder", "g", status=1, env={"PATH": "/nonexistent"}
    ).stderr
    assert "not found; Debian and Ubuntu have Slurm in the packages" in said
    assert said.count("\n") == 1
    assert list(folder.path.iterdir()) == []
