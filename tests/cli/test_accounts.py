"""An account binds its runs: held in the book before work starts, and never exceeded."""

import asyncio
import random
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Folder

import bursar
from bursar.dispatch.journal import read_journal
from bursar.formats.sites_toml import read_sites
from bursar.market.book import Book, read_book
from bursar.market.ledger import Ledger
from bursar.model.errors import BudgetStop, Infeasible, InputError
from bursar.model.money import MICROS
from bursar.sites.owners import OwnersBook

SITES = """\
[site.here]
processors = 2
unit_price = "3600 SU/core-hour"
"""
"""One SU a processor-second."""


def campaign(
    tasks: int, seconds: float, *, known: bool = True, more: str = "", gated: bool = False
) -> str:
    """Tasks that sleep; gated ones first wait for a file, whatever else the machine does."""
    gate = "while [ ! -e $HERE/go ]; do sleep 0.05; done; " if gated else ""
    runtime = f"[task]\nruntime = {seconds}\n" if known else ""
    return (
        f'[campaign]\nname = "c"\ncommand = "{gate}sleep {seconds} && echo {{x}}"\n{more}'
        f"[parameters]\nx = {list(range(tasks))}\n{runtime}"
    )


@pytest.fixture
def funded(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """With ann, who has 100 SU and a quota of 10, and a site at one SU a processor-second."""
    folder.write("s.toml", SITES)
    monkeypatch.setenv("HERE", str(folder.path))
    folder.bursar("ledger", "open", "ann", "--quota", "10 SU")
    folder.bursar("ledger", "grant", "ann", "100 SU")
    return folder


def run_words(file: str = "c.toml", *more: str) -> tuple[str, ...]:
    return ("run", file, "--sites", "s.toml", "--account", "ann", *more)


def spent_by(run: Path) -> int:
    return Ledger(read_journal(run / "journal.sqlite").transfers).spent


def check_agreement(folder: Folder, *, quota: int = 10 * MICROS) -> int:
    """The book has what the runs' ledgers say, nothing is held, and the quota is kept."""
    accounts = read_book(folder.path / "bursar.book").accounts
    spent = sum(spent_by(run) for run in (folder.path / "runs").iterdir())
    assert accounts.balance("provider:here") == spent
    assert accounts.held_by("ann") == 0
    assert accounts.used("ann", time.time()) == spent <= quota
    assert accounts.balance("user:ann") == 100 * MICROS - spent
    assert accounts.faults() == []
    return spent


def held(folder: Folder) -> int:
    return read_book(folder.path / "bursar.book").accounts.held_by("ann")


def test_a_run_is_paid_by_its_account_to_the_unit(funded: Folder) -> None:
    """Nobody books it afterwards; charging it again moves nothing."""
    funded.write("c.toml", campaign(4, 0.2))
    ran = funded.json(*run_words("c.toml", "--budget", "5 SU", "--name", "one"))
    assert ran["account"] == "ann"
    assert check_agreement(funded) > 0
    rows = funded.json("ledger", "rows")["rows"]
    first = next(row for row in rows if row["kind"] == "hold")
    assert (first["agreement"], first["amount_micros"]) == ("one/budget", 5 * MICROS)
    begin = min(e.time for e in read_journal(funded.run / "journal.sqlite").events)
    assert first["time"] < begin
    assert {row["agreement"] for row in rows[-3:]} >= {"one/budget"}
    funded.bursar("ledger", "charge", "one", "--user", "ann")
    assert funded.json("ledger", "rows")["rows"] == rows
    assert funded.json("ledger", "verify")["faults"] == []
    done = funded.bursar("ledger", "charge", "one", "--user", "bob", status=2)
    assert 'run "one" was charged to ann' in done.stderr


def test_a_run_that_costs_more_than_the_quota_is_not_begun(funded: Folder) -> None:
    """The answer is what could be had; nothing is held and nothing ran."""
    funded.write("c.toml", campaign(20, 1.0))  # 20 SU
    told = funded.json(*run_words(), status=3)
    assert told["goal"]["budget"] == 10
    offers = {offer["kind"]: offer["cost"] for offer in told["counter_offers"]}
    assert offers["share"] <= 10
    assert offers["budget"] >= 20
    assert not (funded.path / "runs").exists()
    assert held(funded) == 0
    # A budget above the quota does not help.
    funded.bursar(*run_words("c.toml", "--budget", "50"), status=3)


@pytest.mark.ci
def test_a_run_of_unknown_cost_is_stopped_in_time(funded: Folder) -> None:
    """The run pays for what it does, and never comes to more than the quota."""
    funded.bursar("ledger", "quota", "ann", "3 SU")
    funded.write("c.toml", campaign(20, 0.7, known=False))
    ran = funded.json(*run_words("c.toml", "--processors", "2"), status=4)
    assert ran["state"] == "budget-stopped"
    assert check_agreement(funded, quota=3 * MICROS) > 2 * MICROS
    funded.bursar("run", "--resume", ran["run"], status=4)
    check_agreement(funded, quota=3 * MICROS)
    # More quota, and it goes on: everything is in the book once.
    funded.bursar("ledger", "quota", "ann", "30 SU")
    funded.bursar("run", "--resume", ran["run"])
    check_agreement(funded, quota=30 * MICROS)


def test_two_runs_at_once_share_one_quota(funded: Folder) -> None:
    """Money that one has set aside, another cannot have."""
    funded.write("c.toml", campaign(4, 0.1, gated=True))
    first = funded.start(*run_words("c.toml", "--name", "first", "-q", "-p", "2"))
    funded.until(lambda: held(funded), first)
    assert held(funded) == 10 * MICROS
    done = funded.bursar(*run_words("c.toml", "--name", "second", "--anyway"), status=4)
    assert "10 SU are set aside for other runs" in done.stderr
    (funded.path / "go").touch()
    assert first.wait(60) in {0, 4}  # a slow machine may have used up the quota
    check_agreement(funded)
    funded.bursar("ledger", "quota", "ann", "40")
    # With budgets they share; together they stay within the quota.
    words = ("--budget", "3 SU", "-q", "-p", "1", "--anyway")
    pair = [funded.start(*run_words("c.toml", "--name", name, *words)) for name in "ab"]
    assert {process.wait(60) for process in pair} <= {0, 4}
    check_agreement(funded, quota=40 * MICROS)


def test_a_killed_run_keeps_its_hold_and_finds_it_again(funded: Folder) -> None:
    """The book has every payment once, whichever instant it was killed at."""
    kill_and_resume(funded, random.Random(18), rounds=2)


@pytest.mark.long
def test_thirty_kills_leave_run_and_book_in_agreement(funded: Folder) -> None:
    """Thirty random instants (seed 180), some of them while the book is written."""
    kill_and_resume(funded, random.Random(180), rounds=30)


def kill_and_resume(funded: Folder, dice: random.Random, rounds: int) -> None:
    funded.write("c.toml", campaign(6, 0.3))
    for number in range(rounds):
        name = f"r{number}"
        run = funded.path / "runs" / name
        words = run_words("c.toml", "--name", name, "--budget", "4", "-q", "-p", "2", "--anyway")
        process = funded.start(*words)
        funded.until((run / "run.json").exists, process)
        time.sleep(dice.uniform(0.0, 1.5))
        process.signal_group(signal.SIGKILL)
        process.wait()
        if number % 3 == 1:  # also the process that settles is killed
            again = funded.start("run", "--resume", name, "-q")
            time.sleep(dice.uniform(0.3, 2.0))
            again.signal_group(signal.SIGKILL)
            again.wait()
        assert held(funded) <= 4 * MICROS
        funded.bursar("run", "--resume", name, "-q", status=None)
        accounts = read_book(funded.path / "bursar.book").accounts
        assert accounts.held_by("ann") == 0
        funded.bursar("ledger", "quota", "ann", f"{10 + 5 * number} SU")
    check_agreement(funded, quota=(10 + 5 * rounds) * MICROS)


def test_amend_sets_more_aside_first(funded: Folder) -> None:
    """A budget above the quota is refused and nothing changes; one below it is held."""
    funded.bursar("ledger", "quota", "ann", "60")
    funded.write("c.toml", campaign(2, 0.1, gated=True))
    process = funded.start(*run_words("c.toml", "--name", "long", "--budget", "30", "-q"))
    funded.until(lambda: held(funded) == 30 * MICROS, process)
    funded.until((funded.path / "runs" / "long" / "journal.sqlite").exists, process)
    funded.until(lambda: read_journal(funded.run / "journal.sqlite").events, process)
    done = funded.bursar("amend", "long", "--budget", "70 SU", status=1)
    assert "over the quota of ann" in done.stderr
    assert held(funded) == 30 * MICROS
    funded.bursar("amend", "long", "--budget", "40 SU")
    assert held(funded) == 40 * MICROS
    (funded.path / "go").touch()
    assert process.wait(60) == 0
    check_agreement(funded, quota=60 * MICROS)


def test_the_campaign_names_account_and_book(folder: Folder) -> None:
    """The book is found beside the campaign, from wherever the command is run."""
    folder.write("s.toml", SITES)
    (folder.path / "sub").mkdir()
    folder.bursar("ledger", "open", "ann", "--quota", "10", "--book", "sub/lab.book")
    folder.bursar("ledger", "grant", "ann", "100", "--book", "sub/lab.book")
    text = campaign(2, 0.1, more='account = "ann"\nbook = "lab.book"\n')
    folder.write("sub/c.toml", text)
    folder.bursar("run", "sub/c.toml", "--sites", "s.toml", "-q")
    book = read_book(folder.path / "sub" / "lab.book").accounts
    assert book.balance("provider:here") == spent_by(folder.run) > 0
    folder.bursar("simulate", "sub/c.toml", "--sites", "s.toml")
    assert len(read_book(folder.path / "sub" / "lab.book").accounts) == len(book)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--account", "nobody"), '--account: no account "nobody"'),
        (("--account", "ann", "--book", "none.book"), "none.book: there is no book"),
        (("--account", "here"), '"here" is a provider, expected a user'),
    ],
)
def test_a_wrong_account_is_one_line(funded: Folder, words: tuple[str, ...], said: str) -> None:
    funded.bursar("ledger", "open", "here", "--kind", "provider")
    funded.write("c.toml", campaign(1, 0.1))
    done = funded.bursar("run", "c.toml", "--sites", "s.toml", *words, status=2)
    assert said in done.stderr
    assert not (funded.path / "runs").exists()


