"""Scripts for ``sbatch``, run by Slurm and by Bursar: both leave the same files."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

import bursar
from bursar_devtools.testgrid.slurm import SlurmCluster

VARIABLES = (
    "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN",
    "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_STEP", "SLURM_JOB_NAME", "SLURM_NTASKS",
    "SLURM_NPROCS", "SLURM_CPUS_PER_TASK", "SLURM_JOB_NUM_NODES", "SLURM_NNODES",
    "SLURM_SUBMIT_DIR", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_PROCID",
    "SLURM_NODEID", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_USER", "SLURM_JOB_UID",
    "SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE",
)  # fmt: skip
"""Variables that are the same wherever a job runs; some are absent unless an option is given."""

SHOW = "for v in " + " ".join(VARIABLES) + '; do eval "echo $v=\\${$v-none}"; done\n'

BASH = "#!/bin/bash\n"
SCRIPTS = {
    "plain": BASH + "echo out; echo err >&2; echo more\n",
    "variables": BASH + SHOW,
    "array": BASH + "#SBATCH --array=0-3\necho $SLURM_ARRAY_TASK_ID\n" + SHOW,
    "step": BASH + "#SBATCH --array=1-9:4\n" + SHOW,
    "list": BASH + "#SBATCH -a 2,5-6\n" + SHOW,
    "limit": BASH + "#SBATCH -a 1-4%2\n" + SHOW,
    "name": BASH + "#SBATCH -J other\n#SBATCH -o %x.txt\n" + SHOW,
    "quoted": BASH + '#SBATCH --job-name="two words" # not this\n#SBATCH -o o.txt\n' + SHOW,
    "pattern": BASH + "#SBATCH -a 3-12:3\n#SBATCH -o %x-%3a-%%.out\necho $SLURM_ARRAY_TASK_ID\n",
    "both": BASH + "#SBATCH -o a.out -e b.err\necho out; echo err >&2\n",
    "error": BASH + "#SBATCH -e only.err\necho out; echo err >&2\n",
    "append": BASH + "#SBATCH -o kept.out --open-mode=append\necho more\n",
    "truncate": BASH + "#SBATCH -o kept.out\necho more\n",
    "tasks": BASH + "#SBATCH -N 1 -n 2\n#SBATCH -o o.txt\n" + SHOW,
    "threads": BASH + "#SBATCH -c 3 -o o.txt\n" + SHOW,
    "tasks and threads": BASH + "#SBATCH -N 1 --ntasks=2 --cpus-per-task=2 -o o.txt\n" + SHOW,
    "per node": BASH + "#SBATCH -N 1 --ntasks-per-node=2 -o o.txt\n" + SHOW,
    "memory": BASH + "#SBATCH --mem=300M -o o.txt\n" + SHOW,
    "memory per cpu": BASH + "#SBATCH --mem-per-cpu=100 -c 2 -o o.txt\n" + SHOW,
    "folder": BASH + "#SBATCH -D sub\n#SBATCH -o o.txt\npwd; ls\n",
    "input": BASH + "#SBATCH -i data.txt -o o.txt\ncat\n",
    "no input": BASH + "#SBATCH -o o.txt\ncat; echo end\n",
    "export": BASH + "#SBATCH --export=ALL,GREETING=hello -o o.txt\necho $GREETING\n",
    "export some": BASH + "#SBATCH --export=ONE=1,TWO=2 -o o.txt\necho $ONE $TWO $LEAKED\n",
    "files": BASH + "#SBATCH -o o.txt\nmkdir -p made; cp data.txt made/copy; ls -R made\n",
    "python": "#!/usr/bin/env python3\n#SBATCH -o o.txt\nimport sys; print(6 * 7, sys.argv[1:])\n",
    "sh": "#!/bin/sh -e\n#SBATCH -o o.txt\necho one\nfalse\necho never\n",
    "status": BASH + "#SBATCH -o o.txt\necho before; exit 3\n",
    "late": BASH + "#SBATCH -o o.txt\n\necho here\n#SBATCH -o never.txt\n",
    "comments": BASH + "# words\n##SBATCH -o never.txt\n#SBATCH -o o.txt -t 1-0\necho here\n",
    "steps": BASH
    + "#SBATCH -N 1 -n 2 -o o.txt\n"
    + "srun -l sh -c 'echo $SLURM_PROCID; echo e >&2' 2> e.txt | sort\n"
    + "sort e.txt\nsrun -n 1 pwd; rm e.txt\n",
    "step fails": BASH + "#SBATCH -N 1 -n 2 -o o.txt\nsrun sh -c 'exit $SLURM_PROCID'\necho $?\n",
}


def _filled(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "sub").mkdir()
    (folder / "sub" / "there").touch()
    (folder / "data.txt").write_text("some data\n")
    (folder / "kept.out").write_text("from before\n")
    script = folder / "job.sh"
    script.write_text(text)
    return script


def _left(folder: Path) -> dict[str, str]:
    """Return what is in the files of a folder, with numbers of jobs and folders made alike."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "runs" not in path.relative_to(folder).parts:
            name = re.sub(r"^slurm-\d+", "slurm-JOB", str(path.relative_to(folder)))
            text = path.read_text().replace(str(folder), "FOLDER")
            # What Slurm says while a step before gives its processors back.
            text = re.sub(r"(?m)^srun: (?:Job \d+ step|Step created).*\n", "", text)
            found[name] = re.sub(r"^srun: error: \S+:", "srun: error: NODE:", text)
    return found


@pytest.fixture(scope="module")
def by_slurm(
    slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, str]]:
    """What each script leaves behind when Slurm runs it."""
    root = tmp_path_factory.mktemp("sbatch")
    environment = {**os.environ, **slurm.environment, "LEAKED": "leaked"}
    folders = {}
    for number, (name, text) in enumerate(SCRIPTS.items()):
        script = _filled(root / str(number), text)
        folders[name] = script.parent
        subprocess.run(
            ["sbatch", script.name], cwd=script.parent, env=environment, check=True,
            capture_output=True,
        )  # fmt: skip
    give_up = time.monotonic() + 90
    while slurm.run("squeue", "--noheader"):
        assert time.monotonic() < give_up, slurm.run("squeue")
        time.sleep(0.3)
    return {name: _left(folder) for name, folder in folders.items()}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.ci if at % 4 else []) for at, name in enumerate(SCRIPTS)],
)
def test_a_script_leaves_what_slurm_leaves(
    by_slurm: dict[str, dict[str, str]],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEAKED", "leaked")
    script = _filled(tmp_path / "here", SCRIPTS[name])
    sites = tmp_path / "sites.toml"
    sites.write_text('[site.here]\nkind = "local"\nprocessors = 4\nunit_price = 1\n')

    done = bursar.run(script, sites, runs=script.parent / "runs")

    assert _left(script.parent) == by_slurm[name]
    assert (done.exit_status == 0) == (name not in ("sh", "status"))
