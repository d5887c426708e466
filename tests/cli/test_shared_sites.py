"""Runs at the same time on one machine: its processors are one site's, not each run's own."""

import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Folder

import bursar
from bursar.dispatch.journal import read_journal
from bursar.dispatch.journal_records import JournalState
from bursar.formats.sites_toml import read_sites
from bursar.market.ledger import Ledger
from bursar.runs.incarnations import leases_of
from bursar.sites.owners import OwnersBook
from bursar.sites.shared_leases import TICKS, price_of

SITES = """\
[site.here]
processors = 2
"""
EXCLUSIVE = SITES + "shared = false\n"
CHARGED = SITES + 'unit_price = "3600 SU/core-hour"\n'
PRICED = (
    CHARGED
    + """
[[site.here.price]]
kind = "loyalty"
steps = [[1.0, 0.5]]
"""
)


@pytest.fixture
def shared(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A folder whose runs share one owners' book."""
    monkeypatch.setenv("BURSAR_OWNERS", str(folder.path / "owners.sqlite"))
    folder.write("s.toml", SITES)
    return folder


@pytest.fixture
def stamps(shared: Folder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where tasks leave the moments of their begin and end."""
    path = shared.path / "stamps"
    path.mkdir()
    monkeypatch.setenv("HERE", str(path))
    return path


def campaign(tasks: int, seconds: float, *, gated: bool = False) -> str:
    """Each task leaves the moments of its begin and end; a gated one first waits for a file."""
    gate = "while [ ! -e $HERE/../go ]; do sleep 0.05; done; " if gated else ""
    stamp = "date +%s.%N >> $HERE/{x}-$$"
    return (
        f"[campaign]\nname = 'c'\ncommand = '{stamp}; {gate}sleep {seconds}; {stamp}'\n"
        f"[parameters]\nx = {list(range(tasks))}\n[task]\nruntime = {seconds}\n"
    )


def words(name: str, *more: str) -> tuple[str, ...]:
    return ("run", "c.toml", "--sites", "s.toml", "--name", name, *more)


def go(folder: Folder) -> None:
    """Opens the gate."""
    (folder.path / "go").touch()


def begun(stamps: Path) -> int:
    return len(list(stamps.iterdir()))


def most_at_once(stamps: Path) -> int:
    """Tasks that ran at the same moment, at the most, by what they wrote themselves."""
    steps: list[tuple[float, int]] = []
    for file in stamps.iterdir():
        begin, end = (float(line) for line in file.read_text().split())
        steps += [(begin, 1), (end, -1)]
    running = most = 0
    for _, step in sorted(steps):
        running += step
        most = max(most, running)
    return most


def held(folder: Folder) -> int:
    (site,) = read_sites(folder.path / "s.toml")
    with closing(OwnersBook(folder.path / "owners.sqlite")) as book:
        return book.others(site)


def waiting(folder: Folder) -> bool:
    """Whether a run waits for processors."""
    with closing(sqlite3.connect(folder.path / "owners.sqlite")) as db:
        return bool(db.execute("SELECT count(*) FROM waiting").fetchone()[0])


def journal(folder: Folder, name: str) -> JournalState:
    return read_journal(folder.path / "runs" / name / "journal.sqlite")


def test_two_runs_at_once_never_put_four_tasks_on_two_processors(
    shared: Folder, stamps: Path
) -> None:
    """Not shared: the second is told who has them, waits, and pays for no moment of it."""
    shared.write("s.toml", EXCLUSIVE)
    shared.write("c.toml", campaign(4, 0.1, gated=True))
    first = shared.start(*words("first", "-p", "2", "-q"))
    shared.until(lambda: held(shared) == 2, first)
    second = shared.start(*words("second", "-p", "2"))
    shared.until(lambda: waiting(shared), second)
    time.sleep(1.0)
    go(shared)
    assert second.wait(60) == 0
    said = second.communicate()[1]
    assert "2 of 2 processors are held by run first (process" in said
    assert first.wait(60) == 0
    assert begun(stamps) == 8
    assert most_at_once(stamps) == 2
    (one,) = leases_of(journal(shared, "first").events).values()
    (two,) = leases_of(journal(shared, "second").events).values()
    assert one.end is not None
    assert two.start >= one.end  # its wait is no part of its lease
    assert held(shared) == 0


@pytest.mark.parametrize(
    "sites", [EXCLUSIVE, CHARGED + "shared = false\n"], ids=["exclusive", "charged"]
)
def test_a_run_takes_what_another_leaves_free(shared: Folder, stamps: Path, sites: str) -> None:
    """Not shared: the second plans for the processor that is free and does not wait for more."""
    shared.write("s.toml", sites)
    shared.write("c.toml", campaign(1, 0.1, gated=True))
    first = shared.start(*words("first", "-p", "1", "-q"))
    shared.until(lambda: held(shared) == 1, first)
    shared.until(lambda: begun(stamps) == 1, first)
    shared.write("c.toml", campaign(4, 0.1))
    second = shared.json(*words("second", "-q"))
    assert second["processors"] == 1
    assert first.poll() is None  # it was there all the time
    go(shared)
    assert first.wait(60) == 0
    assert most_at_once(stamps) == 2


def count_ends(stamps: Path, run: str) -> int:
    """Tasks of a run that have ended."""
    return sum(f.read_text().count("\n") == 2 for f in stamps.glob(f"{run}-*"))


def spans(stamps: Path, run: str) -> list[tuple[float, float]]:
    """Begin and end of each task of a run."""
    texts = [file.read_text().split() for file in stamps.glob(f"{run}-*")]
    return sorted((float(begin), float(end)) for begin, end in texts)


def numbered(run: str, tasks: int, seconds: float, *, gated: bool = False, wide: int = 1) -> str:
    """A campaign whose tasks leave their moments under the name of a run."""
    text = campaign(tasks, seconds, gated=gated).replace("$HERE/{x}", f"$HERE/{run}-{{x}}")
    return text + f"processors = {wide}\n"


def endless(run: str) -> str:
    """A campaign whose tasks take a fifth of a second each until the gate is opened."""
    text = numbered(run, 600, 0.2)
    return text.replace("sleep 0.2;", "[ -e $HERE/../go ] || sleep 0.2;")


@pytest.mark.ci
def test_two_runs_divide_the_machine(shared: Folder, stamps: Path) -> None:
    """The second is carried out while the first goes on, on the processors that there are."""
    shared.write("a.toml", endless("a"))
    shared.write("b.toml", numbered("b", 6, 0.2))
    first = shared.start("run", "a.toml", "--sites", "s.toml", "--name", "a", "-q")
    shared.until(lambda: count_ends(stamps, "a") >= 2, first)
    shared.bursar("run", "b.toml", "--sites", "s.toml", "--name", "b", "-q")
    go(shared)
    assert first.wait(90) == 0
    assert most_at_once(stamps) == 2
    one, two = spans(stamps, "a"), spans(stamps, "b")
    assert (len(one), len(two)) == (600, 6)
    assert two[-1][1] < one[-1][0]  # it did not wait for the first to end
    assert held(shared) == 0


@pytest.mark.ci
def test_runs_divide_the_machine_by_the_weights_of_their_projects(
    shared: Folder, stamps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three to one: by the campaign's project, and by --project in its place."""
    monkeypatch.setenv("BURSAR_PROJECTS", str(shared.path / "projects.toml"))
    shared.write("projects.toml", "[projects.thesis]\nweight = 3\n\n[projects.tests]\n")
    shared.write("s.toml", SITES.replace("2", "8"))
    text = endless("a").replace("[campaign]\n", '[campaign]\nproject = "thesis"\n')
    assert "thesis" in text
    shared.write("a.toml", text)
    shared.write("b.toml", endless("b").replace("[campaign]\n", '[campaign]\nproject = "thesis"\n'))
    first = shared.start("run", "a.toml", "--sites", "s.toml", "--name", "a", "-q")
    second = shared.start(
        "run", "b.toml", "--sites", "s.toml", "--name", "b", "-q", "--project", "tests"
    )

    def shares() -> dict[str, int]:
        with closing(sqlite3.connect(shared.path / "owners.sqlite")) as db:
            query = "SELECT project, processors FROM held JOIN demands USING (site, holder)"
            return dict(db.execute(query).fetchall())

    shared.until(lambda: count_ends(stamps, "a") > 0 < count_ends(stamps, "b"), second)
    shared.until(lambda: shares() == {"thesis": 6, "tests": 2}, second)
    go(shared)
    assert (first.wait(90), second.wait(90)) == (0, 0)
    assert most_at_once(stamps) <= 8


def test_a_faulty_file_of_projects_is_one_line(
    shared: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight of nothing is refused before a run is made."""
    monkeypatch.setenv("BURSAR_PROJECTS", str(shared.path / "projects.toml"))
    shared.write("projects.toml", "[projects.thesis]\nweight = 0\n")
    shared.write("c.toml", campaign(1, 0.1))
    refused = shared.start(*words("one", "--project", "thesis"))
    assert refused.wait(60) == 2
    said = refused.communicate()[1]
    assert "projects.toml:2: projects.thesis.weight: expected a number > 0" in said
    assert "Traceback" not in said
    assert not (shared.path / "runs").exists()


def paid(folder: Folder, *runs: str) -> int:
    """Return what runs paid together; their ledgers balance, and hold nothing."""
    total = 0
    for run in runs:
        ledger = Ledger(journal(folder, run).transfers)
        assert sum(ledger.balances.values()) == 0
        assert ledger.held == 0
        assert folder.json("bill", run)["total_micros"] == ledger.spent
        total += ledger.spent
    return total


def settled(folder: Folder) -> int:
    """Return the processor-microseconds that all runs were charged together."""
    with closing(sqlite3.connect(folder.path / "owners.sqlite")) as db:
        return int(db.execute("SELECT settled FROM shared_use").fetchone()[0])


@pytest.mark.ci
def test_runs_pay_together_for_one_machine(shared: Folder, stamps: Path) -> None:
    """What the second had is credited to the first: together they pay one rectangle."""
    shared.write("s.toml", CHARGED)
    shared.write("a.toml", endless("a"))
    shared.write("b.toml", numbered("b", 6, 0.2))
    first = shared.start("run", "a.toml", "--sites", "s.toml", "-p", "2", "--name", "a", "-q")
    shared.until(lambda: count_ends(stamps, "a") >= 2, first)
    said = shared.bursar("run", "b.toml", "--sites", "s.toml", "-p", "2", "--name", "b").stderr
    go(shared)
    assert first.wait(90) == 0
    line = f"here: run a (process {first.pid}) shares its 2 processors; the forecast counts on all"
    assert line in said
    assert most_at_once(stamps) == 2
    (one,) = leases_of(journal(shared, "a").events).values()
    (two,) = leases_of(journal(shared, "b").events).values()
    assert one.end is not None
    assert min(one.credit, two.credit) > 0
    assert paid(shared, "a", "b") == price_of(settled(shared), 1.0)
    assert settled(shared) == pytest.approx(2 * (one.end - one.start) * TICKS, abs=5)
    (item,) = shared.json("bill", "a")["leases"]
    assert item["credit_micros"] == one.credit


def test_changing_prices_are_not_shared(shared: Folder) -> None:
    """An owner who promises processors to a buyer cannot have them shared: one line, at once."""
    shared.write("s.toml", PRICED.replace("[[site", "shared = true\n[[site"))
    shared.write("c.toml", campaign(1, 0.1))
    said = shared.bursar("plan", "c.toml", "--sites", "s.toml", status=2).stderr
    assert "shared: processors whose prices change or are negotiated are promised to one" in said


@pytest.mark.ci
def test_a_killed_run_pays_for_what_it_had(shared: Folder, stamps: Path) -> None:
    """
    Killed beside another run, and resumed: each processor is paid once, by whoever had it.

    One lease pays for both lives of the killed run. The other's covers the machine throughout, so
    that together they pay for the whole machine, without a gap or an overlap.
    """
    shared.write("s.toml", CHARGED)
    shared.write("a.toml", endless("a"))
    shared.write("b.toml", numbered("b", 40, 0.2))
    first = shared.start("run", "a.toml", "--sites", "s.toml", "-p", "2", "--name", "a", "-q")
    shared.until(lambda: count_ends(stamps, "a") >= 2, first)
    second = shared.start("run", "b.toml", "--sites", "s.toml", "-p", "2", "--name", "b", "-q")
    shared.until(lambda: count_ends(stamps, "b") >= 4, second)
    second.signal_group(signal.SIGKILL)
    second.wait(30)
    shared.bursar("run", "--resume", "b", "-q")
    go(shared)
    assert first.wait(90) == 0
    assert paid(shared, "a", "b") == price_of(settled(shared), 1.0)
    (one,) = leases_of(journal(shared, "a").events).values()
    (two,) = leases_of(journal(shared, "b").events).values()
    assert one.end is not None
    assert settled(shared) == pytest.approx(2 * (one.end - one.start) * TICKS, abs=5)
    assert min(one.credit, two.credit) > 0
    tried = Counter(record.outcome.task for record in journal(shared, "b").records)
    assert tried == Counter(range(40))
    assert most_at_once(stamps) == 2


def begins(folder: Folder) -> list[int]:
    """Begins of the leases on shared processors that are not paid, ticks, the earliest first."""
    with closing(sqlite3.connect(folder.path / "owners.sqlite")) as db:
        query = "SELECT began FROM shared_leases WHERE amount IS NULL ORDER BY began"
        return [began for (began,) in db.execute(query)]


def ticks_of(folder: Folder, run: str) -> float:
    """Length of the only lease of a run by the run's own clock, which differs from other runs'."""
    (lease,) = leases_of(journal(folder, run).events).values()
    assert lease.end is not None
    return (lease.end - lease.start) * TICKS


def test_tasks_that_outlive_their_run_keep_their_processors_and_pay(
    shared: Folder, stamps: Path
) -> None:
    """Another run waits until they have ended; the lease is charged for the break, and once."""
    shared.write("s.toml", CHARGED)
    shared.write("a.toml", numbered("a", 2, 0.1, gated=True))
    shared.write("b.toml", numbered("b", 2, 0.1))
    first = shared.start("run", "a.toml", "--sites", "s.toml", "-p", "2", "--name", "a", "-q")
    shared.until(lambda: begun(stamps) == 2, first)
    first.signal_group(signal.SIGKILL)
    first.wait(30)
    second = shared.start("run", "b.toml", "--sites", "s.toml", "-p", "2", "--name", "b", "-q")
    shared.until(lambda: len(begins(shared)) == 2, second)
    one, two = begins(shared)
    again = shared.start("run", "--resume", "a", "-q")
    time.sleep(1.0)
    assert begun(stamps) == 2
    go(shared)
    assert again.wait(60) == 0
    assert second.wait(60) == 0

    assert begun(stamps) == 4
    assert most_at_once(stamps) == 2
    assert paid(shared, "a", "b") == price_of(settled(shared), 1.0)
    end = max(one + ticks_of(shared, "a"), two + ticks_of(shared, "b"))
    assert settled(shared) == pytest.approx(2 * (end - one), abs=5)


@pytest.mark.ci
def test_a_lease_is_not_charged_while_another_run_has_its_processors(
    shared: Folder, stamps: Path
) -> None:
    """The tasks of a killed run have ended: the other takes the processors until it is resumed."""
    shared.write("s.toml", CHARGED)
    shared.write("a.toml", numbered("a", 2, 0.1, gated=True))
    shared.write("b.toml", endless("b").replace("/go ", "/go-on "))
    first = shared.start("run", "a.toml", "--sites", "s.toml", "-p", "2", "--name", "a", "-q")
    shared.until(lambda: begun(stamps) == 2, first)
    first.signal_group(signal.SIGKILL)
    first.wait(30)
    second = shared.start("run", "b.toml", "--sites", "s.toml", "-p", "2", "--name", "b", "-q")
    shared.until(lambda: len(begins(shared)) == 2, second)
    one, two = begins(shared)
    go(shared)
    shared.until(lambda: count_ends(stamps, "b") >= 4, second)
    shared.bursar("run", "--resume", "a", "-q")
    (shared.path / "go-on").touch()
    assert second.wait(90) == 0

    assert begun(stamps) == 602
    assert most_at_once(stamps) == 2
    assert paid(shared, "a", "b") == price_of(settled(shared), 1.0)
    end = two + ticks_of(shared, "b")
    assert settled(shared) == pytest.approx(2 * (end - one), abs=5)
    (lease,) = leases_of(journal(shared, "a").events).values()
    assert lease.credit >= price_of(4 * TICKS // 5, 1.0)  # four tasks of 0.2 s, in the break
    assert len(journal(shared, "a").records) == 2


@pytest.mark.ci
def test_a_wide_task_has_its_turn_beside_narrow_ones(shared: Folder, stamps: Path) -> None:
    """A task as wide as the machine runs alone, before the other run has ended."""
    shared.write("a.toml", endless("a"))
    shared.write("b.toml", numbered("b", 1, 0.1, wide=2))
    first = shared.start("run", "a.toml", "--sites", "s.toml", "--name", "a", "-q")
    shared.until(lambda: count_ends(stamps, "a") >= 2, first)
    shared.bursar("run", "b.toml", "--sites", "s.toml", "--name", "b", "-q")
    go(shared)
    assert first.wait(90) == 0
    ((begin, end),) = spans(stamps, "b")
    assert end < spans(stamps, "a")[-1][0]
    assert not [span for span in spans(stamps, "a") if span[0] < end and begin < span[1]]


@pytest.mark.ci
def test_a_killed_run_leaves_its_share_to_the_other(shared: Folder, stamps: Path) -> None:
    """Not before the tasks of the killed one have ended, which go on for as long as they take."""
    shared.write("a.toml", numbered("a", 2, 0.1, gated=True))
    first = shared.start("run", "a.toml", "--sites", "s.toml", "--name", "a", "-q")
    shared.until(lambda: len(list(stamps.glob("a-*"))) == 2, first)
    # Its tasks wait for each other: they need both processors at a time.
    both = "sleep 0.1; while [ $(ls $HERE | grep -c ^b-) -lt 2 ]; do sleep 0.05; done"
    text = numbered("b", 2, 0.1).replace("sleep 0.1", both)
    shared.write("b.toml", text)
    second = shared.start("run", "b.toml", "--sites", "s.toml", "--name", "b", "-q")
    first.signal_group(signal.SIGKILL)
    go(shared)
    assert second.wait(60) == 0
    assert begun(stamps) == 4
    assert most_at_once(stamps) == 2


@pytest.mark.ci
def test_executors_share_with_each_other_and_with_runs(shared: Folder, stamps: Path) -> None:
    """Two executors of one process and a run: three holders, two processors."""

    def stamp(path: str) -> None:  # a local function travels by value
        begin = time.time()
        time.sleep(0.2)
        with open(path, "w") as file:
            file.write(f"{begin}\n{time.time()}\n")

    facts = read_sites(shared.path / "s.toml")
    shared.write("a.toml", numbered("a", 10, 0.2))
    with bursar.Executor(sites=facts) as one, bursar.Executor(sites=facts) as two:
        run = shared.start("run", "a.toml", "--sites", "s.toml", "--name", "a", "-q")
        calls = [
            executor.submit(stamp, str(stamps / f"{name}-{i}"))
            for i in range(10)
            for name, executor in (("one", one), ("two", two))
        ]
        for call in calls:
            call.result(90)
        assert run.wait(90) == 0
    assert begun(stamps) == 30
    assert most_at_once(stamps) <= 2


def test_who_insists_shares_the_processors(shared: Folder, stamps: Path) -> None:
    """Tasks begin at once, beside the other run's."""
    shared.write("c.toml", campaign(2, 0.1, gated=True))
    first = shared.start(*words("first", "-p", "2", "-q"))
    shared.until(lambda: begun(stamps) == 2, first)
    shared.write("c.toml", campaign(2, 0.1))
    shared.bursar(*words("second", "-p", "2", "-q", "--oversubscribe"))
    go(shared)
    assert first.wait(60) == 0
    assert most_at_once(stamps) > 2


def test_a_killed_run_frees_its_processors(shared: Folder, stamps: Path) -> None:
    """The next run begins though nobody has resumed the dead one; both end up whole."""
    shared.write("c.toml", campaign(4, 0.1, gated=True))
    first = shared.start(*words("first", "-p", "2", "-q"))
    shared.until(lambda: begun(stamps) == 2, first)
    first.signal_group(signal.SIGKILL)
    go(shared)
    shared.bursar(*words("second", "-p", "2", "-q"))
    shared.bursar("run", "--resume", "first", "-q")
    for name in ("first", "second"):
        assert shared.json("report", name)["succeeded"] == 4
    assert held(shared) == 0


@pytest.mark.ci
def test_strategy_runs_share_processors_and_loyalty(shared: Folder, stamps: Path) -> None:
    """Jobs are bought one by one of an owner whom both runs speak with."""
    shared.write("s.toml", PRICED)
    shared.write("c.toml", campaign(6, 0.5))
    poor = words("poor", "--strategy", "cost", "--deadline", "5m", "--budget", "2.6", "-q")
    shared.bursar(*poor, status=3)  # 3 SU for one who has not paid yet
    strategy = ("--strategy", "cost", "--deadline", "5m", "--budget", "100", "-q")
    pair = [shared.start(*words(name, *strategy)) for name in ("a", "b")]
    assert [process.wait(90) for process in pair] == [0, 0]
    assert begun(stamps) == 12
    assert most_at_once(stamps) <= 2
    (here,) = shared.json("sites", "--sites", "s.toml")["sites"]
    assert sum(shared.json("bill", name)["total"] for name in ("a", "b")) > 1.0
    assert here["price_now"] == 0.5
    assert shared.bursar(*poor, status=None).returncode != 3  # 1.5 SU for a loyal customer


@pytest.mark.ci
def test_simulated_runs_know_nothing_of_real_ones(shared: Folder, stamps: Path) -> None:
    """However much was paid and is held, a simulation comes out the same."""
    shared.write("s.toml", PRICED)
    shared.write("c.toml", campaign(3, 0.7, gated=True))
    strategy = ("--strategy", "cost", "--deadline", "5m", "--budget", "100")
    simulate = ("simulate", "c.toml", "--sites", "s.toml", *strategy)
    before = shared.json(*simulate)
    go(shared)
    shared.bursar(*words("real", *strategy, "-q"))
    (shared.path / "go").unlink()
    process = shared.start(*words("holder", "-p", "2", "-q", "--fresh"))
    shared.until(lambda: held(shared) == 2, process)
    after = shared.json(*simulate)
    go(shared)
    assert process.wait(60) == 0
    assert (after["cost"], after["makespan_s"]) == (before["cost"], before["makespan_s"])
