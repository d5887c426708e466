"""Processes killed in mid-run: nothing is lost, nothing stays running, nothing counts twice."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bursar.dispatch.linux_processes import kill_leftovers
from bursar.engine.dispatcher import Dispatcher
from bursar.model.task import Shell, Status, Task
from bursar.worker.launch import LocalWorkers, split_processors


def sleepers(word: str) -> list[int]:
    """Processes with this word on their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                command = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in command.split(b"\0"):
                found.append(int(name))
    return found


def test_a_killed_workers_task_runs_again_alone(room: Any, until: Any) -> None:
    """
    After kill -9 of a worker its task is lost, killed and tried again.
    """
    word = f"{os.getpid()}.125"
    log = room.path / "log"
    second = f"sleep 0.1; pgrep -f -x 'sleep {word}' >> {log}; exit 0"
    line = f"if test -e {log}; then {second}; fi; setsid sleep {word} & echo > {log}; sleep {word}"

    async def kill(dispatcher: Dispatcher, workers: LocalWorkers) -> None:
        await until(lambda: log.exists() and log.stat().st_size)
        os.kill(workers.pids["local-lease-1-0"], signal.SIGKILL)
        await dispatcher.wait()

    outcomes = room.carry_out([Task(id="t", steps=(Shell(line),))], processors=1, meanwhile=kill)

    assert [o.status for o in outcomes] == [Status.LOST, Status.SUCCEEDED]
    assert log.read_text() == "\n"
    assert sleepers(word) == []
    assert any("is replaced" in event for event in room.events)


def test_a_worker_that_keeps_dying_is_given_up(room: Any, until: Any, monkeypatch: Any) -> None:
    """
    A broken machine must not start processes for ever.
    """
    monkeypatch.setattr("bursar.worker.launch.MOST_DEATHS", 2)

    async def kill(dispatcher: Dispatcher, workers: LocalWorkers) -> None:
        killed: set[int] = set()
        while workers.workers:
            for pid in set(workers.pids.values()) - killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            await asyncio.sleep(0.005)
        assert len(killed) == 3

    room.carry_out([], processors=1, meanwhile=kill)

    assert any("is given up" in event for event in room.events)


RUNNER = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path

    from bursar_devtools.unlimited_spending import UnlimitedSpending
    from bursar.dispatch.journal import RunJournal
    from bursar.worker.launch import Endpoint, LocalWorkers
    from bursar.engine.core import RunPaths
    from bursar.engine.dispatcher import Dispatcher
    from bursar.model.campaign import Retry
    from bursar.model.task import Shell
    from bursar.model.task import Task

    room = Path(sys.argv[1])

    async def main():
        journal = RunJournal(room / "journal.sqlite")
        line = f"echo $BURSAR_TASK >> {room}/ran; sleep 0.01; exit 0"
        tasks = [Task(id=f"t{i}", steps=(Shell(line),)) for i in range(200)]
        dispatcher = Dispatcher(
            tasks, journal=journal, guard=UnlimitedSpending(), retry=Retry(), run=sys.argv[2],
            folders=RunPaths(root=room / "campaign", files=room / "files",
                            work=room / "work", logs=room / "logs"),
            past=journal.load().attempts,
        )
        await dispatcher.start()
        workers = LocalWorkers("local", "lease-1", 4, rigid=False, on_event=print)
        await workers.start(Endpoint(
            address=dispatcher.address, token=dispatcher.token, run=sys.argv[2]))
        await dispatcher.wait()
        await dispatcher.close()
        await workers.release()

    asyncio.run(main())
    """
)


@pytest.mark.ci
def test_a_killed_runner_is_resumed_and_every_result_is_there_once(room: Any) -> None:
    """
    kill -9 of the runner, three times: the journal ends with one success for each task.
    """
    room.journal.close()
    command = [sys.executable, "-c", RUNNER, str(room.path), room.run]
    ran = room.path / "ran"
    for goal in (20, 70, 120):
        runner = subprocess.Popen(command)
        while not ran.exists() or len(ran.read_text().split()) < goal:
            assert runner.poll() is None
        runner.kill()
        runner.wait()
    subprocess.run(command, check=True, timeout=60)

    room.open()
    outcomes = room.state.outcomes
    assert Counter(o.task for o in outcomes) == Counter(range(200))
    assert {o.status for o in outcomes} == {Status.SUCCEEDED}
    # A task may have run again whose end was not yet written: at most what was
    # on its way at each kill, and far from all of them.
    assert 200 <= len(ran.read_text().split()) < 500
    assert kill_leftovers(room.run) == 0


def test_workers_leave_when_the_runner_is_gone(room: Any) -> None:
    """
    Nothing of a run outlives it, escaped grandchildren included.
    """
    room.journal.close()
    word = f"{os.getpid()}.375"
    program = RUNNER.replace("sleep 0.01", f"setsid sleep {word} & sleep {word}")
    runner = subprocess.Popen([sys.executable, "-c", program, str(room.path), room.run])
    while len(sleepers(word)) < 8:
        assert runner.poll() is None
    runner.kill()
    runner.wait()

    asyncio.run(asyncio.wait_for(gone(word), 10))
    room.open()


async def gone(word: str) -> None:
    """Waits until no process has this word on its command line."""
    while sleepers(word):
        await asyncio.sleep(0.01)


def test_workers_share_the_processors() -> None:
    """
    One worker has all where a task needs several; else they are spread evenly.
    """
    assert split_processors(8, rigid=True) == [8]
    assert split_processors(3, rigid=False) == [1, 1, 1]
    assert split_processors(35, rigid=False) == [3] * 3 + [2] * 13
    assert sum(split_processors(1000, rigid=False)) == 1000
    assert split_processors(6, rigid=False, most=4) == [2, 2, 1, 1]
    assert split_processors(3, rigid=False, most=4) == [1, 1, 1]


def test_a_machine_has_few_workers_for_more_processors_than_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Known answers: four on a small machine, one a processor on a larger one, never above 16."""
    for machine, expected in ((None, 4), (2, 4), (6, 6), (64, 16)):
        monkeypatch.setattr(os, "cpu_count", lambda machine=machine: machine)
        workers = LocalWorkers("local", "lease", 512, rigid=False, on_event=print)
        assert len(workers._shares) == expected


def test_what_is_noted_while_the_dispatcher_closes_is_journalled(room: Any) -> None:
    """Leases end beside it: whenever one is noted, the note is neither lost nor fatal."""
    noted: list[str] = []

    async def main() -> None:
        dispatcher = room.dispatcher([])
        await dispatcher.start()
        faults: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: faults.append(what))

        async def note(dispatcher: Dispatcher) -> None:
            while True:
                dispatcher.store.note("lease", str(len(noted)))
                noted.append(str(len(noted)))
                await asyncio.sleep(0)

        noting = asyncio.create_task(note(dispatcher))
        dispatcher.store.beat()
        await asyncio.sleep(0.005)
        closing = asyncio.create_task(dispatcher.close())
        for _ in range(100):  # whoever notes for ever keeps it open for ever
            await asyncio.sleep(0)
        while not closing.done():
            noting.cancel()
            dispatcher.store.note("lease", str(len(noted)))
            noted.append(str(len(noted)))
            await asyncio.sleep(0.001)
        dispatcher.store.note("lease", "after")
        assert faults == []

    asyncio.run(main())

    told = [event.text for event in room.journal.load().events if event.kind == "lease"]
    assert told == [*noted, "after"]
