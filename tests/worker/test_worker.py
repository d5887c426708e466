"""What workers do with tasks: real processes, one small run each."""

import os
import pickle
import shlex
import subprocess
import sys
import time
from typing import Any

import cloudpickle
import pytest

from bursar.model.campaign import Retry
from bursar.model.task import (
    Call,
    Copy,
    Exec,
    File,
    OnError,
    Outcome,
    Redirect,
    Shell,
    Status,
    Step,
    Substitute,
    Task,
)
from bursar.worker.python_calls import encode_call

ONCE = Retry(attempts=1)


def task(*steps: Step, **more: Any) -> Task:
    """A task of these steps."""
    return Task(id=more.pop("id", "t"), steps=steps, **more)


def one(room: Any, *steps: Step, **more: Any) -> Outcome:
    """The outcome of a task that is tried once."""
    (outcome,) = room.carry_out([task(*steps, **more)], processors=1, retry=ONCE)
    return outcome


def test_a_program_runs_and_its_output_comes_back(room: Any) -> None:
    """
    Exit status, both streams byte for byte, times and resource usage.
    """
    before = time.time()
    outcome = one(room, Shell(r"printf 'a\000\377'; printf b >&2"))

    assert outcome.status is Status.SUCCEEDED
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, b"a\0\xff", b"b")
    assert (outcome.stdout_size, outcome.stderr_size) == (3, 1)
    assert before <= outcome.start <= outcome.end <= time.time()
    assert outcome.max_rss > 0


