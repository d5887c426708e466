"""Python calls that wait at their process: each is told apart, and begins once or not at all."""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bursar import Executor
from bursar.api.call_encoding import CallEncoder
from bursar.api.executor import TaskFailed
from bursar.dispatch.journal import read_journal
from bursar.dispatch.wire import WireJob
from bursar.model.task import Call, Status
from bursar.worker.callee import ProcessVariables
from bursar.worker.python_calls import PythonCallPool, PythonCallWorker, is_plain

PATIENCE = 30.0


def job(number: int, expression: str) -> WireJob:
    payload = CallEncoder(shares=True).encode(eval, (expression,), {})
    return WireJob(number, 1, 1, 0.0, f"t{number}", (Call(payload),))


def say(number: int) -> int:
    """Print where the number asks for it, to either stream or by a program."""
    if number % 7 == 0:
        print(f"out {number}", flush=True)
    if number % 11 == 0:
        os.write(2, b"err %d" % number)
    if number % 53 == 0:
        os.system(f"echo program {number}")
    if number % 61 == 0:
        time.sleep(0.03)  # longer than its output is left in the pipe
        print(f"late {number}")
    return number


def said(number: int) -> tuple[bytes, bytes]:
    """Return what a call prints."""
    out = b"" if number % 7 else b"out %d\n" % number
    out += b"" if number % 53 else b"program %d\n" % number
    out += b"" if number % 61 else b"late %d\n" % number
    return out, b"" if number % 11 else b"err %d" % number


def test_output_belongs_to_the_call_that_printed_it(tmp_path: Path) -> None:
    """Also among hundreds of calls that follow each other at once in one process."""
    with Executor(1, folder=tmp_path) as executor:
        calls = [executor.submit(say, number) for number in range(400)]
        assert [call.result(PATIENCE) for call in calls] == list(range(400))

    found = {r.outcome.task: r.outcome for r in read_journal(tmp_path / "journal.sqlite").records}
    assert {n: (o.stdout, o.stderr) for n, o in found.items()} == {n: said(n) for n in range(400)}


def leave(number: int) -> list[str]:
    """Return what lies in the folder, and leave a file there where the number asks for it."""
    here = os.listdir()
    if number % 5 == 0:
        Path(f"left-{number}").touch()
    return here


def test_each_call_finds_an_empty_folder() -> None:
    """Whatever the call before has left in it."""
    with Executor(1) as executor:
        time.sleep(0.05)  # the clock of a file system is coarse
        assert list(executor.map(leave, range(60))) == [[]] * 60


def end(number: int) -> int:
    """Kill the process at one number."""
    if number == 150:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_only_the_call_that_ran_is_blamed_for_the_end_of_its_process() -> None:
    """Those before it have been answered, and those that waited behind it run elsewhere, once."""
    with Executor(1) as executor:
        calls = [executor.submit(end, number) for number in range(300)]
        failed = [n for n, call in enumerate(calls) if call.exception(PATIENCE) is not None]

    assert failed == [150]
    assert isinstance(calls[150].exception(), TaskFailed)


@pytest.mark.ci
def test_a_wall_limit_ends_one_call_among_short_ones() -> None:
    """The limit counts from the call's own begin, and spares those that waited behind it."""

    def stall(number: int) -> int:
        if number == 40:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        return number

    with Executor(1, wall_limit=1.0) as executor:
        calls = [executor.submit(stall, number) for number in range(80)]
        failed = [n for n, call in enumerate(calls) if call.exception(PATIENCE) is not None]

    assert failed == [40]
    assert "wall-time limit" in str(calls[40].exception())


def test_processes_are_forked_of_one_and_are_children_of_the_worker() -> None:
    """Their random numbers differ, and each leads a group of its own."""

    def look() -> tuple[int, int, int, float]:
        time.sleep(0.2)
        return os.getpid(), os.getppid(), os.getpgid(0), random.random()

    processors = 16  # on four workers or more
    with Executor(processors) as executor:
        calls = [executor.submit(look) for _ in range(processors)]
        found = [call.result(PATIENCE) for call in calls]

    pids, parents, groups, numbers = map(set, zip(*found, strict=True))
    assert len(pids) == len(numbers) == processors
    assert groups == pids
    assert len(parents) < processors
    assert not parents & pids


@pytest.fixture
def callee(tmp_path: Path) -> Iterator[PythonCallWorker]:
    """A process that has answered a first call."""
    made = PythonCallWorker(dict(os.environ))
    pipes = (*os.pipe(), *os.pipe())
    streams = (pipes[1], pipes[3], pipes[0], pipes[2])
    changed = os.stat(tmp_path).st_mtime_ns
    made.begin(job(1, "1"), _call(job(1, "1")), (str(tmp_path), changed, {}), streams, alone=False)
    _answers(made, 1)
    yield made
    made.close()
    os.kill(made.pid, signal.SIGKILL)
    os.waitpid(made.pid, 0)
    for fd in pipes:
        os.close(fd)


def _call(one: WireJob) -> Call:
    (step,) = one.steps
    assert isinstance(step, Call)
    return step


def _answers(callee: PythonCallWorker, count: int) -> list[tuple[int, object]]:
    """Return job and value of so many answers, waited for."""
    found: list[tuple[int, object]] = []
    give_up = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < give_up, found
        time.sleep(0.001)
        found += [(a.job.task, pickle.loads(a.value)) for a in callee.answers()]
    return found


