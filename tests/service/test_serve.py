"""A real service, real workers, real kills: nothing that was acknowledged is lost."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.live_files import files_below
from tests.service.service_process import PATIENCE, Served, is_alive, served

from bursar.dispatch.linux_processes import workers_of
from bursar.formats.campaign_file import read_campaign
from bursar.market.agreement import DealTemplate
from bursar.market.trade_messages import Accept, Confirm, RequestQuote
from bursar.model.errors import InputError, SiteError
from bursar.model.money import Pricing
from bursar.remote.client import ServiceClient
from bursar.remote.http_transport import RemoteProblem
from bursar.remote.messages import TaskSpec
from bursar.remote.submission import specs_of
from bursar.service.billing.service_ledger import read_service_accounts

# The first service of a test process waits for the imports of the process that it is forked from
# (tests.preloaded). After a change of compiled code, and on a busy machine, these take minutes.
pytestmark = pytest.mark.timeout(300)


def until(holds: Callable[[], bool]) -> None:
    """Waits for something that must come."""
    give_up = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served") / "state", interpreter=True) as service:
        yield service


@pytest.fixture
def service(shared: Served) -> Served:
    """One for several tests, which kill it now and then."""
    if shared.process is None:
        shared.start()
    return shared


def note(folder: Path) -> TaskSpec:
    """Writes down that it was started and by whom, waits for a word, and says who it was."""
    script = (
        f"echo $$ >> {folder}/begun; while [ ! -e {folder}/go ]; do sleep 0.05; done; echo $$ done"
    )
    return TaskSpec(shell=script)


PRICED = """
[site]
processors = 2
unit_price = "3600 SU/core-hour"
[market]
price_shared = true
"""
"""One SU a second."""


def test_a_thousand_tasks_and_several_kills(tmp_path: Path) -> None:
    """Each has one result, whatever the server was doing when it was killed; money adds up."""
    with served(tmp_path / "state", PRICED) as service, service.client() as client:
        handle = client.create_instance(label="many").id
        numbers = [*client.submit(handle, [TaskSpec(command=("/bin/echo", "x"))] * 400)]
        for already in (100, 200, 300):
            until(lambda least=already: client.instance(handle).results > least)  # type: ignore[misc]
            service.kill()
            service.start()
            numbers += client.submit(handle, [TaskSpec(shell=f"echo {already}")] * 200)
        results = list(client.results(handle))

        assert numbers == list(range(1000))
        assert Counter(r.task for r in results) == Counter(range(1000))
        assert [r.cursor for r in results] == list(range(1, 1001))
        assert {r.state for r in results} == {"succeeded"}
        assert client.instance(handle).counts.succeeded == 1000
        # Shared processors are paid for the seconds that the results tell, once.
        used = sum(r.end - r.start for r in results)
        assert client.account().spent == pytest.approx(used * 1e6, abs=1000)


def test_a_workflow_survives_kills_of_the_service(tmp_path: Path) -> None:
    """
    Each task starts when those before it have succeeded and their results are on disk, whatever
    the service was doing when it was killed; a failure is tried again, or ends what follows.
    """
    wait = f"touch {tmp_path}/begun; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    text = f"""
