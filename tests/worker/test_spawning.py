"""Programs started by prepared structures: the same as the standard library starts them."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from bursar.dispatch.linux_processes import children
from bursar.worker.spawning import Reaper, Spawner

TELL = """
import json, os, signal
with open("/proc/self/status") as file:
    lines = dict(line.split(":", 1) for line in file)
def is_ignored(number):
    # Python itself ignores these two, whatever they were before.
    return int(lines["SigIgn"], 16) >> number - 1 & 1 and number not in (13, 25)
print(json.dumps({
    "environment": dict(os.environ),
    "group": os.getpgrp() == os.getpid(),
    "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    "ignored": [n for n in range(1, 32) if is_ignored(n)],
    "input": os.read(0, 1).decode(),
}))
"""


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    """A spawner with a variable of its own and one that varies."""
    spawner = Spawner({"BASE": "b", "NUMBER": "old"}, ("NUMBER",))
    yield spawner
    spawner.close()


def output_of(spawner: Spawner, argv: tuple[str, ...], number: bytes, more: dict[str, str]) -> str:
    """What a program prints, once it has ended well."""
    reader, writer = os.pipe()
    try:
        pid = spawner.spawn(argv[0], argv, (number,), more, writer, writer)
    finally:
        os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    assert os.waitpid(pid, 0)[1] == 0, text
    return text


def test_a_program_sees_its_own_environment_and_nothing_else(spawner: Spawner) -> None:
    """The varying value is this call's, and a task's own variables end with the task."""
    argv = (sys.executable, "-c", TELL)

    first = json.loads(output_of(spawner, argv, b"1", {"BASE": "mine", "EXTRA": "ü=x"}))
    second = json.loads(output_of(spawner, argv, b"2", {}))
    third = json.loads(output_of(spawner, argv, b"3", {"NUMBER": "own"}))

    first["environment"].pop("LC_CTYPE", None)  # Python's own doing
    assert first["environment"] == {"BASE": "mine", "EXTRA": "ü=x", "NUMBER": "1"}
    assert second["environment"]["BASE"] == "b"
    assert second["environment"]["NUMBER"] == "2"
    assert "EXTRA" not in second["environment"]
    assert third["environment"]["NUMBER"] == "own"


def test_a_program_starts_in_a_clean_state(spawner: Spawner) -> None:
    """Own process group, no blocked signal, end of input at once."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        told = json.loads(output_of(spawner, (sys.executable, "-c", TELL), b"1", {}))
        still = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    assert signal.SIGTERM in still

    assert told["group"] is True
    assert told["blocked"] == []
    assert told["ignored"] == []
    assert told["input"] == ""


def test_what_this_process_ignores_programs_do_not_ignore() -> None:
    """All signals are as usual in a program: those of a terminal, SIGPIPE, and any other."""
    numbers = (
        *(signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM),
        *(signal.SIGUSR1, signal.SIGWINCH, signal.SIGRTMIN),
    )
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        spawner = Spawner({}, ())
        line = "grep SigIgn /proc/$$/status"
        reader, writer = os.pipe()
        pid = spawner.spawn("/bin/sh", ("/bin/sh", "-c", line), (), {}, writer, writer)
        os.close(writer)
        _, status = os.waitpid(pid, 0)
        printed = os.read(reader, 1000)
        os.close(reader)
        spawner.close()
        os.kill(os.getpid(), signal.SIGHUP)  # is still without effect on this process
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

    assert status == 0, printed
    ignored = int(printed.split()[1], 16)
    # The C library keeps two signals for itself and has programs begin without them.
    assert not ignored & ~(1 << 31 | 1 << 32), printed


def test_what_cannot_be_started_says_so(spawner: Spawner) -> None:
    """The errors of os.posix_spawn; a zero byte never cuts a word short."""
    with pytest.raises(FileNotFoundError) as missing:
        spawner.spawn("/no/such/program", ("x",), (b"1",), {}, 1, 2)
    assert missing.value.filename == "/no/such/program"
    with pytest.raises(PermissionError):
        spawner.spawn("/etc/passwd", ("x",), (b"1",), {}, 1, 2)
    with pytest.raises(ValueError, match="null"):
        spawner.spawn("/bin/tr\0ue", ("x",), (b"1",), {}, 1, 2)
    with pytest.raises(ValueError, match="null"):
        spawner.spawn("/bin/true", ("x", "a\0b"), (b"1",), {}, 1, 2)
    with pytest.raises(ValueError, match="null"):
        spawner.spawn("/bin/true", ("x",), (b"1",), {"A": "a\0b"}, 1, 2)
    for name in ("", "BASE=x"):
        with pytest.raises(ValueError, match="environment variable name"):
            spawner.spawn("/bin/true", ("x",), (b"1",), {name: "b"}, 1, 2)


def test_ended_children_are_heard_of_one_by_one(spawner: Spawner) -> None:
    """Exit codes, signals and what was used; then that some run, then that none is left."""
    reaper = Reaper()
    with open(os.devnull, "w") as null:
        fd = null.fileno()
        seven = spawner.spawn("/bin/sh", ("sh", "-c", "exit 7"), (b"1",), {}, fd, fd)
        killed = spawner.spawn("/bin/sh", ("sh", "-c", "kill -9 $$"), (b"1",), {}, fd, fd)
        waits = spawner.spawn("/bin/sleep", ("sleep", "60"), (b"1",), {}, fd, fd)
    found = {}
    give_up = time.monotonic() + 30
    while not {seven, killed} <= found.keys():  # other tests' children may end, too
        assert time.monotonic() < give_up
        answer = reaper.wait()
        assert answer is not None
        if answer[0]:
            found[answer[0]] = answer[1:]

    assert found[seven][0] == 7
    assert found[killed][0] == -signal.SIGKILL
    assert found[seven][1].max_rss > 100_000
    assert found[seven][1].user + found[seven][1].system > 0
    answer = reaper.wait()
    assert answer is not None
    assert answer[0] == 0
    os.kill(waits, signal.SIGKILL)
    os.waitpid(waits, 0)
    left = reaper.wait()
    assert left is None or (left[0] == 0 and children()), "other tests' children may be there"
