"""Workers that go on when who started them is gone."""

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sealing.sealing_rig import World
from tests.worker.minimal_dispatcher import Server, job

from bursar.dispatch.linux_processes import kill_leftovers, workers_of
from bursar.dispatch.wire import LeaveOrder, SealKey
from bursar.model.errors import SiteError
from bursar.model.task import Call, Outcome, Shell, Status
from bursar.sealing.certificates import Identity
from bursar.sealing.envelope import SealedTask, decode_result, encode_part
from bursar.sealing.task_sealing import TaskSealer
from bursar.service.identity.issuing import certificate_pem, identity_pem, make_authority
from bursar.worker.accounts import LEAST_MEMORY, ResourceLimits, UnixAccount, find_account
from bursar.worker.detached_workers import DetachedStarter, WorkerSpec
from bursar.worker.launch import Endpoint, LocalWorkers
from bursar.worker.python_calls import encode_call
from bursar.worker.workspace import prepare_workspace

Until = Callable[[Callable[[], bool]], Awaitable[None]]

SYSTEM_PYTHON = "/usr/bin/python3"
"""One that everybody may run; that of the tests often lies in root's own folder."""

as_others = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(SYSTEM_PYTHON, os.X_OK),
    reason="needs root, to start others' processes, and a Python for everybody",
)


@pytest.fixture
def run(tmp_path: Path) -> str:
    """Identity of a service; nothing of it is left behind."""
    run = f"lasting-{os.getpid()}-{tmp_path.name}"
    yield run
    kill_leftovers(run)


def terms_of(account: UnixAccount, seal_key: str = "") -> WorkerSpec:
    """Workers of an account, by an interpreter that everybody may run."""
    path = [entry for entry in sys.path if entry.endswith(("site-packages", "src"))]
    return WorkerSpec(
        account=account,
        python=SYSTEM_PYTHON,
        environment={"PYTHONPATH": os.pathsep.join(path)},
        seal_key=seal_key,
    )


def open_way(folder: Path) -> None:
    """Others may pass to a folder of the tests."""
    for each in [folder, *list(folder.parents)[:3]]:
        each.chmod(each.stat().st_mode | 0o011)


def make(starter: DetachedStarter, events: list[str], processors: int = 1) -> LocalWorkers:
    """The workers of a lease."""
    return LocalWorkers(
        "here", "l1", processors, rigid=True, on_event=events.append, starter=starter
    )


def endpoint(server: Server, run: str) -> Endpoint:
    """Where they report."""
    return Endpoint(address=("127.0.0.1", server.port), token="secret", run=run)


