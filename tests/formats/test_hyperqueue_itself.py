"""Job files run by HyperQueue itself and by Bursar: both leave the same files and exit codes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import bursar
from bursar.model.task import Status

pytest.importorskip("hyperqueue")

SHOW = (
    "env | grep -E '^(HQ_(JOB_ID|TASK_ID|INSTANCE_ID|SUBMIT_DIR|ENTRY|RESOURCE_REQUEST_.*)|MINE"
    "|OMP_.*|FOO)=' | sort"
)
"""Prints the variables that do not tell of a worker's processors or of HyperQueue itself."""


def shell(line: str) -> str:
    """Return the key ``command`` for a line of shell."""
    return f"command = {json.dumps(['bash', '-c', line])}\n"


JOBS: Mapping[str, str] = {
    "variables": "[[task]]\nid = 0\n"
    + shell(SHOW)
    + 'env = { FOO = "a b", "HQ_TASK_ID" = "mine" }\n'
    + "[[task]]\nid = 1\n"
    + shell(SHOW)
    + "[[task.request]]\nresources = { cpus = 1 }\n"
    + '[[task]]\nid = 2\nenv = {OMP_NUM_THREADS = "7"}\n'
    + shell(SHOW)
    + '[[task.request]]\nresources = { cpus = "2 scatter" }\n'
    + "[[task]]\nid = 4\n"
    + shell(SHOW)
    + "[[task.request]]\nresources = { cpus = 2 }\n",
    "streams": 'name = "named"\n[[task]]\nid = 3\n'
    'stdout = "out/%{TASK_ID}-%{INSTANCE_ID}-job-%{JOB_ID}"\n'
    'stderr = "%{SUBMIT_DIR}/err-%{TASK_ID}"\n'
    + shell("echo out; echo err >&2")
    + '[[task]]\nid = 4\nstdout = "none"\nstderr = "%{CWD}/$x `y` \\"z\\""\n'
    + shell("echo out; echo err >&2"),
    "files that go": "".join(
        f'[[task]]\nid = {n}\nstdout = {{ path = "o{n}", mode = "rm-if-finished" }}\n'
        f'stderr = {{ path = "e{n}", mode = "rm-if-finished" }}\n'
        + shell(f"echo out; echo err >&2; exit {n}")
        for n in (0, 2)
    )
    + '[[task]]\nid = 3\nstdout = { path = "stays", mode = "none" }\n'
    + shell("echo out"),
    "input": '[[task]]\nid = 0\nstdin = "a $x\\nb"\n'
    + shell("cat; wc -c")
    + "[[task]]\nid = 1\n"
    + shell("cat; echo end")
    + '[[task]]\nid = 2\nstdin = ""\n'
    + shell("cat; echo end"),
    "folders": "".join(
        f'[[task]]\nid = {n}\ncwd = "{folder}"\n' + shell("pwd; ls; ls ..; echo made > made")
        for n, folder in enumerate(("new/deep", "%{SUBMIT_DIR}/task-%{TASK_ID}", "there"))
    ),
    "array": '[array]\nids = "10-12"\nentries = ["a b", "$x", "c"]\n' + shell(f"{SHOW}; exit 0"),
    "chain": "[[task]]\nid = 1\n"
    + shell("sleep 0.3; echo 1 >> log")
    + "[[task]]\nid = 2\ndeps = [1]\n"
    + shell("sleep 0.2; echo 2 >> log")
    + "[[task]]\nid = 3\ndeps = [1, 2]\n"
    + shell("echo 3 >> log"),
    "failures": "[[task]]\nid = 1\n"
    + shell("echo before; exit 3")
    + "[[task]]\nid = 2\ndeps = [1]\n"
    + shell("echo never")
    + "[[task]]\nid = 3\ndeps = [2]\n"
    + shell("echo never")
    + "[[task]]\nid = 4\n"
    + shell("sleep 0.3; echo on; exit 200")
    + "[[task]]\nid = 5\n"
    + shell("kill -9 $$")
    + '[[task]]\nid = 6\nstderr = "none"\ncommand = ["no-such-program"]\n'
    + '[[task]]\nid = 7\nstderr = "none"\ncommand = ["./job.toml"]\n',
    "own folder": "[[task]]\nid = 1\ntask_dir = true\n"
    + shell("cd $HQ_TASK_DIR && touch x && ls; echo no > $HQ_ERROR_FILENAME; pwd | wc -l; exit 1")
    + "[[task]]\nid = 2\n"
    + shell('echo "${HQ_TASK_DIR-none} ${HQ_ERROR_FILENAME-none}"'),
    "one at a time": "".join(
        f"[[task]]\nid = {n}\n"
        + shell("mkdir lock || echo twice; sleep 0.2; rmdir lock")
        + "[[task.request]]\nresources = { cpus = 2 }\n"
        for n in range(3)
    ),
    "time and order": "[[task]]\nid = 1\npriority = 7\ncrash_limit = 3\n"
    + shell(SHOW)
    + "[[task.request]]\ntime_request = 3600\n"
    + "[[task]]\nid = 2\n"
    + shell(SHOW)
    + "[[task.request]]\nresources = { cpus = 2 }\ntime_request = 60\n",
    "words": '[[task]]\nid = 1\ncommand = ["./print", "%{TASK_ID}", "a b", "", "$HOME", "*"]\n',
}
"""Job files by name. The job's id, folders and what a shell says of its own name are masked."""


