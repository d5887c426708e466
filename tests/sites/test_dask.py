"""A campaign on a real Dask cluster: the same as here, and whatever goes wrong."""

import asyncio
import contextlib
import csv
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sites.dask_clusters import DaskCluster
from tests.sites.remote.real_service import Dispatcher

import bursar
from bursar.dispatch.journal import read_journal
from bursar.dispatch.linux_processes import traces_of
from bursar.model.allocation import Allocation
from bursar.model.errors import SiteError
from bursar.model.task import Copy, Outcome, Status
from bursar.sites.dask import dask_site as dask_site
from bursar.sites.dask.dask_site import DaskSite
from bursar.sites.dask.job_executor import DaskWorker

TIMES = {"start", "end", "runtime_s", "user_s", "system_s", "max_rss", "site"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """Two workers, of two threads and of one."""
    with DaskCluster(tmp_path_factory.mktemp("dask"), threads=(2, 1)) as cluster:
        cluster.ask(os.getpid)
        yield cluster


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Dask workers do not see the run's files."""
    monkeypatch.setattr(
        dask_site, "DaskWorker", lambda **facts: DaskWorker(**{**facts, "sees_files": False})
    )


@pytest.fixture
def tls(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Certificate, key and authority of one and the same, for 127.0.0.1."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=dask", "-addext"),
            *("subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key, certificate


def shell(name: str, line: str, **more: object) -> bursar.Task:
    """A task of one line."""
    return bursar.Task(id=name, steps=(bursar.Shell(line),), **more)  # type: ignore[arg-type]


def campaign(root: Path, *tasks: bursar.Task, attempts: int = 1) -> bursar.Campaign:
    """Of these tasks."""
    return bursar.Campaign(
        name="c",
        workflow=bursar.Workflow(tasks),
        retry=bursar.Retry(attempts=attempts, backoff=0.0),
        root=root,
    )


def manifold(root: Path) -> bursar.Campaign:
    """Of everything that a task may do; its files lie in the folder."""
    (root / "in").mkdir()
    (root / "in" / "a b").write_text("spaced")
    (root / "run.sh").write_text("#!/bin/sh\necho ran $BURSAR_PROCESSORS $1 $WHO\n")
    (root / "run.sh").chmod(0o755)
    (root / "big").write_bytes(bytes(range(256)) * 12_000)  # goes as data, not as part of a graph
    file = bursar.File
    return campaign(
        root,
        shell("make", "echo made > out/m.txt", outputs=(file("out/m.txt"),)),
        shell("read", "cat out/m.txt 'in/a b'", inputs=(file("out/m.txt"), file("in/a b"))),
        shell("script", "./run.sh x", inputs=(file("run.sh"),), environment={"WHO": "me"}),
        shell("big", "cat big big > copy", inputs=(file("big"),), outputs=(file("copy"),)),
        shell("wide", "echo $BURSAR_PROCESSORS", processors=2),
        shell("long", "yes | head -c 200000; printf e%.0s 1 2 3 >&2"),
        shell("fails", "echo why >&2; exit 7"),
        shell("unmade", "true", outputs=(file("none"),)),
        shell("missing", "true", inputs=(file("nowhere"),)),
        shell("slow", "sleep 60", wall_limit=0.3),
        bursar.Task(id="absent", steps=(bursar.Exec(("no-such-program",)),)),
        *(shell(f"n{i}", f"echo {i}") for i in range(20)),
    )


def rows(result: bursar.RunResult) -> dict[str, dict[str, str]]:
    """What results.csv says of each task, times aside."""
    with (result.path / "results.csv").open() as file:
        return {
            row["task"]: {key: value for key, value in row.items() if key not in TIMES}
            for row in csv.DictReader(file)
        }


def shape(value: object) -> object:
    """Names and kinds of what a document holds."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in sorted(value.items())}
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    return "number" if isinstance(value, int | float) else type(value).__name__


def outcomes(result: bursar.RunResult) -> list[Outcome]:
    """All attempts."""
    return [record.outcome for record in read_journal(result.path / "journal.sqlite").records]


def printed(result: bursar.RunResult) -> dict[int, tuple[bytes, bytes]]:
    """What short streams held."""
    return {one.task: (one.stdout, one.stderr) for one in outcomes(result)}


def messages(result: bursar.RunResult) -> str:
    """What the run said."""
    events = read_journal(result.path / "journal.sqlite").events
    return "\n".join(event.text for event in events if event.kind == "message")


def soon(is_so: Callable[[], bool]) -> None:
    """Returns when it is so."""
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)


def files_below(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Of each: what is in it, and whether it can be executed."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), os.access(path, os.X_OK))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    "sees", [True, pytest.param(False, marks=pytest.mark.ci)], ids=["shared files", "files travel"]
)
def test_a_campaign_comes_out_as_on_this_machine(
    sees: bool, cluster: DaskCluster, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Results, streams, files, bill and report are the same, whether or not files are shared."""
    if not sees:
        request.getfixturevalue("blind")
    root = tmp_path / "root"
    root.mkdir()
    wanted = manifold(root)
    local = bursar.SiteFacts(name="here", processors=3, unit_price=1.0, currency="EUR")

    here = bursar.run(wanted, local, runs=tmp_path / "here", processors=3, anyway=True)
    there = bursar.run(wanted, cluster.facts(), runs=tmp_path / "there", processors=3)

    expected = rows(here)
    if not sees:  # the folder that lacks the file is another one
        assert rows(there)["missing"]["reason"] == expected["missing"]["reason"]
    assert rows(there) == expected
    assert {row["status"] for row in expected.values()} == {"succeeded", "failed", "timed-out"}
    assert printed(there) == printed(here)
    for part in ("files", "logs"):
        assert files_below(there.path / part) == files_below(here.path / part)
    for document in ("bill.json", "plan.json"):
        one, other = (json.loads((run.path / document).read_text()) for run in (here, there))
        assert shape(one) == shape(other)
    assert (there.path / "report.html").stat().st_size > 10_000
    assert shape(there.to_dict()) == shape(here.to_dict())
    bill = json.loads((there.path / "bill.json").read_text())
    assert {lease["site"] for lease in bill["leases"]} == {"dask"}


def test_hostile_names_stay_where_they_belong(
    blind: None, cluster: DaskCluster, tmp_path: Path
) -> None:
    """What a job would read or write outside the run's files fails, and says so in one line."""
    secret = tmp_path / "secret"
    secret.write_text("s")
    root = tmp_path / "root"
    root.mkdir()

    def puts(name: str, target: str) -> bursar.Task:
        steps = (bursar.Shell("echo x > x"), Copy("x", target, False, True))
        return bursar.Task(id=name, steps=steps)

    def gets(name: str, source: str) -> bursar.Task:
        return bursar.Task(id=name, steps=(Copy(source, "y", True, False),))

    result = bursar.run(
        campaign(
            root,
            puts("up", "../../up"),
            gets("absolute", str(secret)),
            gets("climb", "../secret"),
            shell("link", f"ln -s {secret} l", outputs=(bursar.File("l"),)),
            puts("well", "odd \n name/x"),
        ),
        cluster.facts(),
        runs=tmp_path / "runs",
    )

    said = {task: (row["status"], row["reason"]) for task, row in rows(result).items()}
    assert said["well"] == ("succeeded", "")
    for task in ("up", "absolute", "climb", "link"):
        assert said[task][0] == "failed", task
        assert "\n" not in said[task][1]
    assert list(files_below(result.path / "files")) == ["odd \n name/x"]
    assert secret.read_text() == "s"
    assert not (tmp_path / "up").exists()


def test_a_lost_worker_loses_no_task(cluster: DaskCluster, tmp_path: Path) -> None:
    """
    Its attempts are lost and run again, counted by us; Dask starts none again by itself.
    """
    mark = tmp_path / "began"
    line = f"echo $$ >> {mark}; sleep 1"
    wanted = campaign(tmp_path, *(shell(f"t{i}", line) for i in range(6)), attempts=3)

    def kill() -> None:
        soon(lambda: mark.exists() and len(mark.read_text().split()) >= 3)
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)

    pids = cluster.ask(os.getpid)
    killing = threading.Thread(target=kill)
    killing.start()
    result = bursar.run(wanted, cluster.facts(), runs=tmp_path / "runs")
    killing.join()

    assert result.exit_status == 0, messages(result)
    found = outcomes(result)
    assert [one.status for one in found].count(Status.SUCCEEDED) == 6
    assert Status.LOST in {one.status for one in found}
    # Every attempt that began is journalled, and no other one began.
    assert len(mark.read_text().split()) <= len(found)
    assert "the Dask worker at" in messages(result)


def test_a_task_wider_than_any_worker_is_refused(cluster: DaskCluster, tmp_path: Path) -> None:
    """
    It would wait for ever: three threads of two workers are no worker of three.
    """
    wide = replace(shell("wide", "true"), processors=3)

    with pytest.raises(SiteError, match=r'dask: task "wide" needs 3 processors, the largest .* 2'):
        bursar.run(campaign(tmp_path, wide), cluster.facts(), runs=tmp_path / "runs")


@pytest.mark.ci
def test_what_was_there_is_paid(tmp_path: Path) -> None:
    """
    Threads of a Dask worker that died cost nothing from then on.
    """

    async def hold(cluster: DaskCluster) -> tuple[float, float]:
        site = DaskSite(cluster.facts(), "run", tmp_path)
        loop = asyncio.get_running_loop()
        async with site.opened(), Dispatcher() as endpoint:
            pilot = Allocation(
                name="lease-1",
                site="dask",
                processors=2,
                start=None,
                duration=60.0,
                unit_price=1.0,
                fixed_price=0.0,
            )
            held = await site.acquire(
                pilot, endpoint, rigid=False, begin=lambda *_: None, on_event=lambda _: None
            )
            address = next(a for a in site._workers if held.threads_of(a))
            held.worker_lost(address, "is gone")
            halved = held.seconds
            before = loop.time()
            await asyncio.sleep(0.2)
            half, whole = held.seconds - halved, loop.time() - before
            await held.release()
            ended = held.seconds
            await asyncio.sleep(0.05)
            assert held.seconds == ended
            return half, whole

    with DaskCluster(tmp_path / "dask", threads=(1, 1)) as cluster:
        cluster.ask(os.getpid)
        half, whole = asyncio.run(hold(cluster))
    assert half == pytest.approx(whole / 2, rel=0.05)


def test_calls_run_there(cluster: DaskCluster, tmp_path: Path) -> None:
    """
    Values and exceptions come back, what was held is billed, and nothing is left there.
    """
    with bursar.Executor(2, sites=cluster.facts(), folder=tmp_path / "calls") as executor:
        futures = [executor.submit(lambda n: n * n, n) for n in range(5)]
        assert [future.result(60) for future in futures] == [0, 1, 4, 9, 16]
        with pytest.raises(ZeroDivisionError):
            executor.submit(lambda: 1 // 0).result(60)
    assert json.loads((tmp_path / "calls" / "bill.json").read_text())["leases"]


@pytest.mark.ci
def test_an_interrupted_run_leaves_nothing_there(cluster: DaskCluster, tmp_path: Path) -> None:
    """After Ctrl-C its tasks end at once, and so do the processes beside the Dask workers."""
    run = _Run(cluster, tmp_path, "sleep 300")
    run.process.send_signal(signal.SIGINT)

    assert run.process.wait(60) == 130, run.said()
    assert traces_of(run.identity) == set()


def test_a_killed_run_leaves_nothing_there_for_long(cluster: DaskCluster, tmp_path: Path) -> None:
    """Nobody says that it is gone; it is not heard of any more. Then it can be resumed."""
    run = _Run(cluster, tmp_path, "sleep 300", patience=3.0)
    run.process.kill()
    run.process.wait()
    assert traces_of(run.identity)

    soon(lambda: not traces_of(run.identity))


class _Run:
    """A run in a process of its own, with a task that has begun."""

    def __init__(
        self, cluster: DaskCluster, folder: Path, line: str, patience: float = 30.0
    ) -> None:
        (folder / "s.toml").write_text(
            f'[site.d]\nkind = "dask"\nscheduler = "{cluster.address}"\nprocessors = 2\n'
            "unit_price = 1\n"
        )
        (folder / "c.toml").write_text(
            f"[campaign]\nname = 'c'\n[[task]]\nid = 'a'\ncommand = '{line}'\n"
        )
        self._log = folder / "said"
        code = (
            "import sys; import bursar.sites.dask.job_executor as carrier, bursar.cli.main as cli; "
            f"carrier.PATIENCE = {patience}; "
            "sys.argv = ['bursar', 'run', 'c.toml', '--sites', 's.toml']; cli.main()"
        )
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], cwd=folder, stdout=log, stderr=log
            )
        soon(lambda: bool(list(folder.glob("runs/*/run.json"))) or self._failed())
        (path,) = folder.glob("runs/*")
        try:
            soon(lambda: _began(path) or self._failed())
            self.identity = _identity(path)
            soon(lambda: len(_programs(self.identity)) > 1 or self._failed())
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def said(self) -> str:
        """What it printed."""
        return self._log.read_text()

    def _failed(self) -> bool:
        assert self.process.poll() is None, self.said()
        return False