[tasks.first]
command = "{wait}; echo 1 > one"
outputs = ["one"]
[tasks.second]
command = "mkdir {tmp_path}/tried && exit 3; cat one one > two"
inputs = ["one"]
outputs = ["two"]
[tasks.third]
command = "cat two"
inputs = ["two"]
[tasks.broken]
command = "exit 1"
retries = 0
[tasks.never]
command = "touch {tmp_path}/never"
after = ["broken"]
[retry]
attempts = 3
backoff = 0.1
"""
    (tmp_path / "campaign.toml").write_text(text)
    with served(tmp_path / "state", PRICED) as service, service.client() as client:
        handle = client.create_instance().id
        client.submit(handle, specs_of(read_campaign(tmp_path / "campaign.toml")))
        until(lambda: (tmp_path / "begun").exists() and client.instance(handle).results >= 2)
        service.kill()
        service.start()
        counts = client.instance(handle).counts
        assert (counts.waiting + counts.running, counts.failed, counts.skipped) == (3, 1, 1)
        (tmp_path / "go").touch()
        until(lambda: client.instance(handle).results >= 3)
        service.kill()
        service.start()
        results = {result.label: result for result in client.results(handle)}

    states = {label: result.state for label, result in results.items()}
    assert states == {
        "first": "succeeded",
        "second": "succeeded",
        "third": "succeeded",
        "broken": "failed",
        "never": "skipped",
    }
    assert results["third"].stdout == "1\n1\n"
    assert results["second"].attempt >= 2
    assert not (tmp_path / "never").exists()


def buy(client: ServiceClient, processors: int, seconds: float) -> str:
    """An agreement from now on."""
    template = DealTemplate(processors=processors, seconds=seconds, earliest=time.time())
    about = {"deal": f"deal-{time.time()}", "sender": "owner", "to": "here"}
    (quote,) = client.trade(RequestQuote(**about, number=1, template=template))
    (answer,) = client.trade(Accept(**about, number=2, of=quote.number))
    assert isinstance(answer, Confirm)
    return answer.agreement.id


def test_what_is_bought_is_delivered_and_paid(tmp_path: Path) -> None:
    """Its tasks have its processors, and shared ones make room; killed or not, it is paid once."""
    with served(tmp_path / "state", PRICED) as service, service.client() as client:
        shared = client.create_instance().id
        wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
        client.submit(shared, [TaskSpec(shell=wait, tries=100)] * 2)
        until(lambda: client.instance(shared).counts.running == 2)
        agreement = buy(client, 2, 3600.0)
        until(lambda: client.agreement(agreement).ready == 2)
        assert client.instance(shared).counts.running == 0
        handle = client.create_instance(agreement=agreement).id
        client.submit(handle, [TaskSpec(shell="echo bought")] * 10)
        assert {r.stdout for r in client.results(handle)} == {"bought\n"}
        service.kill()
        service.start()
        until(lambda: client.agreement(agreement).ready == 2)
        (tmp_path / "go").touch()
        ended = client.cancel_agreement(agreement)

        account = client.account()
        assert ended.begun is not None
        assert ended.ended is not None
        assert 0 < ended.charged <= 2e6 * (ended.ended - ended.begun)
        assert (account.held, account.spent >= ended.charged) == (0, True)
        assert {r.state for r in client.results(shared)} == {"succeeded"}
        with pytest.raises(InputError, match="is in use by process"):
            read_service_accounts(service.folder)
        service.end()

        # Shared processors are posted about once an hour, an agreement when it ends.
        accounts = read_service_accounts(service.folder).accounts
        paid = [row.amount for row in accounts.rows if row.kind == "settle"]
        assert paid == [ended.charged] == [accounts.balance("provider:here (owner)")]


@pytest.mark.parametrize("gently", [False, True], ids=["killed", "ended"])
def test_a_running_task_outlives_the_server(service: Served, tmp_path: Path, gently: bool) -> None:
    """Its process goes on; the next life hears its result, and runs it no second time."""
    with service.client() as client:
        handle = client.create_instance().id
        client.submit(handle, [note(tmp_path)])
        until((tmp_path / "begun").exists)
        pid = int((tmp_path / "begun").read_text())
        worker = parent_of(pid)
        assert worker in workers_of(service.run).values()
        if gently:
            assert service.end() == 0
        else:
            service.kill()
        assert is_alive(pid)
        service.start()
        assert worker in workers_of(service.run).values()
        until(lambda: client.instance(handle).counts.running == 1)
        (tmp_path / "go").touch()
        (result,) = client.results(handle)

        assert result.stdout == f"{pid} done\n"
        assert result.attempt == 1
        assert (tmp_path / "begun").read_text() == f"{pid}\n"


def test_what_ended_while_nobody_served_is_told(service: Served, tmp_path: Path) -> None:
    """Its worker has kept the outcome, and says it to the next life."""
    with service.client() as client:
        handle = client.create_instance().id
        client.submit(handle, [note(tmp_path)])
        until((tmp_path / "begun").exists)
        pid = int((tmp_path / "begun").read_text())
        service.kill()
        (tmp_path / "go").touch()
        until(lambda: not is_alive(pid))
        service.start()
        (result,) = client.results(handle)

        assert (result.stdout, result.attempt) == (f"{pid} done\n", 1)


def test_a_lost_worker_loses_no_task(service: Served, tmp_path: Path) -> None:
    """Killed while the server was away, its task runs again; it is replaced."""
    with service.client() as client:
        handle = client.create_instance().id
        client.submit(handle, [note(tmp_path)])
        until((tmp_path / "begun").exists)
        pid = int((tmp_path / "begun").read_text())
        service.kill()
        for worker in workers_of(service.run).values():
            os.kill(worker, 9)
        service.start()
        assert not is_alive(pid)
        (tmp_path / "go").touch()
        (result,) = client.results(handle)

        assert result.state == "succeeded"
        assert len((tmp_path / "begun").read_text().split()) == 2


def test_a_draining_service_takes_nothing_more(service: Served, tmp_path: Path) -> None:
    """It says so, with the reason, and is not ready; what runs ends and is told."""
    with service.client() as client, ServiceClient(client.access, patience=0.0) as hasty:
        handle = client.create_instance().id
        client.submit(handle, [note(tmp_path)])
        until((tmp_path / "begun").exists)
        client.drain()

        with pytest.raises((RemoteProblem, SiteError), match="takes nothing more"):
            hasty.submit(handle, [TaskSpec(shell="true")])
        answer = httpx.get(f"{client.access.url}/v1/ready")
        assert (answer.status_code, answer.json()["status"]) == (503, "draining")
        assert hasty.health().status == "ok"
        (tmp_path / "go").touch()
        (result,) = client.results(handle)
        assert result.state == "succeeded"
    until(lambda: "drained: no task runs any more" in service.log.read_text())
    service.end()
    assert said_at_the_end(service).count("drained: no task runs any more") == 1


@pytest.mark.ci
def test_the_log_says_what_draining_has_left(service: Served, tmp_path: Path) -> None:
    """And that the service has ended; the next life has what went on."""
    with service.client() as client:
        handle = client.create_instance().id
        client.submit(handle, [note(tmp_path)])
        until((tmp_path / "begun").exists)
        service.end()
        *_, left, last = said_at_the_end(service)
        assert (left, last) == ("drained: 1 task goes on with the workers", "ended")
        service.start()
        (tmp_path / "go").touch()
        (result,) = client.results(handle)
        assert result.state == "succeeded"


def said_at_the_end(service: Served) -> list[str]:
    """The last messages of the log."""
    return [json.loads(line)["message"] for line in service.log.read_text().splitlines()[-5:]]


def test_a_price_that_was_acknowledged_holds(tmp_path: Path) -> None:
    """After kill -9 and when the file is read again; until the file itself asks for another."""
    priced = "[site]\nprocessors = 1\nunit_price = {}\n"
    with served(tmp_path / "state", priced.format(0.25)) as service, service.client() as client:

        def asked() -> float | None:
            return client.site().unit_price

        assert asked() == 0.25
        url = f"{client.access.url}/v1/trade/prices"
        kind = {"Content-Type": "application/json"}
        said = httpx.put(url, content=msgspec.json.encode(Pricing(0.5)), headers=kind)
        assert said.status_code == 204, said.text
        service.kill()
        service.start()
        assert asked() == 0.5
        read = service.log.read_text().count("were read again")
        assert service.process is not None
        service.process.send_signal(signal.SIGHUP)
        until(lambda: service.log.read_text().count("were read again") > read)
        assert asked() == 0.5
        service.kill()
        service.text = priced.format(0.75)
        service.start()
        assert asked() == 0.75


@pytest.mark.ci
def test_it_waits_for_what_runs_when_it_is_told_to(tmp_path: Path) -> None:
    """Until the drain's time is over; the results are there in the next life."""
    with served(tmp_path / "state", "", "--drain-timeout", "60s") as service:
        with service.client() as client:
            handle = client.create_instance().id
            client.submit(handle, [TaskSpec(shell="sleep 1; echo late")])
            until(lambda: client.instance(handle).counts.running == 1)
        assert service.end() == 0
        service.start()
        with service.client() as client:
            assert [r.stdout for r in client.page(handle).results] == ["late\n"]


