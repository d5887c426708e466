"""Tasks are held to the memory that they state."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.worker.test_worker import called, one, task

from bursar.dispatch.wire import Welcome, WireJob
from bursar.model.task import Exec, Outcome, Shell, Status
from bursar.worker.attempt import Attempt
from bursar.worker.attempt_context import AttemptContext
from bursar.worker.memory_enforcement import (
    MemoryGroups,
    memory_groups,
    over_memory,
    used_memory,
)
from bursar.worker.spawning import ProcessUsage

MEGABYTE = 10**6
HOLD = "import time; held = b'x' * {} * 10**6; print('has', flush=True); time.sleep({})"


def holding(megabytes: int, seconds: float = 30) -> Exec:
    return Exec((sys.executable, "-c", HOLD.format(megabytes, seconds)))


def test_a_task_that_uses_more_than_it_states_is_killed_and_says_both(room: Any) -> None:
    outcome = one(room, holding(300), memory=100 * MEGABYTE)

    assert outcome.status is Status.FAILED
    assert outcome.exit_code == -signal.SIGKILL
    used, allowed = outcome.reason.split(", ")
    assert used.startswith("used ")
    assert used.endswith(" MB")
    assert allowed == "memory allows 100 MB"


def test_a_task_within_its_memory_is_left_alone(room: Any) -> None:
    outcome = one(room, holding(30, 0.4), memory=100 * MEGABYTE)

    assert (outcome.status, outcome.stdout) == (Status.SUCCEEDED, b"has\n")


def test_all_that_a_task_has_started_counts(room: Any) -> None:
    """A process in a session of its own, and one whose parent has ended, count like the others."""
    program = HOLD.format(90, 30)
    line = f'(setsid {sys.executable} -c "{program}" &); {sys.executable} -c "{program}"'
    outcome = one(room, Shell(line), memory=150 * MEGABYTE)

    assert outcome.status is Status.FAILED
    assert outcome.reason.endswith("memory allows 150 MB")


def test_memory_that_processes_share_counts_once(room: Any) -> None:
    """Else a program that forks four workers would be killed for five times what it has."""
    program = (
        "import os, time; held = b'x' * 80_000_000; [os.fork() for _ in range(2)]; time.sleep(0.5)"
    )
    outcome = one(room, Exec((sys.executable, "-c", program)), memory=200 * MEGABYTE)

    assert outcome.status is Status.SUCCEEDED, outcome.reason


def test_a_call_is_held_to_its_memory_and_the_next_call_works(room: Any) -> None:
    def take(megabytes: int) -> int:
        import time

        held = b"x" * megabytes * 10**6
        time.sleep(30 if megabytes > 100 else 0)
        return len(held)

    tasks = [
        task(called(take, 400), id="large", memory=200 * MEGABYTE, retries=0),
        task(called(take, 1), id="small", memory=200 * MEGABYTE, retries=0),
    ]
    large, small = room.carry_out(tasks, processors=1)

    assert large.status is Status.FAILED
    assert large.reason.endswith("memory allows 200 MB")
    assert small.status is Status.SUCCEEDED


def test_own_memory_is_counted_by_size() -> None:
    """A file that is only mapped does not count: the kernel takes its pages back."""
    pid = os.getpid()
    resident = used_memory([pid], 2**63)

    assert 0 < used_memory([pid], 0) <= resident
    assert used_memory([2**22 + 1], 0) == 0


@pytest.mark.parametrize(
    ("used", "limit", "text"),
    [
        (1_312_000_000, 10**9, "used 1.31 GB, memory allows 1 GB"),
        (1_000_100_000, 10**9, "used more than 1 GB, memory allows 1 GB"),
    ],
)
def test_the_reason_says_what_was_used_and_what_is_allowed(
    used: int, limit: int, text: str
) -> None:
    assert over_memory(used, limit) == text


# Control groups, in a folder that looks like the kernel's: few machines of tests have delegated
# ones.


def make_group(folder: Path, controllers: str = "cpu memory", handed_on: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text("")
    (folder / "cgroup.controllers").write_text(controllers)
    (folder / "cgroup.subtree_control").write_text(handed_on)


def delegate(folder: Path) -> None:
    try:
        os.setxattr(folder, "user.delegate", b"1")
    except OSError:
        pytest.skip("the file system keeps no attributes")


def test_groups_are_made_only_where_one_was_delegated(tmp_path: Path) -> None:
    """A folder where one may write is not enough: it may be somebody else's to manage."""
    own = tmp_path / "proc"
    own.write_text("0::/unit/main\n")
    groups = tmp_path / "groups"
    make_group(groups / "unit")
    make_group(groups / "unit" / "main")
    assert memory_groups(own, groups) is None

    delegate(groups / "unit")
    assert memory_groups(own, groups) is not None
    assert (groups / "unit" / "cgroup.subtree_control").read_text() == "+memory"

    (groups / "unit" / "cgroup.subtree_control").write_text("")
    (groups / "unit" / "cgroup.controllers").write_text("cpu")
    assert memory_groups(own, groups) is None


def test_a_containers_own_outermost_group_is_taken(tmp_path: Path) -> None:
    own = tmp_path / "proc"
    own.write_text("0::/\n")
    groups = tmp_path / "groups"
    make_group(groups, handed_on="memory")
    assert memory_groups(own, groups) is None, "the root of a machine"

    (groups / "memory.max").write_text("max")
    assert memory_groups(own, groups) is not None


def attempt_in(groups: MemoryGroups, folder: Path, *steps: Any) -> Outcome:
    """Carry out a job of 1 MB in a group, without a dispatcher."""
    for name in ("files", "work", "logs"):
        (folder / name).mkdir()
    places = [str(folder / name) for name in ("files", "work", "logs")]
    context = AttemptContext(Welcome("run", str(folder), *places, 65536), "w")
    context.__dict__["memory_groups"] = groups
    attempt = Attempt(WireJob(0, 1, 1, 0.0, "0", steps, memory=MEGABYTE), context)
    here = os.getcwd()
    try:
        outcome = attempt.begin()
        while outcome is None:
            _, code = os.waitpid(attempt.pid, 0)
            code = os.waitstatus_to_exitcode(code)
            usage = ProcessUsage(0.0, 0.0, 0)
            outcome = attempt.ended(code, usage, alone=True, escaped=False)
    finally:
        os.chdir(here)
        context.close()
    return outcome


def test_a_program_starts_within_its_group_and_keeps_its_exit_status(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    outcome = attempt_in(
        MemoryGroups(top), tmp_path, Shell("echo $$"), Exec(("sh", "-c", 'exit "$1"', "x", "3"))
    )

    assert (outcome.status, outcome.exit_code) == (Status.FAILED, 3)
    (made,) = top.iterdir()
    assert (made / "memory.max").read_text() == str(MEGABYTE)
    assert (made / "memory.swap.max").read_text() == "0"
    assert (made / "memory.oom.group").read_text() == "1"
    # The second process has overwritten the first one's number, which the kernel would have kept.
    assert (made / "cgroup.procs").read_text().strip().isdigit()
    assert outcome.stdout.strip().isdigit()


def test_what_the_kernel_has_killed_says_so(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    (top / f"bursar-{os.getpid()}-0-1").mkdir()
    (top / f"bursar-{os.getpid()}-0-1" / "memory.events").write_text("oom 1\noom_kill 1\n")
    outcome = attempt_in(MemoryGroups(top), tmp_path, Shell("kill -9 $$"))

    assert outcome.status is Status.FAILED
    assert outcome.reason == "used more than 1 MB, memory allows 1 MB"