def test_processor_time_is_told(room: Any) -> None:
    """
    What a task burns stands in its outcome: the bill and the report use it.
    """
    outcome = one(room, Shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"))

    assert outcome.user_seconds > 0.01
    assert outcome.user_seconds + outcome.system_seconds <= outcome.end - outcome.start + 0.02


@pytest.mark.parametrize(
    ("steps", "code", "reason"),
    [
        ((Shell("exit 7"),), 7, "the command exited with status 7"),
        ((Exec(("false",)),), 1, "false exited with status 1"),
        ((Shell("kill -SEGV $$"),), -11, "the command was killed by SIGSEGV"),
        ((Exec(("no-such-program",)),), None, 'exec: "no-such-program" is not on PATH'),
        ((Exec(()),), None, "exec: there is no program to run"),
        ((Exec(("./missing",)),), None, "exec: "),
        ((Copy("nothing", "x", False, False),), None, 'copy: "nothing" does not exist'),
        ((Substitute("nothing", "x", {}),), None, "substitute: cannot read"),
    ],
)
def test_a_failure_says_what_failed(
    room: Any, steps: tuple[Step, ...], code: int | None, reason: str
) -> None:
    """
    One line for people, and the exit status as it was.
    """
    outcome = one(room, *steps)

    assert outcome.status is Status.FAILED
    assert outcome.exit_code == code
    assert outcome.reason.startswith(reason)
    assert "\n" not in outcome.reason


def test_steps_stop_at_the_first_failure(room: Any) -> None:
    """
    What stands behind a failing step is not done.
    """
    outcome = one(room, Shell("echo a"), Shell("false"), Shell("echo b"))

    assert (outcome.status, outcome.stdout) == (Status.FAILED, b"a\n")


def test_failures_may_be_ignored(room: Any) -> None:
    """
    ``onerror ignore`` holds until it is taken back.
    """
    ignored = one(
        room, OnError(True), Exec(("no-such-program",)), Shell("exit 3"), Shell("echo on")
    )

    assert (ignored.status, ignored.stdout) == (Status.SUCCEEDED, b"on\n")


def test_failures_count_again_once_onerror_says_so(room: Any) -> None:
    """
    The switch goes both ways.
    """
    outcome = one(room, OnError(True), Shell("false"), OnError(False), Shell("exit 4"))

    assert (outcome.status, outcome.exit_code) == (Status.FAILED, 4)


def test_a_stream_opened_again_by_its_name_goes_on(room: Any) -> None:
    """
    ``/dev/stdout`` appends to what was printed, as at a terminal; it overwrites nothing.
    """
    line = "echo a; echo b > /dev/stdout; echo c | tee /dev/stderr; echo d >&2"
    (outcome,) = room.carry_out([Task(id="t", steps=(Shell(line),))])

    assert outcome.stdout == b"a\nb\nc\n"
    assert outcome.stderr == b"c\nd\n"


def test_streams_are_redirected_and_captured_again(room: Any) -> None:
    """
    A redirect holds until the next; appending appends, None captures.
    """
    outcome = one(
        room,
        Redirect("stdout", "log"),
        Shell("echo 1; echo e >&2"),
        Redirect("stdout", "log", append=True),
        Shell("echo 2"),
        Redirect("stdout", None),
        Shell("cat log"),
    )

    assert (outcome.stdout, outcome.stderr) == (b"1\n2\n", b"e\n")


def test_a_template_is_filled_in(room: Any) -> None:
    """
    Known names are replaced in both spellings; unknown ones stay as they stand.
    """
    outcome = one(
        room,
        Shell("printf '$x ${x} $y ${long_name} $$x' > t"),
        Substitute("t", "out", {"x": "1", "long_name": "2"}),
        Shell("cat out"),
    )

    assert outcome.stdout == b"1 1 $y 2 $1"


def test_files_go_between_root_and_node(room: Any) -> None:
    """
    Root reads find the run's files before the campaign's; root writes go to the run.
    """
    (room.folders.root / "a").write_text("campaign")
    (room.folders.root / "d").mkdir()
    (room.folders.root / "d" / "b").write_text("deep")
    outcome = one(
        room,
        Copy("a", "mine", True, False),
        Copy("d", "d", True, False),
        Shell("cat mine d/b; echo changed >> mine"),
        Copy("mine", "a", False, True),
        Copy("mine", "results/x", False, True),
        Copy("a", "again", True, False),
        Shell("cat again"),
    )

    assert outcome.status is Status.SUCCEEDED, outcome.reason
    assert outcome.stdout == b"campaigndeepcampaignchanged\n"
    assert (room.folders.root / "a").read_text() == "campaign"
    assert (room.folders.files / "results" / "x").read_text() == "campaignchanged\n"


@pytest.mark.parametrize("target", ["../escaped", "/escaped", "a/../../escaped", "out/escaped"])
def test_nothing_is_written_outside_the_runs_files(room: Any, target: str) -> None:
    """
    A path that leaves the run's files fails the task, also by way of a link.
    """
    (room.path / "elsewhere").mkdir()
    (room.folders.files / "out").symlink_to(room.path / "elsewhere")

    outcome = one(room, Shell("echo > x"), Copy("x", target, False, True))

    assert outcome.status is Status.FAILED
    assert "outside the run's files" in outcome.reason
    assert not (room.path / "escaped").exists()
    assert not (room.path / "elsewhere" / "escaped").exists()


def test_data_flows_from_task_to_task(room: Any) -> None:
    """
    Outputs are published and staged into the working directory of who reads them.
    """
    (room.folders.root / "in.txt").write_text("x")
    tasks = [
        task(
            Shell("cat in.txt > sub/a; mkdir -p tree/deep; echo y > tree/deep/f"),
            id="first",
            inputs=(File("in.txt"),),
            outputs=(File("sub/a"), File("tree")),
        ),
        task(
            Shell("cat sub/a tree/deep/f; pwd; rm sub/a"),
            id="second/odd name",
            inputs=(File("sub/a"), File("tree")),
        ),
    ]
    first, second = room.carry_out(tasks, [[], [0]])

    assert first.status is Status.SUCCEEDED, first.reason
    assert second.status is Status.SUCCEEDED, second.reason
    assert second.stdout.startswith(b"xy\n")
    assert b"1-second_odd_name" in second.stdout
    assert (room.folders.files / "sub" / "a").read_text() == "x"
    assert list(room.folders.work.iterdir()) == []


def test_a_missing_output_fails_the_task_by_name(room: Any) -> None:
    """
    The program said it succeeded; the file it promised is not there.
    """
    outcome = one(room, Shell("true"), outputs=(File("made.dat"),))

    assert (outcome.status, outcome.reason) == (Status.FAILED, 'output "made.dat" was not made')


_SOCKET = "import socket; socket.socket(socket.AF_UNIX).bind('out')"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("mkfifo out", 'output "out" is a named pipe, neither a plain file nor a folder'),
        (
            "mkfifo p; ln -s p out",
            'output "out" is a named pipe, neither a plain file nor a folder',
        ),
        (f'python3 -c "{_SOCKET}"', 'output "out" is a socket, neither a plain file nor a folder'),
        ("ln -s /dev/zero out", 'output "out" is a device, neither a plain file nor a folder'),
        ("mkdir -p out/a; mkfifo out/a/p", 'output "out" holds "a/p", which is a named pipe'),
        (
            """mkdir out; mkfifo "out/$(printf 'a\\tb')\"""",
            'output "out" holds "a\\tb", which is a named pipe',
        ),
    ],
)
def test_an_output_that_is_no_file_fails_the_task_by_name(
    room: Any, line: str, reason: str
) -> None:
    """
    A pipe would keep for ever whoever opens it to read the output; nothing is published.
    """
    outcome = one(room, Shell(line), outputs=(File("out"),))

    assert (outcome.status, outcome.reason) == (Status.FAILED, reason)
    assert not os.path.lexists(room.folders.files / "out")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("p", 'p" is a named pipe, neither a plain file nor a folder'),
        ("d", 'd" holds "p", which is a named pipe'),
    ],
)
def test_a_step_copies_no_pipe(room: Any, name: str, reason: str) -> None:
    """
    Neither one by name nor one in a folder.
    """
    outcome = one(room, Shell("mkfifo p; mkdir d; mkfifo d/p"), Copy(name, "x", False, True))

    assert outcome.status is Status.FAILED
    assert outcome.reason.endswith(reason)
    assert not os.path.lexists(room.folders.files / "x")


