"""Campaigns over a real service: files, money, kills."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.forked import ForkedCommand
from tests.service.service_process import PATIENCE, Served, served
from tests.sites.remote.real_service import SELLS, facts_of

import bursar
from bursar.dispatch.linux_processes import kill_leftovers
from bursar.model.money import to_micros
from bursar.model.provisioning import AcquisitionPolicy
from bursar.model.task import Copy
from bursar.remote.async_client import AsyncSession
from bursar.remote.messages import FileInfo, TaskSpec
from bursar.sites.local import this_machine


def until(holds: Callable[[], bool]) -> None:
    """Waits for something that must come."""
    give_up = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.fixture(scope="module")
def seller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Sells two processors for one SU a second."""
    with served(tmp_path_factory.mktemp("seller") / "state", SELLS) as service:
        yield service


def everything(root: Path) -> bursar.Campaign:
    """Files in and out, folders, copies both ways, long output, a failure, values of a child."""
    (root / "data").mkdir()
    (root / "data" / "one.txt").write_text("one\n")
    (root / "data" / "two.txt").write_text("two\n")
    (root / "tool.sh").write_text("#!/bin/sh\necho tool $1\n")
    (root / "tool.sh").chmod(0o755)

    both = ("data/one.txt", "data/two.txt", "tool.sh")
    tasks = (
        bursar.Task(
            id="first",
            steps=(bursar.Shell("cat data/*.txt > sum.txt; ./tool.sh x; echo $WORD"),),
            inputs=tuple(bursar.File(name) for name in both),
            outputs=(bursar.File("sum.txt"),),
            environment={"WORD": "said"},
        ),
        bursar.Task(
            id="second",
            steps=(bursar.Shell("cat sum.txt sum.txt > twice.txt; chmod +x twice.txt"),),
            inputs=(bursar.File("sum.txt"),),
            outputs=(bursar.File("twice.txt"),),
        ),
        bursar.Task(
            id="copies",
            steps=(
                Copy("data", "here", source_at_root=True, target_at_root=False),
                bursar.Shell("cat here/two.txt > mine.txt; mkdir d; echo deep > d/deep.txt"),
                Copy("mine.txt", "out/theirs.txt", source_at_root=False, target_at_root=True),
                Copy("d", "folder", source_at_root=False, target_at_root=True),
            ),
        ),
        bursar.Task(
            id="into",
            steps=(
                bursar.Shell("echo more > more.txt"),
                Copy("more.txt", "out", source_at_root=False, target_at_root=True),
            ),
            after=("copies",),
        ),
        bursar.Task(
            id="long", steps=(bursar.Shell("head -c 300000 /dev/zero | tr '\\0' x; echo e >&2"),)
        ),
        bursar.Task(id="fails", steps=(bursar.Shell("echo oh >&2; exit 7"),)),
    )
    return bursar.Campaign(
        name="all",
        workflow=bursar.Workflow(tuple(replace(task, runtime=1.0) for task in tasks)),
        goal=bursar.Goal(budget=500.0, deadline=300.0),
        retry=bursar.Retry(attempts=1),
        root=root,
    )


def looks(run: bursar.RunResult) -> list[tuple[object, ...]]:
    """What can be seen of each task, wherever it ran."""
    return [
        (o.task, o.status, o.exit_code, o.stdout, o.stdout_size, o.stderr, o.reason)
        for o in run.outcomes()
    ]


def contents(folder: Path) -> dict[str, bytes]:
    """Of all files in a folder, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def programs(folder: Path) -> set[str]:
    """Names of files in a folder that may be run."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and os.access(path, os.X_OK)
    }


def test_it_runs_as_it_would_here(tmp_path: Path, seller: Served) -> None:
    """The same files, streams and statuses; the bill is the service's invoice."""
    root = tmp_path / "campaign"
    root.mkdir()
    campaign = everything(root)

    here = bursar.run(campaign, sites=this_machine(), runs=tmp_path / "runs", name="here")
    there = bursar.run(campaign, sites=facts_of(seller), runs=tmp_path / "runs", name="there")

    assert contents(there.files) == contents(here.files)
    assert programs(there.files) == programs(here.files) == {"twice.txt"}
    assert contents(there.files)["out/more.txt"] == b"more\n"
    assert contents(there.path / "logs") == contents(here.path / "logs")
    assert looks(there) == looks(here)
    with seller.client() as client:
        invoice = client.invoice()
        assert {agreement.state for agreement in client.agreements()} == {"over"}
        assert client.instances() == []
    assert invoice.total > 0
    assert abs(to_micros(there.bill().total / 1e6) - invoice.total) <= len(invoice.lines)


PRICED = """
[site]
processors = 2
unit_price = "3600 SU/core-hour"
[market]
protocols = []
price_shared = true
credit = "500 SU"
"""
"""One SU for a second of a task, without any agreement."""


