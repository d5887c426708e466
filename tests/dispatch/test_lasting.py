"""Workers that go on when who started them is gone."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.dispatch.few_words import Server, job

from bursar.dispatch.accounts import find_account
from bursar.dispatch.home import prepare_home
from bursar.dispatch.lasting import LastingStarter, Terms
from bursar.dispatch.launch import Endpoint, LocalWorkers
from bursar.dispatch.limits import LEAST_MEMORY, ResourceLimits
from bursar.dispatch.orphans import kill_leftovers, workers_of
from bursar.dispatch.wire import Leave
from bursar.model.errors import SiteError
from bursar.model.outcome import Status

Until = Callable[[Callable[[], bool]], Awaitable[None]]

SYSTEM_PYTHON = "/usr/bin/python3"
"""One that everybody may run; that of the tests often lies in root's own folder."""


@pytest.fixture
def run(tmp_path: Path) -> str:
    """Identity of a service; nothing of it is left behind."""
    run = f"lasting-{os.getpid()}-{tmp_path.name}"
    yield run
    kill_leftovers(run)


def make(starter: LastingStarter, events: list[str], processors: int = 1) -> LocalWorkers:
    """The workers of a lease."""
    return LocalWorkers(
        "here", "l1", processors, rigid=True, on_event=events.append, starter=starter
    )


def endpoint(server: Server, run: str) -> Endpoint:
    """Where they report."""
    return Endpoint(address=("127.0.0.1", server.port), token="secret", run=run)


STARTS = """
import asyncio, json, os, sys
from bursar.dispatch.launch import Endpoint, LocalWorkers
from bursar.dispatch.lasting import LastingStarter, Terms

async def main():
    port, run = int(sys.argv[1]), sys.argv[2]
    workers = LocalWorkers(
        "here", "l1", 1, rigid=True, on_event=print, starter=LastingStarter(Terms())
    )
    await workers.start(Endpoint(address=("127.0.0.1", port), token="secret", run=run))
    print(json.dumps(workers.pids), flush=True)
    if sys.argv[3] == "killed":
        await asyncio.Event().wait()
    await workers.leave_running()

asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["killed", "left"])
def test_workers_survive_who_started_them_and_are_found_again(
    tmp_path: Path, until: Until, run: str, end: str
) -> None:
    """
    Killed or ended well; the next one takes them over, and releases them as its own.
    """

    async def main() -> None:
        server = Server(tmp_path)
        await server.open()
        first = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STARTS, str(server.port), run, end, stdout=subprocess.PIPE
        )
        assert first.stdout is not None
        pids = json.loads(await first.stdout.readline())
        await until(lambda: bool(server.hellos))
        server.give(job(1, f"touch {tmp_path}/on; read line < {tmp_path}/gate; echo $line"))
        os.mkfifo(tmp_path / "gate")
        await until((tmp_path / "on").exists)
        if end == "killed":
            first.kill()
        async with asyncio.timeout(20):
            await first.wait()
        assert first.returncode == (-signal.SIGKILL if end == "killed" else 0)
        assert workers_of(run) == pids

        events: list[str] = []
        workers = make(LastingStarter(Terms(), living=workers_of(run)), events)
        await workers.start(endpoint(server, run))
        assert workers.pids == pids
        await asyncio.to_thread((tmp_path / "gate").write_text, "on\n")
        await until(lambda: 1 in server.results)
        assert server.results[1].stdout == b"on\n"
        server.say(Leave())
        await workers.release()
        assert (events, workers.pids, workers_of(run)) == ([], {}, {})
        assert len(server.hellos) == 1
        await server.close()

    asyncio.run(main())


def test_one_that_was_taken_over_and_dies_is_replaced(
    tmp_path: Path, until: Until, run: str
) -> None:
    """
    Nobody learns how it ended; what it ran goes, and another one takes its place.
    """

    async def main() -> None:
        server = Server(tmp_path)
        await server.open()
        events: list[str] = []
        earlier = make(LastingStarter(Terms()), events)
        await earlier.start(endpoint(server, run))
        await until(lambda: bool(server.hellos))
        await earlier.leave_running()
        pid = workers_of(run)["here-l1-0"]
        workers = make(LastingStarter(Terms(), living=workers_of(run)), events)
        await workers.start(endpoint(server, run))
        server.give(job(1, f"touch {tmp_path}/on; sleep 60"))
        await until((tmp_path / "on").exists)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # it was ours after all
        await until(lambda: len(server.hellos) == 2)
        assert events == ["worker here-l1-0 died (it is gone) and is replaced"]
        assert workers.pids.keys() == workers_of(run).keys() == {"here-l1-0"}
        server.say(Leave())
        await workers.release()
        await server.close()

    asyncio.run(main())


def test_a_number_that_is_another_process_now_is_not_taken_over(tmp_path: Path, run: str) -> None:
    """
    Between the look and the hold the worker may end, and its number be given to another one.
    """
    starter = LastingStarter(Terms(), living={"here-l1-0": os.getpid(), "here-l1-1": 1 << 22})

    assert starter.adopt("here-l1-0", run) is None
    assert starter.adopt("here-l1-1", run) is None


def test_what_cannot_be_started_is_one_line(tmp_path: Path, run: str) -> None:
    """
    An interpreter that is not there.
    """

    async def main() -> None:
        workers = make(LastingStarter(Terms(python=str(tmp_path / "none"))), [])
        with pytest.raises(SiteError, match="here: cannot start a worker: No such file"):
            await workers.start(Endpoint(address=("127.0.0.1", 1), token="", run=run))

    asyncio.run(main())


def test_tasks_find_nothing_of_the_service(
    tmp_path: Path, until: Until, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Neither its variables, nor its folder, nor its terminal; their files are nobody else's.
    """
    monkeypatch.setenv("BURSAR_SERVICE__SECRET", "hush")
    monkeypatch.setenv("PYTHONPATH", "/hush")

    async def main() -> None:
        server = Server(tmp_path)
        await server.open()
        terms = Terms(
            limits=ResourceLimits(memory=LEAST_MEMORY, file_size=100_000),
            environment={"GIVEN": "yes"},
        )
        workers = make(LastingStarter(terms), [])
        await workers.start(endpoint(server, run))
        await until(lambda: bool(server.hellos))
        pid = workers.pids["here-l1-0"]
        assert os.getsid(pid) == pid
        assert os.readlink(f"/proc/{pid}/cwd") in ("/", str(tmp_path / "work"))
        server.give(
            job(1, "env; umask; ulimit -v; ulimit -c"),
            job(2, "head -c 200000 /dev/zero > x"),
            job(3, "head -c 200000 /dev/zero"),
        )
        await until(lambda: len(server.results) == 3)
        said = server.results[1].stdout.decode()
        assert "hush" not in said
        assert "GIVEN=yes\n" in said
        assert said.endswith(f"0077\n{LEAST_MEMORY // 1024}\n0\n")
        assert server.results[2].status is Status.FAILED
        assert "File too large" in server.results[3].reason  # its stream; the worker goes on
        server.say(Leave())
        await workers.release()
        await server.close()

    asyncio.run(main())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start others' processes")