def test_a_missing_input_fails_the_task_by_name(room: Any) -> None:
    """
    Before anything is started.
    """
    outcome = one(room, Shell("echo started"), inputs=(File("gone.dat"),))

    assert outcome.status is Status.FAILED
    assert '"gone.dat"' in outcome.reason
    assert outcome.stdout == b""


def test_a_failed_task_leaves_its_folder_to_look_at(room: Any) -> None:
    """
    A sweep of thousands leaves nothing but what failed.
    """
    one(room, Shell("echo trace > left; false"), id="broken")

    (folder,) = (f for f in room.folders.work.iterdir() if not f.name.startswith("."))
    assert folder.name == "0-broken"
    assert (folder / "left").read_text() == "trace\n"


def test_tasks_do_not_see_each_others_files(room: Any) -> None:
    """
    A working directory is empty when its task starts, whoever had it before.
    """
    tasks = [task(Shell("ls -A; echo > f; mkdir d; echo > d/f"), id=f"t{i}") for i in range(20)]

    assert {o.stdout for o in room.carry_out(tasks)} == {b""}


def test_the_environment_is_the_tasks(room: Any) -> None:
    """
    Its own variables, its number, and the programs installed beside Bursar.
    """
    outcome = one(
        room,
        Shell('echo "$COLOUR $BURSAR_TASK $BURSAR_PROCESSORS"; command -v python'),
        environment={"COLOUR": "blue"},
    )
    first, python = outcome.stdout.decode().splitlines()

    assert first == "blue 0 1"
    assert os.access(python, os.X_OK)


def test_the_secret_is_not_handed_on(room: Any) -> None:
    """
    Neither a task's environment nor any command line shows the token.
    """
    seen: list[str] = []

    async def look(dispatcher: Any, workers: Any) -> None:
        await dispatcher.wait()
        seen.append(dispatcher.token)
        for pid in workers.pids.values():
            for part in ("cmdline", "environ"):
                with open(f"/proc/{pid}/{part}", "rb") as file:
                    assert dispatcher.token.encode() not in file.read()

    (outcome,) = room.carry_out([task(Shell("env; cat /proc/$PPID/cmdline"))], meanwhile=look)

    assert outcome.status is Status.SUCCEEDED
    assert seen[0].encode() not in outcome.stdout