def test_another_currency_or_no_price_is_refused(funded: Folder) -> None:
    """A run that cannot be charged is not begun."""
    funded.write("c.toml", campaign(1, 0.1))
    funded.write("s.toml", '[site.here]\nunit_price = "1 G$/core-hour"\n')
    assert "counts in G$" in funded.bursar(*run_words(), status=2).stderr
    funded.write("s.toml", "[site.here]\nprocessors = 1\n")
    assert "has no price" in funded.bursar(*run_words(), status=2).stderr


def test_a_hold_of_a_run_that_is_gone_can_be_released(funded: Folder) -> None:
    """Else an account would be bound for ever by a folder that somebody deleted."""
    with Book(funded.path / "bursar.book") as book:
        book.hold(time.time(), "k", "ann", "gone/budget", 5 * MICROS)
    funded.bursar("ledger", "release", "gone/budget", "--reason", "its folder is gone")
    assert held(funded) == 0
    funded.bursar("ledger", "release", "gone/budget", "--reason", "again", status=2)


def test_python_names_an_account_too(funded: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rules, as exceptions."""
    monkeypatch.chdir(funded.path)
    funded.write("c.toml", campaign(2, 0.1))
    funded.write("big.toml", campaign(50, 1.0))
    result = bursar.run("c.toml", "s.toml", account="ann", name="py")
    assert result.exit_status == 0
    check_agreement(funded)
    with pytest.raises(Infeasible):
        bursar.run("big.toml", "s.toml", account="ann")
    with pytest.raises(InputError, match="no account"):
        bursar.run("c.toml", "s.toml", account="bob")
    with Book(funded.path / "bursar.book") as book:
        book.hold(time.time(), "k", "ann", "other/budget", book.available("ann", time.time()))
    with pytest.raises(BudgetStop, match="set aside for other runs"):
        bursar.run("c.toml", "s.toml", account="ann", anyway=True, fresh=True)


def test_an_empty_account_is_no_leave_to_run_for_nothing(funded: Folder) -> None:
    """A script's variable may be empty: then nobody would be charged, and nobody would know."""
    funded.write("c.toml", campaign(1, 0.1))
    done = funded.bursar("run", "c.toml", "--sites", "s.toml", "--account", "", status=2)
    assert 'no account ""' in done.stderr
    assert not (funded.path / "runs").exists()


def test_a_run_that_is_ended_while_it_waits_gives_its_money_back(
    funded: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processors may be in use for hours: nobody else could have what it has set aside."""
    monkeypatch.setenv("BURSAR_OWNERS", str(funded.path / "owners.sqlite"))
    funded.write("c.toml", campaign(1, 0.1))
    funded.write("s.toml", SITES + "shared = false\n")
    with closing(OwnersBook(funded.path / "owners.sqlite")) as owners:
        (site,) = read_sites(funded.path / "s.toml")
        asyncio.run(owners.take(site, "plan", 2, print))
        waiting = funded.start(*run_words("c.toml", "--name", "one"))
        try:
            funded.until(lambda: _is_waiting(funded.path / "owners.sqlite"), waiting)
            assert held(funded) > 0
            waiting.send_signal(signal.SIGTERM)
            assert waiting.wait(20) == 130
        finally:
            waiting.kill()
            waiting.wait()
    assert held(funded) == 0
    funded.bursar("run", "--resume", "runs/one")
    check_agreement(funded)


def _is_waiting(owners: Path) -> bool:
    with closing(sqlite3.connect(owners)) as db:
        return bool(db.execute("SELECT count(*) FROM waiting").fetchone()[0])


def test_a_simulation_keeps_to_what_the_campaigns_account_has(funded: Folder) -> None:
    """As a run does, but nothing is charged; a budget that is less still holds."""
    funded.write("c.toml", campaign(4, 30.0, more='account = "ann"\n'))
    refused = funded.json("simulate", "c.toml", "--sites", "s.toml", status=3)
    assert refused["goal"]["budget"] == 10.0
    before = funded.json("ledger", "accounts")
    funded.write("c.toml", campaign(3, 2.0, more='account = "ann"\n'))
    assert funded.json("simulate", "c.toml", "--sites", "s.toml")["succeeded"] == 3
    assert funded.json("ledger", "accounts") == before
    funded.write("c.toml", campaign(3, 2.0, more='account = "eve"\n'))
    assert "eve" in funded.bursar("simulate", "c.toml", "--sites", "s.toml", status=2).stderr