@pytest.mark.skipif(not os.access(SYSTEM_PYTHON, os.X_OK), reason="needs a Python for everybody")
def test_tasks_run_as_their_user_in_their_home_only(tmp_path: Path, until: Until, run: str) -> None:
    """
    Workers of nobody's: its home is open to it, another one's and the service's are not.
    """
    for folder in [tmp_path, *list(tmp_path.parents)[:3]]:
        folder.chmod(folder.stat().st_mode | 0o011)
    nobody = find_account("nobody")
    mine, other = tmp_path / "mine", tmp_path / "other"
    prepare_home(str(mine), nobody.owner)
    prepare_home(str(other), (12345, 12345))
    (other / "files" / "secret").write_text("hush")
    (mine / "files" / "in").write_text("hello")
    os.chown(mine / "files" / "in", *nobody.owner)

    async def main() -> None:
        server = Server(tmp_path)
        await server.open()
        path = [entry for entry in sys.path if entry.endswith(("site-packages", "src"))]
        terms = Terms(
            account=nobody,
            python=SYSTEM_PYTHON,
            environment={"PYTHONPATH": os.pathsep.join(path)},
        )
        workers = make(LastingStarter(terms), [])
        await workers.start(endpoint(server, run))
        await until(lambda: bool(server.hellos))
        home = {"home": str(mine)}
        server.give(
            job(1, "id -u; id -G; echo $HOME $USER; pwd", **home),
            job(
                2,
                "cat in > out",
                inputs=("in",),
                outputs=("out",),
                **home,
            ),
            job(3, f"cat {other}/files/secret", **home),
            job(4, f"mv {mine}/files {mine}/moved", **home),
            job(5, "head -c 100000 /dev/zero", **home),
            job(6, "echo", home=str(other)),
        )
        await until(lambda: len(server.results) == 6)
        results = server.results
        uid, groups, user, folder = results[1].stdout.decode().splitlines()
        assert (int(uid), sorted(map(int, groups.split()))) == (nobody.uid, sorted(nobody.groups))
        assert user == f"{nobody.home} nobody"
        assert folder.startswith(f"{mine}/work/")
        assert results[2].status is Status.SUCCEEDED, results[2].reason
        assert (mine / "files" / "out").read_text() == "hello"
        assert (mine / "files" / "out").stat().st_uid == nobody.uid
        for task in (3, 4, 6):
            assert results[task].status is Status.FAILED
        assert b"Permission denied" in results[3].stderr
        assert (mine / "logs" / "t5.1.stdout").stat().st_size == 100_000
        server.say(Leave())
        await workers.release()
        await server.close()

    asyncio.run(main())