def _began(path: Path) -> bool:
    """Whether a run has handed in a task."""
    with contextlib.suppress(bursar.BursarError):
        return bool(read_journal(path / "journal.sqlite").transfers)
    return False


def _identity(path: Path) -> str:
    """That processes of a run bear."""
    with contextlib.closing(sqlite3.connect(path / "journal.sqlite")) as db:
        (found,) = db.execute("SELECT value FROM meta WHERE key = 'identity'").fetchone()
        return str(found)


def _programs(run: str) -> list[int]:
    """Processes that bear a run's mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"BURSAR_RUN={run}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.ci
def test_two_runs_share_a_cluster(cluster: DaskCluster, tmp_path: Path) -> None:
    """Neither knows of the other; both come to their ends, and each has its own results."""
    results: dict[int, bursar.RunResult] = {}

    def run(number: int) -> None:
        tasks = [shell(f"t{i}", f"sleep 0.05; echo {number}") for i in range(20)]
        wanted = campaign(tmp_path, *tasks)
        results[number] = bursar.run(wanted, cluster.facts(), runs=tmp_path / str(number))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for number, result in results.items():
        assert result.exit_status == 0
        assert {out for out, _ in printed(result).values()} == {f"{number}\n".encode()}


def test_a_scheduler_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """Nothing was agreed on, nothing is left behind, and there is no word of Dask's own."""
    (tmp_path / "s.toml").write_text(
        '[site.d]\nkind = "dask"\nscheduler = "tcp://127.0.0.1:9"\nprocessors = 1\n'
    )
    (tmp_path / "c.toml").write_text("[campaign]\nname='c'\n[[task]]\nid='a'\ncommand='true'\n")
    code = (
        "import sys; import bursar.sites.dask.dask_site as site, bursar.cli.main as cli; "
        "site.CONNECT = 0.5; sys.argv = ['bursar', 'run', 'c.toml', '--sites', 's.toml']; "
        "cli.main()"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )

    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("bursar: ")]
    assert line.startswith("bursar: d: the Dask scheduler at tcp://127.0.0.1:9 does not answer: ")
    assert "Traceback" not in done.stderr
    assert "distributed" not in done.stderr