def test_a_torn_journal_is_mended_and_told(service: Served) -> None:
    """What was acknowledged is there; what was half written is dropped, and a spoilt note said."""
    with service.client() as client:
        handle = client.create_instance(label="kept").id
        service.kill()
        with (service.folder / "journal" / "store.sqlite-wal").open("ab") as file:
            file.write(b"\x07torn" * 9)
        (service.folder / "journal" / "store.head").write_bytes(b"torn")
        service.start()
        assert client.instance(handle).label == "kept"

    (line,) = service.told["repaired"]
    assert "the note of the last transaction was damaged" in line
    assert "repaired" in service.log.read_text()


def test_a_journal_that_has_lost_its_end_is_refused(service: Served) -> None:
    """With one line, and without a change: what was acknowledged may still be in a copy."""
    with service.client() as client:
        client.create_instance()
    service.kill()
    log = service.folder / "journal" / "store.sqlite-wal"
    data = log.read_bytes()
    log.write_bytes(data[: len(data) // 2])
    with pytest.raises(AssertionError, match=r"store\.sqlite: is damaged: it ends at transaction"):
        service.start()
    assert service.ended() == 2
    log.write_bytes(data)
    service.start()


def test_secrets_stay_where_they_belong(service: Served) -> None:
    """Not in logs, not in command lines, and in files that only the service's user reads."""
    with service.client() as client:
        handle = client.create_instance().id
        secret = "swordfish-4711"
        client.submit(
            handle, [TaskSpec(shell=f"sleep 0.1; echo {secret}", environment={"KEY": secret})]
        )
        list(client.results(handle))
        with pytest.raises(RemoteProblem):
            client.instance("0" * 32)
        lines = [
            Path(f"/proc/{pid}/cmdline").read_bytes()
            for pid in (*workers_of(service.run).values(), service.process.pid)  # type: ignore[union-attr]
        ]
    identity = (service.folder / "journal" / "service.json").read_text()
    hidden = [service.token, handle, identity[20:60], secret]
    service.end()

    log = service.log.read_text()
    for word in hidden:
        assert word not in log
        assert not any(word.encode() in line for line in lines)
    assert service.folder.stat().st_mode & 0o777 == 0o700
    for file in files_below(service.folder):
        assert not file.mode & 0o077, file.path


def test_one_service_at_a_time(service: Served) -> None:
    """A second one for the same folder says so in one line, and the first goes on."""
    second = Served(service.folder.with_name("other"), interpreter=True)
    second.folder.symlink_to(service.folder)
    with pytest.raises(AssertionError, match="is in use by process"):
        second.start()
    assert second.ended() == 2
    with service.client() as client:
        assert client.health().status == "ok"
