"""Tasks of many instances on one worker: each in its own home, and nowhere else."""

import asyncio
import os
import pickle
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from tests.worker.minimal_dispatcher import Server, job, working

from bursar.dispatch.wire import LeaveOrder, WireJob
from bursar.model.task import Call, Copy, Outcome, Redirect, Shell, Status, Substitute
from bursar.worker.python_calls import encode_call
from bursar.worker.workspace import MOST_HOMES, prepare_workspace

Until = Callable[[Callable[[], bool]], Awaitable[None]]
Outcomes = Callable[[Sequence[WireJob]], dict[int, Outcome]]


@pytest.fixture
def outcomes(tmp_path: Path, until: Until) -> Outcomes:
    """What a worker with one processor makes of some jobs."""
    (tmp_path / "service").mkdir()

    def carry_out(jobs: Sequence[WireJob]) -> dict[int, Outcome]:
        async def main() -> dict[int, Outcome]:
            server = Server(tmp_path / "service")
            async with working(server, processors=1) as process:
                await until(lambda: bool(server.hellos))
                server.give(*jobs)
                await until(lambda: len(server.results) == len(jobs))
                server.say(LeaveOrder())
                async with asyncio.timeout(20):
                    await process.wait()
            return server.results

        return asyncio.run(main())

    return carry_out


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """One instance's."""
    path = tmp_path / "home"
    prepare_workspace(str(path), None)
    return path


def test_homes_have_their_own_files_folders_and_logs(outcomes: Outcomes, tmp_path: Path) -> None:
    """
    Two instances use the same names; long streams lie in the logs of each.
    """
    homes = [tmp_path / name for name in ("one", "two")]
    for path in homes:
        prepare_workspace(str(path), None)
        (path / "files" / "in").write_text(path.name)
    line = "cat in > out; pwd; head -c 100000 /dev/zero >&2"
    jobs = [
        job(number, line, home=str(path), inputs=("in",), outputs=("out",))
        for number, path in enumerate(homes)
    ] + [job(2 + number, "pwd", home=str(path)) for number, path in enumerate(homes)]

    results = outcomes(jobs)

    for number, path in enumerate(homes):
        assert results[number].status is Status.SUCCEEDED, results[number].reason
        assert (path / "files" / "out").read_text() == path.name
        assert (path / "logs" / f"t{number}.1.stderr").stat().st_size == 100_000
        for task in (number, 2 + number):
            assert results[task].stdout.decode().startswith(f"{path}/work/")
        assert list((path / "work").iterdir()) == []


def test_a_task_runs_in_a_folder_of_its_instance(outcomes: Outcomes, home: Path) -> None:
    """
    It is made when it is missing and stays; outputs are known by their names from there.
    """
    at = {"home": str(home)}
    results = outcomes(
        [
            job(0, "pwd; echo 1 > x", directory="a/b", outputs=("x",), **at),
            job(1, "cat x; pwd", directory="a/b", **at),
            job(2, "cat a/b/x", directory=".", inputs=("x",), outputs=("x",), **at),
            job(3, "pwd", directory=str(home / "files"), **at),
            job(4, "rm -r ../b; echo gone", directory="a/b", **at),
            job(5, "pwd", directory="a/b", **at),
        ]
    )

    assert {o.status for o in results.values()} == {Status.SUCCEEDED}
    assert results[0].stdout.decode() == f"{home}/files/a/b\n"
    assert results[1].stdout.decode() == f"1\n{home}/files/a/b\n"
    assert results[2].stdout == b"1\n"
    assert results[3].stdout.decode() == f"{home}/files\n"
    assert results[5].stdout == results[0].stdout
    assert (home / "files" / "x").read_text() == "1\n"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"directory": "../x"}, "is not below the folder"),
        ({"directory": "link/x"}, "leads through a link"),
        ({"directory": "/nowhere/at/all"}, "is no folder here"),
        ({"directory": "a\0b"}, "is not below the folder"),
        ({"inputs": ("link/secret",)}, "leads out of the instance's files"),
        ({"inputs": ("../../secret",)}, "is not below the folder"),
        ({"outputs": ("../../new/x",)}, "is not below the folder"),
        ({"outputs": ("/tmp/x",)}, "is not below the folder"),
        ({"data": {"../../new/x": "/etc/hostname"}}, "is not below the folder"),
        ({"environment": {"A=B": "x"}}, "is no name of a variable"),
        ({"environment": {"": "x"}}, "is no name of a variable"),
        ({"environment": {"A\0": "x"}}, "is no name of a variable"),
        ({"environment": {"A": "x\0y"}}, "embedded null byte"),
        ({"environment": {"BURSAR_TASK": "1"}}, "is not the task's to set"),
        ({"environment": {"BURSAR_RUN": "1"}}, "is not the task's to set"),
        ({"sealed": b"?"}, "has no key"),
        ({"steps": (Shell("ln -s /etc/passwd out"),), "outputs": ("out",)}, "leads out of the"),
        ({"steps": (Copy("link/secret", "x", True, False),)}, "leads out of the instance's files"),
        ({"steps": (Copy("/etc/hostname", "link/x", False, True),)}, "leads through a link"),
        ({"steps": (Copy("/dev/zero", "x", False, False),)}, "is a device, neither a plain"),
        ({"steps": (Shell("mkfifo p"), Redirect("stdout", "p"), Shell("echo"))}, "No such device"),
        ({"steps": (Shell("mkfifo p"), Substitute("p", "x", {}))}, "cannot read"),
        ({"steps": (Shell("mkfifo out"),), "outputs": ("out",)}, "neither a plain file nor"),
    ],
)
def test_what_leads_out_of_the_home_fails_the_task(
    outcomes: Outcomes, home: Path, more: dict[str, Any], reason: str
) -> None:
    """
    By one line; the worker goes on with the next task, and nothing was made or read elsewhere.
    """
    outside = home.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("x")
    (home / "files" / "link").symlink_to(outside)

    results = outcomes([job(0, home=str(home), **more), job(1, "echo on", home=str(home))])

    assert results[0].status is Status.FAILED
    assert reason in results[0].reason
    assert "\n" not in results[0].reason
    assert results[1].stdout == b"on\n"
    assert [p.name for p in outside.iterdir()] == ["secret"]
    assert sorted(p.name for p in home.parent.iterdir()) == ["home", "outside", "service"]