def test_a_site_says_when_dask_is_missing_or_other(
    cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The package is an extra; workers with another version of ours are not to be used."""
    site = DaskSite(cluster.facts(), "run", tmp_path)

    async def use() -> None:
        async with site.opened():
            pass

    monkeypatch.setattr(dask_site, "VERSION", "0.0.0")
    with pytest.raises(SiteError, match=r"dask: the Dask workers have bursar .*, expected 0\.0\.0"):
        asyncio.run(use())
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(bursar.InputError, match="needs the package distributed"):
        asyncio.run(use())


@pytest.mark.ci
def test_over_tls_and_without_a_scheduler(
    tls: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Certificates are shown both ways. A scheduler that dies takes the pilot with it, and says so.
    """
    mark = tmp_path / "began"
    quick = campaign(tmp_path, shell("a", "echo there"))
    slow = campaign(tmp_path, shell("a", f"echo x >> {mark}; sleep 300"))

    def kill() -> None:
        soon(mark.exists)
        secured.kill_scheduler()

    with DaskCluster(tmp_path / "dask", threads=(1,), tls=tls) as secured:
        secured.ask(os.getpid)
        assert secured.address.startswith("tls://")
        first = bursar.run(quick, secured.facts(), runs=tmp_path / "runs")
        monkeypatch.setattr(dask_site, "CONNECT", 4.0)
        killing = threading.Thread(target=kill)
        killing.start()
        second = bursar.run(slow, secured.facts(), runs=tmp_path / "runs")
        killing.join()

    assert printed(first) == {0: (b"there\n", b"")}
    assert second.exit_status != 0
    assert "the connection to the scheduler is lost" in messages(second)
    assert mark.read_text() == "x\n"