def test_a_call_is_carried_out_or_taken_back(callee: PythonCallWorker) -> None:
    """Whatever the process takes while the worker takes back; and answers keep the order."""
    answered: list[int] = []
    back: list[int] = []
    sent = 1
    for _ in range(150):
        for _ in range(20):
            sent += 1
            assert callee.send_ahead(job(sent, f"{sent}"))
        time.sleep(random.random() * 0.0005)
        back += [one.task for one in callee.take_back()]
        answered += [task for task, _ in _answers(callee, len(callee.sent))]
        assert not callee.sent

    assert Counter(answered + back) == Counter(range(2, sent + 1))
    assert answered == sorted(answered)
    assert back == sorted(back)
    assert answered
    assert back


def test_a_process_pauses_after_a_call_whose_output_is_being_read(callee: PythonCallWorker) -> None:
    """Else what is read could be the next call's."""
    callee.mark()
    for number in range(2, 6):
        callee.send_ahead(job(number, "1"))
    assert _answers(callee, 1) == [(2, 1)]
    time.sleep(0.05)
    assert list(callee.answers()) == []
    assert [one.task for one in callee.take_back()] == [3, 4, 5]


def test_a_queue_that_is_full_takes_no_more_calls(callee: PythonCallWorker) -> None:
    """The worker keeps the rest, and never waits for the process."""
    callee.send_ahead(job(2, "__import__('time').sleep(0.3)"))
    large = "1" + " " * 10_000
    count = 3
    while callee.send_ahead(job(count, large)):
        count += 1
    assert 10 < count < 1000
    assert [task for task, _ in _answers(callee, count - 2)] == list(range(2, count))


def test_a_large_call_to_a_process_that_has_died_is_refused(tmp_path: Path) -> None:
    """The worker is one thread: if it waited for room, nothing else would go on."""
    made = PythonCallWorker(dict(os.environ))
    os.kill(made.pid, signal.SIGKILL)
    os.waitid(os.P_PID, made.pid, os.WEXITED | os.WNOWAIT)  # dead, and not waited for
    null = os.open(os.devnull, os.O_RDWR)
    large = job(1, "1" + " " * 5_000_000)
    with pytest.raises(BrokenPipeError):
        made.begin(large, _call(large), (str(tmp_path), 0, {}), (null, null), alone=True)
    os.close(null)
    made.close()
    os.waitpid(made.pid, 0)


@pytest.mark.ci
def test_a_process_that_cannot_start_fails_its_call(tmp_path: Path) -> None:
    """It is not replaced for ever by others that die as well."""
    program = f"""
import pathlib, sys
sys.path.insert(0, {str(tmp_path)!r})
from bursar import Executor
with Executor(1) as executor:
    print(type(executor.submit(len, "abc").exception({PATIENCE})).__name__)
"""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if any('bursar.worker.callee' in word for word in sys.orig_argv): os._exit(3)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "TaskFailed", done.stderr


def test_calls_with_something_of_their_own_are_not_sent_ahead() -> None:
    """Files, variables, several steps, several processors, large arguments."""
    step = Call(b"x")
    plain = WireJob(1, 1, 1, 0.0, "t", (step,))
    assert is_plain(plain)
    assert not is_plain(WireJob(1, 1, 2, 0.0, "t", (step,)))
    assert not is_plain(WireJob(1, 1, 1, 0.0, "t", (step, step)))
    assert not is_plain(WireJob(1, 1, 1, 0.0, "t", (step,), ("input",)))
    assert not is_plain(WireJob(1, 1, 1, 0.0, "t", (step,), environment={"A": "b"}))
    assert not is_plain(WireJob(1, 1, 1, 0.0, "t", (Call(b"x" * 100_000),)))


def test_a_pool_survives_the_end_of_its_template() -> None:
    """As where memory runs out: another one is started."""
    pool = PythonCallPool(dict(os.environ))
    first, second = pool.take(), pool.take()
    (template,) = pool.pids
    os.kill(template, signal.SIGKILL)
    os.waitpid(template, 0)
    third = pool.take()
    assert len({first.pid, second.pid, third.pid, template, *pool.pids}) == 5
    children = {first.pid, *pool.pids}
    for made in (first, second, third):
        made.close()
    pool.close()
    for pid in children:
        os.waitpid(pid, 0)


def test_variables_are_set_anew_when_any_has_changed() -> None:
    """Known answer, in a process of its own: by Python, below it, and by replacing its object."""
    with Executor(1) as executor:
        found = executor.submit(_changed_variables).result(PATIENCE)
    assert found == [{"A": "b", "BURSAR_PROCESSORS": "1"}] * 5


def _changed_variables() -> list[dict[str, str]]:
    import subprocess

    variables = ProcessVariables()
    variables.set_base({"A": "b"})
    found = []
    spoils = (
        lambda: None,
        lambda: os.environ.update(A="c"),
        lambda: os.putenv("A", "c"),
        lambda: os.unsetenv("A"),
        lambda: os.environ.update(NEW="x"),
    )
    for number, spoil in enumerate(spoils):
        spoil()
        variables.prepare(number, 1, {})
        code = "import os, sys; sys.stdout.write(repr(dict(os.environ)))"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        got = eval(told.stdout)
        got.pop("LC_CTYPE", None)  # the interpreter's own
        assert got.pop("BURSAR_TASK") == str(number) == os.environ["BURSAR_TASK"]
        found.append(got)
    return found


def test_a_status_is_that_of_the_call(tmp_path: Path) -> None:
    """Of calls that raise among others that return."""
    with Executor(1, folder=tmp_path) as executor:
        calls = [executor.submit(divmod, 1, number % 3) for number in range(90)]
        for call in calls:
            call.exception(PATIENCE)

    records = read_journal(tmp_path / "journal.sqlite").records
    failed = {r.outcome.task for r in records if r.outcome.status is Status.FAILED}
    assert failed == set(range(0, 90, 3))
    assert all(0 <= r.outcome.end - r.outcome.start < 5 for r in records)