STARTS = """
import asyncio, json, os, sys
from bursar.worker.launch import Endpoint, LocalWorkers
from bursar.worker.detached_workers import DetachedStarter, WorkerSpec

async def main():
    port, run = int(sys.argv[1]), sys.argv[2]
    workers = LocalWorkers(
        "here", "l1", 1, rigid=True, on_event=print, starter=DetachedStarter(WorkerSpec())
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
        os.mkfifo(tmp_path / "gate")
        server.give(job(1, f"touch {tmp_path}/on; read line < {tmp_path}/gate; echo $line"))
        await until((tmp_path / "on").exists)
        if end == "killed":
            first.kill()
        async with asyncio.timeout(20):
            await first.wait()
        assert first.returncode == (-signal.SIGKILL if end == "killed" else 0)
        assert workers_of(run) == pids

        events: list[str] = []
        workers = make(DetachedStarter(WorkerSpec(), living=workers_of(run)), events)
        await workers.start(endpoint(server, run))
        assert workers.pids == pids
        await asyncio.to_thread((tmp_path / "gate").write_text, "on\n")
        await until(lambda: 1 in server.results)
        assert server.results[1].stdout == b"on\n"
        server.say(LeaveOrder())
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
        earlier = make(DetachedStarter(WorkerSpec()), events)
        await earlier.start(endpoint(server, run))
        await until(lambda: bool(server.hellos))
        await earlier.leave_running()
        pid = workers_of(run)["here-l1-0"]
        workers = make(DetachedStarter(WorkerSpec(), living=workers_of(run)), events)
        await workers.start(endpoint(server, run))
        server.give(job(1, f"touch {tmp_path}/on; sleep 60"))
        await until((tmp_path / "on").exists)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # it was ours after all
        await until(lambda: len(server.hellos) == 2)
        assert events == ["worker here-l1-0 died (it is gone) and is replaced"]
        assert workers.pids.keys() == workers_of(run).keys() == {"here-l1-0"}
        server.say(LeaveOrder())
        await workers.release()
        await server.close()

    asyncio.run(main())


def test_a_number_that_is_another_process_now_is_not_taken_over(tmp_path: Path, run: str) -> None:
    """
    Between the look and the hold the worker may end, and its number be given to another one.
    """
    starter = DetachedStarter(WorkerSpec(), living={"here-l1-0": os.getpid(), "here-l1-1": 1 << 22})

    assert starter.adopt("here-l1-0", run) is None
    assert starter.adopt("here-l1-1", run) is None


def test_what_cannot_be_started_is_one_line(tmp_path: Path, run: str) -> None:
    """
    An interpreter that is not there.
    """

    async def main() -> None:
        workers = make(DetachedStarter(WorkerSpec(python=str(tmp_path / "none"))), [])
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
        terms = WorkerSpec(
            limits=ResourceLimits(memory=LEAST_MEMORY, file_size=100_000),
            environment={"GIVEN": "yes"},
        )
        workers = make(DetachedStarter(terms), [])
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
        server.say(LeaveOrder())
        await workers.release()
        await server.close()

    asyncio.run(main())


@as_others
def test_tasks_run_as_their_user_in_their_home_only(tmp_path: Path, until: Until, run: str) -> None:
    """
    Workers of nobody's: its home is open to it, another one's and the service's are not.
    """
    open_way(tmp_path)
    nobody = find_account("nobody")
    mine, other = tmp_path / "mine", tmp_path / "other"
    prepare_workspace(str(mine), nobody.owner)
    prepare_workspace(str(other), (12345, 12345))
    (other / "files" / "secret").write_text("hush")
    (mine / "files" / "in").write_text("hello")
    os.chown(mine / "files" / "in", *nobody.owner)

    async def main() -> None:
        server = Server(tmp_path)
        await server.open()
        workers = make(DetachedStarter(terms_of(nobody)), [])
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
        server.say(LeaveOrder())
        await workers.release()
        await server.close()

    asyncio.run(main())


LOOKS = """
for what in mem environ maps; do head -c 1 /proc/$PPID/$what; done
ls /proc/$PPID/fd
ls -l /proc/self/fd | grep -c -- '->'
cat /proc/$$/environ > /dev/null && echo mine
"""


def call(expression: str) -> Call:
    """One of Python."""
    return Call(encode_call(pickle.dumps((eval, (expression,), {}))))


@as_others
def test_a_task_cannot_look_into_its_worker(tmp_path: Path, until: Until, run: str) -> None:
    """
    Although both run as the same user: the secret of the lease lies there. Neither a program nor
    a call of Python, into which its user can look, has anything of the worker's open.
    """
    open_way(tmp_path)
    nobody = find_account("nobody")
    home = tmp_path / "home"
    prepare_workspace(str(home), nobody.owner)

    async def main() -> dict[int, Outcome]:
        server = Server(tmp_path)
        await server.open()
        workers = make(DetachedStarter(terms_of(nobody)), [])
        await workers.start(endpoint(server, run))
        await until(lambda: bool(server.hellos))
        pid = workers.pids["here-l1-0"]
        assert workers_of(run) == {"here-l1-0": pid}  # who started it can
        assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert b"secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        looks = "open('/proc/%d/mem' % __import__('os').getppid(), 'rb').close()"
        lists = "len(__import__('os').listdir('/proc/self/fd'))"
        server.give(
            job(1, LOOKS, home=str(home)),
            job(2, steps=(call(looks),), home=str(home)),
            job(3, steps=(call(lists),), home=str(home)),
            job(4, steps=(call("open('/proc/self/environ').read(1)"),), home=str(home)),
        )
        await until(lambda: len(server.results) == 4)
        server.say(LeaveOrder())
        await workers.release()
        await server.close()
        return server.results

    results = asyncio.run(main())
    said = results[1].stderr.decode()
    assert said.count("Permission denied") == 4, said
    # The streams, and what ls has opened to list them.
    assert results[1].stdout == b"4\nmine\n"
    assert results[2].status is Status.FAILED
    assert isinstance(pickle.loads(results[2].value), PermissionError)
    # The streams, two lines to the worker, both ends of the two pipes that the output goes to, and
    # what listdir has opened.
    assert pickle.loads(results[3].value) == 10
    assert results[4].status is Status.SUCCEEDED


@as_others
def test_who_starts_a_worker_loads_nothing_of_its_account(
    tmp_path: Path, until: Until, run: str
) -> None:
    """
    Root starts it: what lies in the account's home for Python must not run as root, nor in the
    worker at all.
    """
    open_way(tmp_path)
    home = tmp_path / "ann"
    nobody = replace(find_account("nobody"), home=str(home))
    told = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import site; print(site.getusersitepackages())"],
        env={"HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    modules = Path(told.stdout.strip())
    modules.mkdir(parents=True)
    (modules / "usercustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")

    async def main() -> None:
        server = Server(tmp_path)
        await server.open()
        workers = make(DetachedStarter(terms_of(nobody)), [])
        await workers.start(endpoint(server, run))
        await until(lambda: bool(server.hellos))
        server.say(LeaveOrder())
        await workers.release()
        await server.close()

    asyncio.run(main())
    assert not (tmp_path / "ran").exists()


@as_others
@pytest.mark.parametrize("what", ["interpreter", "modules"])
def test_an_account_that_cannot_run_a_worker_is_one_line(
    tmp_path: Path, run: str, what: str
) -> None:
    """
    Root could start it: it would fail later, in the middle of a task.
    """
    open_way(tmp_path)
    terms = terms_of(find_account("nobody"))
    if what == "interpreter":
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        (closed / "python3").symlink_to(SYSTEM_PYTHON)
        terms, reason = replace(terms, python=str(closed / "python3")), "Permission denied"
    else:
        terms, reason = replace(terms, environment={}), "cannot load Bursar as nobody"

    async def main() -> None:
        workers = make(DetachedStarter(terms), [])
        with pytest.raises(SiteError, match=f"here: cannot start a worker: .*{reason}"):
            await workers.start(Endpoint(address=("127.0.0.1", 1), token="", run=run))

    asyncio.run(main())


@as_others
def test_the_sealing_key_is_nothing_that_accounts_can_read(
    tmp_path: Path, until: Until, run: str
) -> None:
    """
    Workers of any account open sealed tasks by a file that is root's alone. Those that start
    later have what is in the file by then; those that run are told of it.
    """
    open_way(tmp_path)
    nobody = find_account("nobody")
    now = time.time()
    world = World(now, make_authority("test", now))
    key = tmp_path / "key.pem"
    key.touch(mode=0o600)

    def put(identity: Identity) -> None:
        key.write_bytes(identity_pem(identity) + certificate_pem(world.authority.certificate))

    def sealer(identity: Identity) -> TaskSealer:
        return TaskSealer(
            identity.certificate, world.ann, world.trust(), level="message", clock=time.time
        )

    home = tmp_path / "home"
    prepare_workspace(str(home), nobody.owner)
    task = encode_part(SealedTask(steps=(Shell(f"cat {key}; echo opened"),), environment={}))
    first, second = sealer(world.worker), sealer(world.other_worker)

    async def main() -> dict[int, Outcome]:
        server = Server(tmp_path)
        await server.open()
        put(world.worker)
        starter = DetachedStarter(terms_of(nobody, str(key)))
        workers = make(starter, [])
        await workers.start(endpoint(server, run))
        await until(lambda: len(server.hellos) == 1)
        assert server.hellos[0].has_seal_key
        put(world.other_worker)
        server.give(
            job(1, steps=(), home=str(home), sealed=first.seal(task, "task 1")),
            job(2, steps=(), home=str(home), sealed=second.seal(task, "task 2")),
        )
        await until(lambda: len(server.results) == 2)
        server.say(SealKey(key.read_text()))
        server.give(job(3, steps=(), home=str(home), sealed=second.seal(task, "task 3")))
        await until(lambda: len(server.results) == 3)
        os.kill(workers.pids["here-l1-0"], signal.SIGKILL)
        await until(lambda: len(server.hellos) == 2)
        server.give(job(4, steps=(), home=str(home), sealed=second.seal(task, "task 4")))
        await until(lambda: len(server.results) == 4)
        server.say(LeaveOrder())
        await workers.release()
        key.unlink()
        with pytest.raises(
            SiteError, match=r"cannot start a worker: .*key\.pem cannot be read: No "
        ):
            await workers.start(endpoint(server, run))
        await server.close()
        return server.results

    results = asyncio.run(main())
    for number, user in ((1, first), (3, second), (4, second)):
        opened = decode_result(user.open(results[number].sealed, f"task {number}"))
        assert opened.stdout == b"opened\n", (number, opened)
        assert b"Permission denied" in opened.stderr
    assert results[2].status is Status.FAILED
    assert "for other workers" in results[2].reason


SQUATS = """
import socket
with socket.create_server(("127.0.0.1", 0)) as listening:
    print(listening.getsockname()[1], flush=True)
    connection, _ = listening.accept()
    print(connection.recv(1000), flush=True)
"""


@as_others
def test_a_worker_says_its_secret_to_nobody_elses_process(
    tmp_path: Path, until: Until, run: str
) -> None:
    """
    Another user has taken the service's port, and hears nothing.
    """
    squatter = subprocess.Popen(
        [SYSTEM_PYTHON, "-I", "-c", SQUATS], stdout=subprocess.PIPE, text=True, user=65534, cwd="/"
    )

    async def main() -> None:
        assert squatter.stdout is not None
        port = int(await asyncio.to_thread(squatter.stdout.readline))
        errors = tmp_path / "errors"
        workers = make(DetachedStarter(WorkerSpec(errors=str(errors))), events := [])
        await workers.start(Endpoint(address=("127.0.0.1", port), token="secret", run=run))
        assert await asyncio.to_thread(squatter.stdout.readline) == "b''\n"
        await until(lambda: bool(events))
        assert events[0] == "worker here-l1-0 died (status 1) and is replaced"
        said = errors.read_text().splitlines()[0]
        assert said == "here-l1-0: the process that listens there is of user 65534, not 0"
        await workers.release()

    with squatter:
        asyncio.run(main())
