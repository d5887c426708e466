"""Runs on one machine share processors and owners, and inherit nothing from the dead."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bursar.broker.trading import CampaignTrader
from bursar.formats.sites_toml import read_sites
from bursar.model.errors import InputError
from bursar.model.money import MICROS, Adjusting, Demand, Loyalty, Pricing, Refusal
from bursar.model.site import SiteFacts
from bursar.sites.owners import OwnersBook, known_owners
from bursar.sites.owners_database import owners_file

SITE = SiteFacts(name="here", processors=2, unit_price=1.0)
NOW = 1_000_000.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "owners.sqlite"


def priced(*rules: object, processors: int = 2) -> SiteFacts:
    pricing = Pricing(1.0, rules)  # type: ignore[arg-type]
    return SiteFacts(name="uni", processors=processors, unit_price=1.0, pricing=pricing)


def took(book: OwnersBook, name: str, processors: int, site: SiteFacts = SITE) -> bool:
    """Whether it has them within a moment."""

    async def ask() -> bool:
        said: list[str] = []
        asking = asyncio.ensure_future(book.take(site, name, processors, said.append))
        done, _ = await asyncio.wait({asking}, timeout=0.05)
        if done:
            await asking
        asking.cancel()
        assert bool(done) or "waits" in said[0]
        return bool(done)

    return asyncio.run(ask())


def buys(trading: CampaignTrader, site: SiteFacts, seconds: float = 100.0) -> str | None:
    """Id of what was bought; None: it was refused."""
    bought = trading.buy(site, seconds, 0.0, 1e9)
    return None if bought is None or isinstance(bought, Refusal) else bought.id


def price(trading: CampaignTrader, site: SiteFacts) -> float:
    return trading.ahead(site, 0.0, 100.0)[0][2]


def test_two_runs_never_hold_more_than_there_is(path: Path) -> None:
    """Processors that one holds, another does not get until they are given back."""
    with closing(OwnersBook(path, run="one")) as one, closing(OwnersBook(path, run="two")) as two:
        assert took(one, "plan", 1)
        assert took(two, "a", 1)
        assert not took(two, "b", 1)
        assert (one.others(SITE), two.others(SITE)) == (1, 1)
        assert one.who(SITE) == (f"run two (process {os.getpid()})",)
        one.give(SITE, "plan")
        assert took(two, "b", 1)


def test_sites_of_other_files_are_other_sites(path: Path, tmp_path: Path) -> None:
    """One sites file makes one site, whoever reads it, by whatever way its path is written."""
    for name in "ab":
        (tmp_path / f"{name}.toml").write_text("[site.here]\nprocessors = 1\n")
    (tmp_path / "link.toml").symlink_to(tmp_path / "a.toml")
    (of_a,), (of_b,), (of_link,) = (read_sites(tmp_path / f"{n}.toml") for n in ("a", "b", "link"))
    with closing(OwnersBook(path)) as one, closing(OwnersBook(path)) as two:
        assert took(one, "plan", 1, of_a)
        assert took(two, "plan", 1, of_b)
        assert not took(two, "again", 1, of_link)


def test_who_insists_waits_for_nobody(path: Path) -> None:
    """The others see what it holds all the same."""
    with closing(OwnersBook(path)) as one, closing(OwnersBook(path, insist=True)) as two:
        assert took(one, "plan", 2)
        assert took(two, "plan", 2)
        assert one.others(SITE) == 2


def test_a_run_that_is_over_holds_nothing(path: Path) -> None:
    """Even if it forgot to give something back."""
    one = OwnersBook(path)
    assert took(one, "plan", 2)
    assert buys(CampaignTrader([priced()], epoch=NOW, owners=one), priced())
    one.close()
    one.close()
    with closing(OwnersBook(path)) as two:
        assert took(two, "plan", 2)


def test_a_run_that_waits_long_is_not_overtaken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that asks for much would else never come to its turn; who is at work goes on."""
    monkeypatch.setattr("bursar.sites.owners.PATIENCE", 0.1)

    async def story() -> list[str]:
        books = {name: OwnersBook(path, run=name) for name in ("small", "large", "late")}
        had: list[str] = []

        async def take(run: str, name: str, processors: int) -> None:
            await books[run].take(SITE, name, processors, lambda _: None)
            had.append(f"{run} {name}")

        await take("small", "1", 1)
        large = asyncio.ensure_future(take("large", "1", 2))
        await asyncio.sleep(0.3)
        late = asyncio.ensure_future(take("late", "1", 1))
        await take("small", "2", 1)  # at work there: it may have what is free
        await asyncio.sleep(0.3)
        books["small"].close()
        await large
        books["large"].close()
        await late
        books["late"].close()
        return had

    assert asyncio.run(story()) == ["small 1", "small 2", "large 1", "late 1"]