@pytest.mark.ci
def test_shared_processors_that_cost_something_are_billed(tmp_path: Path) -> None:
    """What tasks used is paid, as the service counts it; a task that is killed, too."""
    steps = (bursar.Shell("sleep 0.5"),)
    tasks = tuple(bursar.Task(id=f"t{i}", steps=steps, runtime=1.0) for i in range(3))
    campaign = bursar.Campaign(
        name="few",
        workflow=bursar.Workflow(tasks),
        goal=bursar.Goal(budget=400.0, deadline=100.0),
        root=tmp_path,
    )
    with served(tmp_path / "state", PRICED) as service:
        result = bursar.run(campaign, sites=facts_of(service), runs=tmp_path / "runs", name="r")
        with service.client() as client:
            account = client.account()
            assert client.agreements() == []
    assert result.succeeded
    paid = 500_000_000 - account.balance
    assert paid >= 1_500_000
    assert abs(to_micros(result.bill().total / 1e6) - paid) <= len(result.bill().leases)


def test_a_workflow_goes_to_a_service_as_a_whole(
    tmp_path: Path, seller: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a task fails at first, and where what follows a failure is skipped."""
    sizes: list[int] = []
    real = AsyncSession.submit

    async def counted(
        self: AsyncSession, tasks: Iterable[TaskSpec], key: str = ""
    ) -> Sequence[int]:
        specs = list(tasks)
        sizes.append(len(specs))
        return await real(self, specs, key)

    monkeypatch.setattr(AsyncSession, "submit", counted)

    def made(name: str, line: str, *after: str, **more: Any) -> bursar.Task:
        return bursar.Task(id=name, steps=(bursar.Shell(line),), after=after, runtime=1.0, **more)

    chain = [
        bursar.Task(
            id=f"c{i}",
            steps=(bursar.Shell(f"cat c{i - 1} > c{i}; echo {i} >> c{i}" if i else "echo 0 > c0"),),
            inputs=(bursar.File(f"c{i - 1}"),) if i else (),
            outputs=(bursar.File(f"c{i}"),),
            runtime=1.0,
        )
        for i in range(12)
    ]
    campaign = bursar.Campaign(
        name="whole",
        workflow=bursar.Workflow(
            (
                *chain,
                made("joined", "true", "c3", "c11"),
                made("again", "[ -e $FLAG ] || { touch $FLAG; exit 1; }", retries=1),
                made("then", "echo then", "again"),
                made("fails", "exit 7"),
                made("never", "true", "fails"),
                made("never either", "true", "never", "joined"),
            )
        ),
        goal=bursar.Goal(budget=500.0, deadline=300.0),
        retry=bursar.Retry(attempts=1, backoff=0.1),
        root=tmp_path,
    )

    def ran(sites: Any, name: str) -> bursar.RunResult:
        flag = str(tmp_path / f"flag-{name}")
        tasks = tuple(replace(t, environment={"FLAG": flag}) for t in campaign.workflow.tasks)
        own = replace(campaign, workflow=bursar.Workflow(tasks))
        return bursar.run(own, sites=sites, runs=tmp_path / "runs", name=name)

    there = ran(facts_of(seller), "there")
    submitted = list(sizes)
    here = ran(this_machine(), "here")

    def seen(run: bursar.RunResult) -> list[tuple[object, ...]]:
        return sorted((o.task, o.attempt, o.status, o.exit_code, o.stdout) for o in run.outcomes())

    assert seen(there) == seen(here)
    assert contents(there.files) == contents(here.files)
    names = [task.id for task in campaign.workflow.tasks]
    have_run = {names[o.task] for o in there.outcomes()}
    assert set(names) - have_run == {"never", "never either"}
    assert max(submitted) >= 13  # the chain, and what joins it: not one by one
    assert len(submitted) <= 6


@pytest.mark.ci
def test_an_input_goes_to_a_service_once(
    tmp_path: Path, seller: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many agreements the run buys, and instances it has there, one after the other."""
    sent: list[str] = []
    real = AsyncSession.upload

    async def counted(
        self: AsyncSession, name: str, source: Path | bytes, *, executable: bool = False
    ) -> FileInfo:
        sent.append(name)
        return await real(self, name, source, executable=executable)

    monkeypatch.setattr(AsyncSession, "upload", counted)
    (tmp_path / "in").write_bytes(b"x" * 100_000)
    # The second try comes when the first agreement has been given back.
    line = f"cat in | wc -c; [ -e {tmp_path}/tried ] || {{ touch {tmp_path}/tried; exit 1; }}"
    task = bursar.Task(
        id="t", steps=(bursar.Shell(line),), inputs=(bursar.File("in"),), runtime=1.0
    )
    campaign = bursar.Campaign(
        name="few",
        workflow=bursar.Workflow((task,)),
        goal=bursar.Goal(budget=400.0, deadline=100.0),
        retry=bursar.Retry(attempts=2, backoff=3.0),
        root=tmp_path,
    )
    with seller.client() as client:
        before = len(client.agreements())
        result = bursar.run(
            campaign,
            sites=facts_of(seller, acquiring=AcquisitionPolicy(probe_every=1.0, idle=0.0)),
            runs=tmp_path / "runs",
            name="r",
        )
        bought = len(client.agreements()) - before
    assert result.succeeded
    assert bought > 1
    assert sent == ["in"]


SLOW = """
[campaign]
name = "slow"
[goal]
budget = "500 SU"
deadline = "5 min"
[tasks.wait]
command = "touch {folder}/begun-{{n}}; while [ ! -e {folder}/go ]; do sleep 0.1; done; echo {{n}}"
parameters = {{ n = {{ from = 1, to = 3, step = 1 }} }}
runtime = "2 s"
[tasks.last]
command = "echo last >> {folder}/last"
after = ["wait"]
runtime = "1 s"
"""

SITES = """
[site.there]
kind = "remote"
url = "http://127.0.0.1:{port}"
processors = 2
patience = "20 s"
"""


class Running:
    """A run as a process of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        (folder / "slow.toml").write_text(SLOW.format(folder=folder))
        (folder / "sites.toml").write_text(SITES.format(port=port))
        self.process = self._begin("run", "slow.toml", "--sites", "sites.toml", "--name", "slow")

    def _begin(self, *words: str) -> ForkedCommand:
        nothing = Path(os.devnull)
        return ForkedCommand(words, self.folder, output=nothing, errors=self.folder / "said")

    def begun(self) -> int:
        """Tasks that were started."""
        return len(list(self.folder.glob("begun-*")))

    def go(self) -> None:
        """Tasks may end."""
        (self.folder / "go").touch()

    def resume(self) -> None:
        """The next life."""
        self.process = self._begin("run", "--resume", "slow")

    def ended(self) -> int:
        """Its exit status."""
        return self.process.wait(PATIENCE)


def test_a_killed_run_leaves_nothing_behind_once_it_is_resumed(
    tmp_path: Path, seller: Served
) -> None:
    """What its earlier life had bought and begun ends; every task ends well."""
    run = Running(tmp_path, seller.port)
    with seller.client() as client:
        before = {agreement.id for agreement in client.agreements()}
        until(lambda: run.begun() >= 1)
        run.process.kill()
        run.ended()
        (left,) = [a for a in client.agreements() if a.id not in before]
        assert left.state == "running"
        assert len(client.instances()) == 1

        run.go()
        run.resume()
        assert run.ended() == 0, (tmp_path / "said").read_text()

        assert client.agreement(left.id).state == "over"
        assert {agreement.state for agreement in client.agreements()} == {"over"}
        assert client.instances() == []
        assert client.account().held == 0
    assert (tmp_path / "last").read_text() == "last\n"
    results = bursar.resume("slow", runs=tmp_path / "runs").outcomes()
    ends = [outcome.task for outcome in results if outcome.status == "succeeded"]
    assert sorted(ends) == [0, 1, 2, 3]


@pytest.mark.ci
def test_a_service_that_comes_back_in_time_goes_on(tmp_path: Path) -> None:
    """Its workers outlive it, the run waits for it: no task runs twice."""
    with served(tmp_path / "state", SELLS) as service:
        run = Running(tmp_path, service.port)
        until(lambda: run.begun() >= 1)
        service.kill()
        service.start()
        run.go()
        assert run.ended() == 0, (tmp_path / "said").read_text()
        bill = bursar.resume("slow", runs=tmp_path / "runs").bill()
    assert [task.attempts for task in bill.tasks] == [1, 1, 1, 1]


def test_a_service_that_is_gone_is_replaced(tmp_path: Path) -> None:
    """Its tasks are begun elsewhere once it was out of reach for long enough."""
    with served(tmp_path / "state", SELLS) as service:
        facts = facts_of(service, patience=1.0)
        here = bursar.SiteFacts(name="here", processors=1, unit_price=5.0)
        done = tmp_path / "begun"
        steps = (bursar.Shell(f"echo x >> {done}; sleep 2"),)
        campaign = bursar.Campaign(
            name="few",
            workflow=bursar.Workflow(
                tuple(bursar.Task(id=f"t{i}", steps=steps, runtime=2.0) for i in range(4))
            ),
            goal=bursar.Goal(budget=500.0, deadline=100.0),
            root=tmp_path,
        )

        def kill() -> None:
            until(done.exists)
            service.kill()
            kill_leftovers(service.run)

        killer = threading.Thread(target=kill)
        killer.start()
        result = bursar.run(campaign, sites=(facts, here), runs=tmp_path / "runs", name="r")
        killer.join()
    assert result.succeeded
    assert {item.site for item in result.bill().leases} == {"there", "here"}


@pytest.mark.ci
def test_calls_run_there_too(tmp_path: Path, seller: Served) -> None:
    """Values and exceptions come back; what was leased is given back and paid."""
    with bursar.Executor(sites=facts_of(seller), folder=tmp_path / "calls") as executor:
        futures = [executor.submit(lambda n: n * n, n) for n in range(5)]
        assert [future.result(60) for future in futures] == [0, 1, 4, 9, 16]
        with pytest.raises(ZeroDivisionError):
            executor.submit(lambda: 1 // 0).result(60)
    assert (tmp_path / "calls" / "bill.json").exists()
    with seller.client() as client:
        assert {agreement.state for agreement in client.agreements()} == {"over"}
        assert client.instances() == []
