"""Scripts of pilots, run by a shell with a Python and an srun of straw."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bursar.model.provisioning import BatchScheduler
from bursar.sites.pilot_job import complaints_of, pilot_script

PYTHON = """\
#!/bin/sh
printf '%s|' "$@" "$BURSAR_PROCESSORS" "${SLURM_NODEID:-}"
echo
"""
"""Prints its arguments, how many processors it was told of, and the node that it is on."""

SRUN = """\
#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
i=0
while [ "$i" -lt "$SLURM_JOB_NUM_NODES" ]; do
  SLURM_NODEID=$i "$@" || exit
  i=$((i + 1))
done
"""
"""Runs its command once for each node, one after the other."""

SHELLS = [name for name in ("sh", "dash", "bash") if shutil.which(name)]


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def ran(
    shell: str,
    batch: BatchScheduler,
    credentials: list[str],
    folder: Path,
    *,
    status: int = 0,
    **env: str,
) -> list[list[str]]:
    """What the pilots that a script started were given."""
    program(folder / "bin" / "srun", SRUN)
    done = subprocess.run(
        [shell, "-eu"],
        input=pilot_script(batch, credentials),
        env={"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **env},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == status, done
    return [line.split("|")[:-1] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", SHELLS)
def test_odd_paths_come_through_as_they_are(shell: str, tmp_path: Path) -> None:
    """Blanks, quotes, dollars and semicolons, in the interpreter's path and the credential's."""
    odd = tmp_path / 'it\'s $HOME; "x" `y` *'
    python = program(odd / "py thon", PYTHON)
    credential = str(odd / "lease 1.json")
    batch = BatchScheduler(manager="slurm", python=str(python))

    (given,) = ran(shell, batch, [credential], tmp_path, SLURM_CPUS_ON_NODE="12")

    assert given == ["-P", "-m", "bursar.provisioning.pilot", credential, "12", ""]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("said", "processors"),
    [
        ("12(x2),5", ["12", "12", "5"]),
        ("4", ["4"]),
        ("4(x3)", ["4", "4", "4"]),
        ("1,2(x2),30", ["1", "2", "2", "30"]),
    ],
)
def test_each_node_has_the_processors_of_the_job_there(
    shell: str, said: str, processors: list[str], tmp_path: Path
) -> None:
    """As Slurm writes them: "12(x2),5" is twelve on each of two nodes, and five on one."""
    python = program(tmp_path / "python", PYTHON)
    nodes = len(processors)
    given = ran(
        shell,
        BatchScheduler(manager="slurm", python=str(python)),
        [str(tmp_path / "c.json")],
        tmp_path,
        SLURM_JOB_NUM_NODES=f"{nodes}",
        SLURM_JOB_CPUS_PER_NODE=said,
        SLURM_CPUS_ON_NODE=processors[0],
    )

    assert [one[-2] for one in given] == processors
    assert {one[3] for one in given} == {str(tmp_path / "c.json")}


@pytest.mark.parametrize("shell", SHELLS)
def test_each_element_has_its_own_credential(shell: str, tmp_path: Path) -> None:
    """An element that there is not, or none at all, starts nothing."""
    python = program(tmp_path / "python", PYTHON)
    batch = BatchScheduler(manager="gridengine", python=str(python))
    files = [f"{tmp_path}/lease-{i}.json" for i in range(3)]

    for i, path in enumerate(files):
        (given,) = ran(shell, batch, files, tmp_path, BURSAR_ELEMENT=f"{i}", NSLOTS="2")
        assert given[3:5] == [path, "2"]
    for other in ("3", ""):
        assert ran(shell, batch, files, tmp_path, status=64, BURSAR_ELEMENT=other) == []


def test_what_a_pilot_complains_of_is_kept(tmp_path: Path) -> None:
    """An interpreter that is not there: the shell says so, beside the credential."""
    credential = str(tmp_path / "c.json")
    batch = BatchScheduler(manager="slurm", python="/nowhere/python3")

    ran("sh", batch, [credential], tmp_path, status=127, SLURM_CPUS_ON_NODE="1")

    assert "/nowhere/python3" in Path(complaints_of(credential)).read_text()


def test_the_sites_own_lines_are_left_to_the_job_script() -> None:
    """Adapters put them first; twice they would load things twice."""
    batch = BatchScheduler(manager="slurm", setup=("module load bursar",))

    assert "module load" not in pilot_script(batch, ["/c.json"])