def test_long_output_goes_to_a_file(room: Any) -> None:
    """
    Up to 64 KiB travel with the outcome; one byte more and all of it lies in the logs.
    """
    exact, long = room.carry_out(
        [
            task(Shell("head -c 65536 /dev/zero"), id="exact"),
            task(Shell("head -c 65537 /dev/zero; echo e >&2"), id="long"),
        ]
    )

    assert (len(exact.stdout), exact.stdout_size) == (65536, 65536)
    assert (long.stdout, long.stdout_size, long.stderr) == (b"", 65537, b"e\n")
    (log,) = room.folders.logs.iterdir()
    assert log.name == "1-long.1.stdout"
    assert log.read_bytes() == bytes(65537)


def test_a_task_past_its_wall_limit_is_killed_with_all_it_started(room: Any) -> None:
    """
    Grandchildren too, and one that hides in a session of its own.
    """
    mark = room.path / "pids"
    line = f"sleep 987 & echo $! > {mark}; setsid sleep 987 & echo $! >> {mark}; sleep 987"
    outcome = one(room, Shell(line), wall_limit=0.3)

    assert outcome.status is Status.TIMED_OUT
    assert outcome.reason == "killed at its wall-time limit of 0.3 s"
    assert 0.25 < outcome.end - outcome.start < 3
    for pid in mark.read_text().split():
        assert not runs(int(pid), b"987")


def test_a_limit_of_more_days_than_one_wait_may_last_is_taken(room: Any) -> None:
    """
    A large budget makes long leases, and so limits beyond the 24 days that epoll waits at most.
    """
    outcome = one(room, Shell("sleep 0.1"), wall_limit=7.2e6)

    assert outcome.status is Status.SUCCEEDED


def test_what_a_task_leaves_in_the_background_ends_with_it(room: Any) -> None:
    """
    Else it would run beside the next task, and print into its output.
    """
    tasks = [
        task(
            Shell("(while :; do echo noise; done) & setsid yes & echo $!; sleep 0.02"), id="noisy"
        ),
        *(task(Shell("sleep 0.002"), id=f"quiet{i}") for i in range(30)),
    ]
    noisy, *quiet = room.carry_out(tasks, processors=1)

    assert noisy.status is Status.SUCCEEDED
    assert {(o.stdout, o.stdout_size) for o in quiet} == {(b"", 0)}


def test_a_stubborn_task_is_killed_after_the_grace(room: Any, until: Any) -> None:
    """
    SIGTERM first, SIGKILL after.
    """

    async def stop(dispatcher: Any, workers: Any) -> None:
        await until(lambda: (room.path / "up").exists())
        await dispatcher.stop("enough", grace=0.2)

    line = f"trap 'echo asked' TERM; echo > {room.path / 'up'}; while :; do sleep 0.02; done"
    (outcome,) = room.carry_out([task(Shell(line))], meanwhile=stop)

    assert (outcome.status, outcome.reason) == (Status.CANCELLED, "enough")
    assert b"asked" in outcome.stdout


def test_a_task_may_hold_several_processors(room: Any) -> None:
    """
    Two tasks of two processors never share three.
    """
    journal = room.path / "span"
    line = f"echo a >> {journal}; sleep 0.05; echo b >> {journal}"
    outcomes = room.carry_out(
        [task(Shell(line), id=f"t{i}", processors=2) for i in range(4)], processors=3
    )

    assert [o.status for o in outcomes] == [Status.SUCCEEDED] * 4
    assert journal.read_text() == "a\nb\n" * 4


def test_a_task_without_steps_does_nothing_well(room: Any) -> None:
    """
    It exists for those that come after it.
    """
    outcomes = room.carry_out([task(id=f"t{i}") for i in range(1000)])

    assert len(outcomes) == 1000
    assert {(o.status, o.attempt, o.exit_code) for o in outcomes} == {(Status.SUCCEEDED, 1, None)}