HOLDER = """
import asyncio, sys, time
from pathlib import Path
from bursar.model.site import SiteFacts
from bursar.sites.owners import OwnersBook
from bursar.broker.trading import CampaignTrader
from bursar.model.money import Pricing

book = OwnersBook(Path(sys.argv[1]), run="doomed")
site = SiteFacts(name="here", processors=2, unit_price=1.0)
asyncio.run(book.take(site, "plan", 2, print))
uni = SiteFacts(name="uni", processors=2, unit_price=1.0, pricing=Pricing(1.0))
trading = CampaignTrader([uni], epoch=1_000_000.0, owners=book)
assert trading.buy(uni, 100.0, 0.0, 1e9).id and trading.buy(uni, 100.0, 0.0, 1e9).id
print("has them", flush=True)
time.sleep(100)
"""


@pytest.fixture
def doomed(path: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "has them\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_killed_buyer_frees_its_processors(path: Path, doomed: "subprocess.Popen[str]") -> None:
    """Those it held and those it had bought; nobody need say so, and a zombie holds nothing."""
    with closing(OwnersBook(path)) as other:
        trading = CampaignTrader([priced()], epoch=NOW, owners=other)
        assert not took(other, "plan", 1)
        assert buys(trading, priced()) is None
        assert trading.crowded
        doomed.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while other.others(SITE) and time.monotonic() < deadline:  # not waited for: a zombie
            time.sleep(0.01)
        assert took(other, "plan", 2)
        assert buys(trading, priced())


def test_a_number_that_another_process_got_is_not_the_dead_one(path: Path) -> None:
    """Process numbers are given again; when a process began tells them apart."""
    one = OwnersBook(path)
    assert took(one, "plan", 2)
    assert one._db is not None
    one._db.execute("UPDATE holders SET started = started - 1")
    with closing(OwnersBook(path)) as two:
        assert took(two, "plan", 2)
    one._db.close()


def test_a_dead_run_holds_while_its_tasks_are_still_there(path: Path) -> None:
    """Programs of its workers may live on: its processors are not free before they are gone."""
    task = subprocess.Popen(
        ["sleep", "100"], env=os.environ | {"BURSAR_RUN": "r1", "BURSAR_WORKER": "w1"}
    )
    try:
        one = OwnersBook(path)
        one.mark("r1")
        assert took(one, "plan", 2)
        assert one._db is not None
        one._db.execute("UPDATE holders SET started = started - 1")
        with closing(OwnersBook(path)) as two:
            assert not took(two, "plan", 1)
            task.kill()
            task.wait()
            assert took(two, "plan", 1)
        one._db.close()
    finally:
        task.kill()
        task.wait()


CYCLES = """
import asyncio, os, sys, time
from pathlib import Path
from bursar.model.site import SiteFacts
import bursar.sites.owners as owners

owners._POLL_INTERVAL = 0.002
site = SiteFacts(name="here", processors=2)
book = owners.OwnersBook(Path(sys.argv[1]), run="r")
log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND)
for i in range(int(sys.argv[3])):
    count = 1 + (i + os.getpid()) % 2
    asyncio.run(book.take(site, str(i), count, lambda _: None))
    os.write(log, b"%d\\n" % count)
    time.sleep(0.001)
    os.write(log, b"%d\\n" % -count)
    book.give(site, str(i))
book.close()
"""


def check_cycles(path: Path, log: Path, processes: int, cycles: int) -> None:
    log.touch()
    words = [sys.executable, "-c", CYCLES, str(path), str(log), str(cycles)]
    started = [subprocess.Popen(words) for _ in range(processes)]
    assert [process.wait(120) for process in started] == [0] * processes
    steps = [int(line) for line in log.read_text().split()]
    assert len(steps) == 2 * processes * cycles
    used = most = 0
    for step in steps:
        used += step
        most = max(most, used)
    assert (used, most) == (0, 2)


def test_many_processes_at_once_keep_within_the_site(path: Path, tmp_path: Path) -> None:
    """A log of what is held, by appends: between a take and its give, never above two."""
    check_cycles(path, tmp_path / "log", processes=3, cycles=15)


@pytest.mark.long
def test_many_more_processes_at_once_keep_within_the_site(path: Path, tmp_path: Path) -> None:
    check_cycles(path, tmp_path / "log", processes=8, cycles=200)


def test_owners_sell_no_processor_to_two_runs(path: Path) -> None:
    """The second run is refused while the first has them, and knows that it may ask again."""
    site = priced()
    with closing(OwnersBook(path)) as one, closing(OwnersBook(path)) as two:
        a, b = (CampaignTrader([site], epoch=NOW, owners=book) for book in (one, two))
        first, second = buys(a, site), buys(b, site)
        assert first
        assert second
        assert buys(a, site) is None
        assert b.buy(site, 100.0, 0.0, 1e9) is not None
        assert buys(b, site) is None
        assert b.crowded
        a.over("uni", first, 10.0)
        assert buys(b, site)


def test_processors_that_a_plan_holds_are_not_sold(path: Path) -> None:
    """A run by a plan buys from no trade server, and uses the same processors."""
    site = priced()
    with closing(OwnersBook(path)) as one, closing(OwnersBook(path)) as two:
        assert took(one, "plan", 1, site)
        trading = CampaignTrader([site], epoch=time.time(), owners=two)
        assert buys(trading, site)
        assert buys(trading, site) is None


def test_demand_prices_see_the_other_run(path: Path) -> None:
    """Half of the machine sold to another run is half of it sold: here the price doubles."""
    site = priced(Demand(points=((0.0, 1.0), (0.5, 2.0))))
    with closing(OwnersBook(path)) as one, closing(OwnersBook(path)) as two:
        a, b = (CampaignTrader([site], epoch=NOW, owners=book) for book in (one, two))
        assert price(b, site) == 1.0
        bought = buys(a, site)
        assert bought
        assert price(b, site) == 2.0
        a.over("uni", bought, 0.0)
        assert price(b, site) == 1.0


def test_a_loyal_customer_stays_one(path: Path) -> None:
    """Over runs; another customer is not meant."""
    site = priced(Loyalty(steps=((50 * MICROS, 0.5),)))
    with closing(OwnersBook(path, identity="1", customer="ann")) as one:
        trading = CampaignTrader([site], epoch=NOW, owners=one)
        bought = buys(trading, site)
        assert bought
        trading.over("uni", bought, 50.0)
        assert price(trading, site) == 0.5
    for customer, asked in (("ann", 0.5), ("bob", 1.0)):
        with closing(OwnersBook(path, identity="2", customer=customer)) as later:
            assert price(CampaignTrader([site], epoch=NOW, owners=later), site) == asked


def test_what_a_run_paid_counts_once(path: Path) -> None:
    """The run's own ledger decides, however often the run was killed and tells again."""
    site = priced()
    for told in (5, 9, 9):
        with closing(OwnersBook(path, identity="1", customer="ann")) as book:
            trading = CampaignTrader([site], epoch=NOW, owners=book)
            bought = buys(trading, site)
            assert bought
            trading.over("uni", bought, 2.0)
            book.note_paid([(site, told * MICROS)])
    with closing(OwnersBook(path, identity="2", customer="ann")) as book:
        book.note_paid([(site, 4 * MICROS)])
        assert book.state_of(site).paid == {"ann": 13 * MICROS}


def test_supply_and_demand_go_on_from_run_to_run(path: Path) -> None:
    """The next run finds the price where the last one left it."""
    rule = Adjusting(every=10.0, gain=0.5, target=0.5, least=0.1, most=10.0)
    site = priced(rule)
    with closing(OwnersBook(path)) as one:
        trading = CampaignTrader([site], epoch=NOW, owners=one)
        assert buys(trading, site, 1000.0)
        assert buys(trading, site, 1000.0)
        trading.epoch = NOW + 30.0
        assert buys(trading, site) is None  # full for three periods
        raised = price(trading, site)
        assert raised > 1.0
    with closing(OwnersBook(path)) as two:
        later = CampaignTrader([site], epoch=NOW + 30.0, owners=two)
        assert price(later, site) == raised


def test_without_a_book_owners_are_born_with_the_campaign() -> None:
    """A simulation must not hang on what else was run."""
    site = priced(Loyalty(steps=((50 * MICROS, 0.5),)))
    for _ in range(2):
        trading = CampaignTrader([site], epoch=NOW)
        bought = buys(trading, site)
        assert bought
        assert price(trading, site) == 1.0
        trading.over("uni", bought, 50.0)
        assert price(trading, site) == 0.5


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the user's state folder, or where the environment says; off for nowhere."""
    monkeypatch.setenv("BURSAR_OWNERS", "off")
    assert owners_file() is None
    monkeypatch.delenv("BURSAR_OWNERS")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = owners_file()
    assert found is not None
    assert found.parent == tmp_path / "bursar"
    monkeypatch.setenv("BURSAR_OWNERS", str(tmp_path / "x" / "o.db"))
    assert owners_file() == tmp_path / "x" / "o.db"


def test_a_group_shares_the_file_of_its_folder(tmp_path: Path) -> None:
    """Whoever may write in the folder may use the file: users of a machine share its sites."""
    for mode, expected in ((0o700, 0o600), (0o770, 0o660), (0o777, 0o666)):
        folder = tmp_path / oct(mode)
        folder.mkdir()
        folder.chmod(mode)
        with closing(OwnersBook(folder / "o.db")) as book:
            assert took(book, "plan", 1)
        assert (folder / "o.db").stat().st_mode & 0o777 == expected


def test_a_foreign_or_unwritable_file_is_one_line(path: Path, tmp_path: Path) -> None:
    path.write_text("something else, long enough to be no database at all" * 10)
    book = OwnersBook(path)
    assert not book.is_usable
    with pytest.raises(InputError, match="not a database"):
        took(book, "plan", 1)
    book.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        took(OwnersBook(tmp_path / "file" / "o.db"), "plan", 1)


def test_where_there_is_no_home_nothing_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run under numbers that have neither a name nor a folder."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("BURSAR_OWNERS", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert owners_file() is None


def test_where_the_folder_cannot_be_looked_into_nothing_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOME may still be another user's; a name too long stands for any folder of the kind."""
    monkeypatch.delenv("BURSAR_OWNERS", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ("x" * 300)))
    with known_owners() as owners:
        assert owners is None
    path = owners_file()
    assert path is not None
    with closing(OwnersBook(path)) as book:
        assert not book.is_usable
        assert book.others(SITE) == 0


def test_a_named_file_that_is_no_owners_book_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user named it: one line says which, and the exit status is that of wrong input."""
    text = tmp_path / "text"
    text.write_text("no database, " * 100)
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as db:
        db.execute("CREATE TABLE tasks (number INTEGER)")
        db.commit()
    for path in (tmp_path, text, other):
        monkeypatch.setenv("BURSAR_OWNERS", str(path))
        with known_owners() as owners:
            assert owners is not None
            with pytest.raises(InputError, match=path.name):
                owners.others(SITE)
    with closing(sqlite3.connect(other)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master")]
    assert names == ["tasks"]