def filled(folder: Path, text: str) -> Path:
    """Return a folder with a job file and what its tasks expect there."""
    folder.mkdir(parents=True)
    (folder / "job.toml").write_text(text)
    (folder / "there").mkdir()
    program = folder / "print"
    program.write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    program.chmod(0o755)
    return folder


def left(folder: Path) -> dict[str, str]:
    """Return the files below a folder with their texts, alike whoever wrote them."""

    def alike(text: str) -> str:
        text = re.sub(r"\bjob-\d+", "job-N", text.replace(str(folder), "FOLDER"))
        return re.sub(r"HQ_JOB_ID=\d+", "HQ_JOB_ID=N", text)

    found = {}
    for path in sorted(folder.rglob("*")):
        name = alike(str(path.relative_to(folder)))
        if path.is_file():
            found[name] = alike(path.read_text())
    return found


def code(said: str) -> int | None:
    """Return the exit code that HyperQueue tells of a task; None: it never began."""
    if match := re.search(r"signal (\d+)", said):
        return -int(match[1])
    match = re.search(r"exit code (-?\d+)", said)
    return None if match is None else int(match[1])


@pytest.fixture(scope="module")
def by_hyperqueue(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """What HyperQueue leaves of each job: files, and its words for tasks that failed."""
    root = tmp_path_factory.mktemp("hyperqueue")
    folders = [filled(root / name, text) for name, text in JOBS.items()]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run_hyperqueue.py")), *map(str, folders)],
        env={**os.environ, "MINE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    failed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {
        name: (left(folder), said) for name, folder, said in zip(JOBS, folders, failed, strict=True)
    }


@pytest.mark.ci
@pytest.mark.parametrize("name", JOBS)
def test_hyperqueue_and_bursar_leave_the_same(
    by_hyperqueue: dict[str, tuple[dict[str, str], dict[str, str]]],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files with their texts, the tasks that failed, and their exit codes."""
    files, failed = by_hyperqueue[name]
    monkeypatch.setenv("MINE", "1")
    sites = tmp_path / "sites.toml"
    sites.write_text('[site.here]\nkind = "local"\nprocessors = 2\nunit_price = 1\n')
    folder = filled(tmp_path / name, JOBS[name])
    done = bursar.run(folder / "job.toml", sites, runs=tmp_path / "runs")
    assert left(folder) == files
    ended = {own: one for own, one in done.tasks.items() if one.status is Status.FAILED}
    assert ended.keys() == failed.keys()
    assert done.succeeded == (not failed)
    for own, said in failed.items():
        if (expected := code(said)) is not None:
            assert ended[own].exit_code == (expected if expected >= 0 else 128 - expected)