def called(function: Any, *args: Any) -> Call:
    """A step that calls it."""
    return Call(encode_call(cloudpickle.dumps((function, args, {}))))


def test_a_call_returns_its_value_and_prints_into_its_outcome(room: Any) -> None:
    """
    Also large values and lambdas; print goes where a program's would.
    """
    outcomes = room.carry_out(
        [
            task(called(lambda x: print("hi") or x * 2, 21), id="a"),
            task(called(lambda: bytes(3_000_000)), id="b"),
        ],
        processors=1,
    )

    assert [o.status for o in outcomes] == [Status.SUCCEEDED] * 2
    assert pickle.loads(outcomes[0].value) == 42
    assert outcomes[0].stdout == b"hi\n"
    assert pickle.loads(outcomes[1].value) == bytes(3_000_000)


def test_a_call_that_raises_brings_its_exception_back(room: Any) -> None:
    """
    Type, message, and where it was raised.
    """

    def divide(a: int, b: int) -> float:
        return a / b

    outcome = one(room, called(divide, 1, 0))
    error = pickle.loads(outcome.value)

    assert outcome.status is Status.FAILED
    assert isinstance(error, ZeroDivisionError)


def test_a_call_that_kills_its_process_is_a_failure_and_the_next_one_works(room: Any) -> None:
    """
    The process for calls is replaced.
    """
    outcomes = room.carry_out(
        [
            task(called(os._exit, 9), id="a"),
            task(called(os.getpid), id="b"),
            task(called(time.sleep, 60), id="c", wall_limit=0.2),
            task(called(os.getpid), id="d"),
        ],
        [[], [], [], []],
        processors=1,
        retry=ONCE,
    )

    assert [o.status for o in outcomes] == [
        Status.FAILED,
        Status.SUCCEEDED,
        Status.TIMED_OUT,
        Status.SUCCEEDED,
    ]
    assert outcomes[0].reason == "the call's process exited with status 9"


def test_a_worker_leaks_no_descriptors(room: Any) -> None:
    """
    Successes, failures, spilled output, calls and redirects all give theirs back.
    """
    kinds = [
        task(Shell("echo a")),
        task(Shell("head -c 70000 /dev/zero; exit 1")),
        task(Redirect("stdout", "f"), Shell("echo a")),
        task(Exec(("no-such-program",))),
        task(Redirect("stderr", "no/such/folder")),
        task(called(os.getpid)),
        task(called(os._exit, 1)),
    ]
    found: list[int] = []

    async def count(dispatcher: Any, workers: Any) -> None:
        (pid,) = workers.pids.values()
        for _ in range(4):
            for kind in kinds:
                dispatcher.submit([kind])
            await dispatcher.wait()
            found.append(len(os.listdir(f"/proc/{pid}/fd")))

    room.carry_out(
        [task(Shell("true"))],
        processors=1,
        retry=ONCE,
        meanwhile=count,
    )

    assert len(set(found[1:])) == 1


def runs(pid: int, word: bytes) -> bool:
    """Whether a process with this word on its command line is still there."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return word in file.read()
    except OSError:
        return False


def test_quoting_survives(room: Any) -> None:
    """
    Arguments reach the program as they are.
    """
    odd = ["a b", "*", "$HOME", "'", '"', "\n", "ü"]
    outcome = one(room, Exec(("printf", "%s|", *odd)), Shell("printf %s " + shlex.quote("'$x'")))

    assert outcome.stdout.decode() == "".join(f"{word}|" for word in odd) + "'$x'"


@pytest.mark.parametrize("told", [b"", b'{"address": "127.0.0.1:1", "tok'])
def test_a_worker_whose_starter_was_killed_before_it_said_what_to_do_leaves(told: bytes) -> None:
    """No traceback gets into the output of a run that goes on."""
    command = [sys.executable, "-P", "-m", "bursar.worker.worker"]

    done = subprocess.run(command, input=told, capture_output=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