@pytest.mark.parametrize(
    "line",
    [
        'rmdir "$PWD"',
        'd="$PWD"; cd ..; rmdir "$d"; ln -s .. "$d"',
        'd="$PWD"; cd ..; rmdir "$d"; echo x > "$d"',
        'd="$PWD"; cd ..; rmdir "$d"; mkfifo "$d"',
        "cd ..; rm -rf ../work/.[!.]*",
        "touch x; chmod 0 .",
    ],
)
def test_a_task_that_takes_its_folder_away_harms_nobody_else(
    outcomes: Outcomes, home: Path, line: str
) -> None:
    """
    The next one has an empty folder of its own again, whatever the first one put in its place.
    """
    at = {"home": str(home)}
    failing = f"{line}; exit 1"
    show = "pwd; ls -A"
    results = outcomes(
        [job(0, line, **at), job(1, show, **at), job(2, failing, **at), job(3, show, **at)]
    )

    assert (results[0].status, results[2].status) == (Status.SUCCEEDED, Status.FAILED)
    for task in (1, 3):
        folder, *rest = results[task].stdout.decode().splitlines()
        assert Path(folder).parent == home / "work"
        assert rest == []


def test_more_homes_than_are_kept(outcomes: Outcomes, tmp_path: Path) -> None:
    """
    Scratch folders of those that were used longest ago go.
    """
    homes = [tmp_path / f"home{number}" for number in range(MOST_HOMES + 3)]
    for path in homes:
        prepare_workspace(str(path), None)
    results = outcomes([job(n, "true", home=str(path)) for n, path in enumerate(homes)])

    assert {o.status for o in results.values()} == {Status.SUCCEEDED}
    assert all(not list((path / "work").iterdir()) for path in homes)


def test_a_home_that_was_destroyed_fails_its_tasks_only(outcomes: Outcomes, home: Path) -> None:
    """
    The instance was destroyed while tasks of it were on their way.
    """
    at = {"home": str(home)}
    gone = f"rm -rf {home}"
    results = outcomes([job(0, gone, **at), job(1, "echo", **at), job(2, "echo on")])

    assert results[1].status is Status.FAILED
    assert results[2].stdout == b"on\n"


def test_a_home_is_its_users_alone(tmp_path: Path) -> None:
    """
    The folders are nobody else's business, and preparing them twice changes nothing.
    """
    path = tmp_path / "h"
    prepare_workspace(str(path), None)
    (path / "files" / "x").write_text("x")
    prepare_workspace(str(path), None)

    assert (path / "files" / "x").read_text() == "x"
    for folder in (path, *path.iterdir()):
        assert folder.stat().st_mode & 0o777 == 0o700
    os.symlink(tmp_path, tmp_path / "link")
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        prepare_workspace(str(tmp_path / "link"), None)


def test_a_call_finds_nothing_that_another_instance_has_left_in_memory(
    outcomes: Outcomes, tmp_path: Path
) -> None:
    """
    Nor does a thread of its own go on beside it; calls of one instance, or of a run, share a
    process, as starting one takes its time.
    """
    homes = [str(tmp_path / name) for name in ("one", "two")]
    for path in homes:
        prepare_workspace(path, None)

    def remember(word: str) -> tuple[int, list[str]]:
        left: list[str] = sys.__dict__.setdefault("left_behind", [])
        left.append(word)
        return os.getpid(), list(left)

    words = ["a", "b", "c", "d", "e", "f"]
    where = [homes[0], homes[0], homes[1], homes[0], "", ""]
    jobs = [
        job(task, steps=(Call(encode_call(cloudpickle.dumps((remember, (word,), {})))),), home=path)
        for task, (word, path) in enumerate(zip(words, where, strict=True))
    ]

    results = outcomes(jobs)
    found = [pickle.loads(results[task].value) for task in range(len(jobs))]

    assert [left for _, left in found] == [
        ["a"],
        ["a", "b"],
        ["c"],
        ["d"],
        ["e"],
        ["e", "f"],
    ]
    assert len({pid for pid, _ in found}) == 4
