"""The book of many users by the command: what it says, what it moves, what it refuses."""

import asyncio
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bursar.cli.ledger import register
from bursar.dispatch.journal import RunJournal, read_journal
from bursar.market.book import Book, read_book
from bursar.market.grants import GrantPeriod
from bursar.market.ledger import Ledger
from bursar.model.errors import BudgetStop, BursarError, InputError
from bursar.model.money import MICROS, Refusal
from bursar.runs.folder import RunFolder
from bursar.service.billing.service_ledger import ServiceLedger
from bursar.store import RealDisk, RecordStore

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "ledger.md"
CAMPAIGN = """\
[campaign]
name = "three"
command = "echo {x}"
[parameters]
x = [1, 2, 3]
[task]
runtime = 0.1
"""
SITES = """\
[site.here]
kind = "local"
processors = 1
unit_price = "3600 SU/core-hour"
"""


class Desk:
    """The command group over one book."""

    def __init__(self, path: Path) -> None:
        self.book = path / "test.book"
        self._app = typer.Typer()
        register(self._app)
        self._app.command("other")(lambda: None)

    def says(self, *words: str) -> str:
        """What a command prints; its error is raised."""
        runner = CliRunner(env={"BURSAR_BOOK": str(self.book), "COLUMNS": "200"})
        result = runner.invoke(self._app, ["ledger", *words], catch_exceptions=True)
        if isinstance(result.exception, BursarError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *words: str) -> Any:
        """Its answer with ``--json``."""
        return json.loads(self.says(*words, "--json"))

    def refuses(self, *words: str, match: str, error: type[BursarError] = InputError) -> None:
        """One line, and nothing moves."""
        before = self.book.read_bytes() if self.book.exists() else None
        with pytest.raises(error, match=match) as caught:
            self.says(*words)
        assert "\n" not in str(caught.value).partition("\nhint: ")[0]
        assert (self.book.read_bytes() if self.book.exists() else None) == before

    def balance(self, account: str) -> int:
        return read_book(self.book).accounts.balance(account)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """With ann, who has 100 SU, and the provider uni."""
    desk = Desk(tmp_path)
    desk.says("open", "ann", "--group", "lab", "--quota", "80 SU", "--per", "year")
    desk.says("open", "uni", "--kind", "provider")
    desk.says("grant", "ann", "100")
    return desk


async def keep_accounts(folder: Path) -> None:
    """Leave a service's folder behind in which ann has paid 3 SU, and 1 SU is held for ben."""
    disk = RealDisk(folder / "journal")
    store = RecordStore(disk, reserve=0)
    ledger = ServiceLedger(store, "uni", "SU", lambda user: 5 * MICROS)
    await store.open()
    ledger.open()
    ledger.hold("ann", "a", 4 * MICROS, 1.0)
    ledger.settle("a", 3 * MICROS, 2.0)
    ledger.hold("ben", "b", MICROS, 3.0)
    await store.close()
    disk.close()


def test_the_accounts_of_a_stopped_service_are_read_as_a_book(tmp_path: Path) -> None:
    """Shown and verified; only the service writes them."""
    desk = Desk(tmp_path)
    desk.book = tmp_path / "state"
    asyncio.run(keep_accounts(desk.book))
    before = sorted(path.name for path in (desk.book / "journal").iterdir())

    verified = desk.json("verify")
    assert (verified["rows"], verified["faults"]) == (6, [])
    accounts = {one["name"]: one for one in desk.json("accounts")["accounts"]}
    assert accounts["ann"]["balance_micros"] == 2 * MICROS
    assert accounts["ben"]["held_micros"] == MICROS
    assert desk.json("invoice", "uni (owner)", "ann")["total_micros"] == 3 * MICROS
    assert desk.json("statement", "ann")["closing_micros"] == 2 * MICROS
    assert len(desk.json("rows", "--account", "ben")["rows"]) == 2
    assert desk.json("verify")["head"] == verified["head"]
    assert sorted(path.name for path in (desk.book / "journal").iterdir()) == before
    with pytest.raises(InputError, match="is a folder, expected the file of a book"):
        desk.says("grant", "ann", "5")

    desk.book = tmp_path
    with pytest.raises(InputError, match="is the folder of no service"):
        desk.says("verify")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that paid a site: made once, since it takes a while."""
    folder = tmp_path_factory.mktemp("original")
    (folder / "c.toml").write_text(CAMPAIGN)
    (folder / "s.toml").write_text(SITES)
    words = ["run", "c.toml", "--sites", "s.toml", "--name", "three", "--json"]
    subprocess.run(
        [sys.executable, "-m", "bursar", *words], cwd=folder, check=True, capture_output=True
    )
    return folder / "runs" / "three"


@pytest.fixture
def ran(original: Path, tmp_path: Path) -> RunFolder:
    """A copy of it."""
    shutil.copytree(original, tmp_path / "runs" / "three")
    return RunFolder.open(tmp_path / "runs", "three")


def paid_by(run: RunFolder) -> int:
    spent: int = Ledger(read_journal(run.journal_file).transfers).spent
    assert spent > 0
    return spent


def charge(desk: Desk, run: RunFolder, user: str = "ann") -> Any:
    return desk.json("charge", run.name, "--user", user, "--runs", str(run.path.parent))


def test_accounts_show_what_there_is(desk: Desk) -> None:
    found = desk.json("accounts")
    assert found["granted_micros"] == 100 * MICROS
    ann, uni = found["accounts"]
    assert (ann["balance_micros"], ann["quota_micros"]) == (100 * MICROS, 80 * MICROS)
    assert (ann["quota_per"], ann["used_micros"], ann["group"]) == ("year", 0, "lab")
    assert (uni["kind"], uni["balance_micros"], uni["quota_micros"]) == ("provider", 0, None)
    text = desk.says("accounts")
    assert "80 SU per year" in text
    assert "100 SU" in text


def test_a_run_is_charged_once_whatever_it_is_asked(desk: Desk, ran: RunFolder) -> None:
    """The site is paid what the run's ledger paid it, to the unit; again, nothing moves."""
    paid = paid_by(ran)
    first = charge(desk, ran)
    assert [row["kind"] for row in first["rows"]] == ["hold", "settle"]
    assert desk.balance("provider:here") == paid
    assert desk.balance("user:ann") == 100 * MICROS - paid

    before = desk.book.read_bytes()
    assert charge(desk, ran) == first
    assert desk.book.read_bytes() == before
    assert desk.json("verify")["faults"] == []


def test_a_charged_run_is_on_statement_and_invoice(desk: Desk, ran: RunFolder) -> None:
    """Which agree, and say how many processor-seconds were delivered."""
    paid = paid_by(ran)
    charge(desk, ran)
    refunded = min(1000, paid)
    amount = f"0.{refunded:06}"
    desk.says("refund", "three/lease-1", amount, "--reason", "a [cold] start", "--key", "r1")
    desk.says("refund", "three/lease-1", amount, "--reason", "a [cold] start", "--key", "r1")

    mine, theirs = desk.json("statement", "ann"), desk.json("statement", "here")
    assert mine["closing_micros"] == 100 * MICROS - paid + refunded
    assert theirs["closing_micros"] == paid - refunded
    invoice = desk.json("invoice", "here", "ann")
    assert invoice["total_micros"] == paid - refunded
    assert invoice["refunds_micros"] == refunded
    (item,) = invoice["items"]
    assert item["memos"] == ["a [cold] start"]
    # One unit of money is one processor-second here, rounded up once.
    assert item["processor_seconds"] * MICROS == pytest.approx(paid, abs=2)
    assert "a [cold] start" in desk.says("statement", "ann")
    assert "total:" in desk.says("invoice", "here", "ann")


def test_a_period_bounds_statements_invoices_and_rows(desk: Desk) -> None:
    assert desk.json("statement", "ann", "--period", "2001")["lines"] == []
    assert desk.json("rows", "--period", "2001-02-03")["rows"] == []
    assert desk.json("invoice", "uni", "ann", "--period", "2001-01..2001-03")["items"] == []
    assert len(desk.json("rows", "--period", "2020..2999")["rows"]) == 1
    desk.refuses("rows", "--period", "soon", match='expected a period .*, got "soon"')


def test_rows_of_an_account_include_its_agreements(desk: Desk) -> None:
    desk.says("open", "ben")
    desk.says("grant", "ben", "5")
    with Book(desk.book) as book:
        book.hold(1.0, "h", "ann", "a", 10)
        book.settle(2.0, "s", "a", "uni", 7)
    kinds = [row["kind"] for row in desk.json("rows", "--account", "ann")["rows"]]
    assert kinds == ["grant", "hold", "settle"]
    kinds = [row["kind"] for row in desk.json("rows", "--account", "uni")["rows"]]
    assert kinds == ["settle"]
    assert "held:a" in desk.says("rows")


def test_signed_usage_is_evidence(desk: Desk, ran: RunFolder, tmp_path: Path) -> None:
    """Each record once, as signed; a changed one, or another's key, is noticed."""
    charge(desk, ran)
    key, chain = tmp_path / "here.pem", tmp_path / "here.jsonl"
    desk.says("key", str(key))
    sign = ("sign", "here", str(chain), "--key", str(key))
    check = ("check", str(chain), "--public", f"{key}.pub")

    assert desk.json(*sign) == {"provider": "here", "signed": 1, "records": 1}
    assert desk.json(*sign)["signed"] == 0
    assert desk.json(*check) == {"records": 1, "faults": []}
    assert key.stat().st_mode & 0o077 == 0

    chain.write_text(chain.read_text().replace('"processors":1', '"processors":2'))
    with pytest.raises(BursarError, match="was changed"):
        desk.says(*check)
    chain.write_text("{\n")
    with pytest.raises(InputError, match=r"here\.jsonl:1"):
        desk.says(*check)
    with pytest.raises(InputError, match="nobody"):
        desk.says("sign", "nobody", str(chain), "--key", str(key))


def test_a_charge_over_the_allocation_moves_nothing(desk: Desk, ran: RunFolder) -> None:
    """Status 4, as a budget; the provider it would have opened is not there either."""
    desk.says("open", "poor")
    desk.says("grant", "poor", "0.000001")
    words = ("charge", "three", "--user", "poor", "--runs", str(ran.path.parent))
    desk.refuses(*words, match="user:poor is .* SU short", error=BudgetStop)
    assert "here" not in read_book(desk.book).accounts.accounts


def test_a_charge_over_the_quota_moves_nothing_until_it_is_raised(
    desk: Desk, ran: RunFolder
) -> None:
    desk.says("quota", "ann", "0.000001", "--per", "month")
    words = ("charge", "three", "--user", "ann", "--runs", str(ran.path.parent))
    desk.refuses(*words, match="over the quota of ann", error=BudgetStop)
    desk.says("quota", "ann", "none")
    assert len(charge(desk, ran)["rows"]) == 2


def test_a_run_is_charged_to_one_user(desk: Desk, ran: RunFolder) -> None:
    desk.says("open", "ben")
    charge(desk, ran)
    words = ("charge", "three", "--user", "ben", "--runs", str(ran.path.parent))
    desk.refuses(*words, match='run "three" was charged to ann')


def test_another_run_of_the_same_name_is_not_mistaken_for_it(desk: Desk, ran: RunFolder) -> None:
    charge(desk, ran)
    info = ran.read_info()
    info.created += 1
    ran.write_info(info)
    words = ("charge", "three", "--user", "ann", "--runs", str(ran.path.parent))
    desk.refuses(*words, match='the book has another run "three"')


def test_a_run_that_has_not_ended_is_not_charged(desk: Desk, ran: RunFolder) -> None:
    """Nor one that was cut off before its lease was paid."""
    words = ("charge", "three", "--user", "ann", "--runs", str(ran.path.parent))
    info = ran.read_info()
    info.state = "running"
    ran.write_info(info)
    with closing(RunJournal(ran.journal_file)):
        desk.refuses(*words, match='run "three" has not ended: it is running')
    whole = read_journal(ran.journal_file)
    for suffix in ("", ".head"):
        Path(f"{ran.journal_file}{suffix}").unlink()
    with closing(RunJournal(ran.journal_file)) as cut:
        cut.commit(whole.records, whole.transfers[:2], whole.events)
    assert len(whole.transfers) > 2
    desk.refuses(*words, match="was cut off with money set aside")
    desk.refuses("charge", "tree", *words[2:], match='no run "tree"')


def test_a_run_in_another_currency_is_not_charged(desk: Desk, ran: RunFolder) -> None:
    other = Desk(desk.book.parent / "runs")
    other.says("open", "ann", "--currency", "EUR")
    other.says("grant", "ann", "100 EUR")
    words = ("charge", "three", "--user", "ann", "--runs", str(ran.path.parent))
    other.refuses(*words, match='run "three" paid in SU, the book is in EUR')


@pytest.mark.parametrize("amount", ["", "much", "0", "0.0000001", "9e13", "nan", "inf", "5 EUR"])
def test_what_is_no_amount_is_refused(desk: Desk, amount: str) -> None:
    desk.refuses("grant", "ann", amount, match="amount|larger|the book is in SU")


def test_an_amount_is_exact_to_the_micro_unit(desk: Desk) -> None:
    """Also where a float has no room for its digits."""
    desk.says("grant", "ann", "123456789012.123457 SU")
    assert desk.balance("user:ann") == 123456789112_123457


def test_a_grant_with_a_key_is_made_once(desk: Desk) -> None:
    one = desk.json("grant", "ann", "5", "--key", "november", "--memo", "for November")
    two = desk.json("grant", "ann", "5", "--key", "november", "--memo", "for November")
    assert one == two
    assert desk.balance("user:ann") == 105 * MICROS
    desk.refuses("grant", "ann", "6", "--key", "november", match="was used for something else")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("grant", "an", "5"), 'no account "an"\nhint: did you mean "ann"'),
        (("grant", "uni", "5"), '"uni" is a provider, expected a user'),
        (("open", "ann"), 'there is an account "ann"'),
        (("open", " "), "name and group must be printable"),
        (("open", "x", "--kind", "bank"), "--kind: expected user or provider"),
        (("open", "x", "--kind", "provider", "--quota", "5"), "no group and no quota"),
        (("open", "x", "--quota", "5", "--per", "week"), "a quota is per"),
        (("open", "x", "--quota", "5 EUR"), "the book is in SU"),
        (("open", "x", "--currency", "EUR"), "is in SU, not in EUR"),
        (("open", "x", "--currency", "5"), "--currency: a currency is named by"),
        (("quota", "uni", "5"), '"uni" is a provider, expected a user'),
        (("refund", "zz", "5", "--reason", "x"), 'no agreement "zz"'),
        (("statement", "zz"), 'no account "zz"'),
        (("invoice", "ann", "uni"), '"ann" is a user, expected a provider'),
        (("rows", "--account", "zz"), 'no account "zz"'),
    ],
)
def test_bad_input_is_one_line(desk: Desk, words: tuple[str, ...], match: str) -> None:
    desk.refuses(*words, match=match)


def test_a_refund_is_of_what_was_paid(desk: Desk) -> None:
    with Book(desk.book) as book:
        book.hold(1.0, "h", "ann", "a", 10)
    desk.refuses("refund", "a", "0.000001", "--reason", "x", match="nothing was paid for a")
    with Book(desk.book) as book:
        book.settle(2.0, "s", "a", "uni", 7)
    desk.refuses("refund", "a", "0.000008", "--reason", "x", match="0.000007 SU are left")
    desk.refuses("refund", "a", "0.000007", "--reason", " ", match="--reason")
    desk.says("refund", "a", "0.000007", "--reason", "down all week")
    assert desk.balance("provider:uni") == 0


def test_only_open_makes_a_book(tmp_path: Path) -> None:
    """And not where its own input is bad."""
    desk = Desk(tmp_path)
    for words in ("accounts", "verify", "rows", "grant ann 5", "quota ann 5", "statement ann"):
        desk.refuses(*words.split(), match="there is no book")
    desk.refuses("open", "ann", "--quota", "much", match="expected an amount")
    assert list(tmp_path.iterdir()) == []


def test_verify_finds_a_changed_row(desk: Desk) -> None:
    head = desk.json("verify")["head"]
    assert head in desk.says("verify")
    db = sqlite3.connect(desk.book)
    db.execute("UPDATE rows SET amount = amount + 1")
    db.commit()
    db.close()
    desk.refuses("verify", match="row 1: was changed, or one before it is missing")


def granted_for_a_time(desk: Desk) -> Any:
    desk.says("grant", "ann", "1", "--period", "2199")
    return [desk.json("burndown", "ann"), desk.json("accounts")]


def test_every_key_is_documented(desk: Desk, ran: RunFolder) -> None:
    text = re.sub(r"^```.*?^```", "", REFERENCE.read_text(), flags=re.M | re.S)
    quoted = " ".join(re.findall(r"`([^`]+)`", text))
    words = set(re.findall(r"\w+", quoted))
    documents = [
        charge(desk, ran),
        desk.json("accounts"),
        desk.json("statement", "ann"),
        desk.json("invoice", "here", "ann"),
        desk.json("verify"),
        granted_for_a_time(desk),
    ]

    def keys_of(value: Any) -> set[str]:
        if isinstance(value, dict):
            return set(value).union(*(keys_of(item) for item in value.values()))
        if isinstance(value, list):
            return set().union(*(keys_of(item) for item in value))
        return set()

    assert keys_of(documents) <= words, keys_of(documents) - words


def test_a_grant_for_a_time_lapses_and_is_forecast(tmp_path: Path) -> None:
    """What is granted for a time is listed with its end, charted, and given back at the end."""
    desk = Desk(tmp_path)
    desk.says("open", "ann")
    desk.says("open", "uni", "--kind", "provider")
    row = desk.json("grant", "ann", "100", "--period", "2020..2199")["rows"][0]
    assert row["agreement"] == "2020-01-01T00:00:00Z/2200-01-01T00:00:00Z"
    desk.says("grant", "ann", "5", "--period", "2198")
    with Book(desk.book) as book:
        year = 365 * 86400.0
        assert book.available("ann", 1_800_000_000.0) == 100 * MICROS
        book.grant(0.0, "old", "ann", 3 * MICROS, period=GrantPeriod(0.0, year))
    assert [r["amount_micros"] for r in desk.json("lapse")["rows"]] == [3 * MICROS]
    assert desk.json("lapse")["rows"] == []
    assert desk.json("verify")["faults"] == []
    assert "ann: 100 SU may be spent from 2020-01-01 until 2199-12-31" in desk.says("accounts")
    (ann, _) = desk.json("accounts")["accounts"]
    assert [g["left_micros"] for g in ann["grants"]] == [0, 5 * MICROS, 100 * MICROS]
    said = desk.says("burndown", "ann", "--chart", str(tmp_path / "burn.svg"))
    assert "nothing is spent now" not in said
    assert "100 SU unspent at the end, on 2199-12-31" in said
    assert "100 SU from 2020-01-01 until 2199-12-31" in (tmp_path / "burn.svg").read_text()
    burns = desk.json("burndown", "ann")["grants"]
    assert burns[2]["unspent_micros"]["p50"] == 100 * MICROS


def test_a_grant_for_a_time_is_refused_in_one_line(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.says("open", "ann")
    desk.refuses("grant", "ann", "1", "--period", "2020", match="expected a time that is not over")
    desk.refuses("grant", "ann", "1", "--period", "soon", match="soon")
    desk.refuses("burndown", "ann", match="ann has no grant with a period")
    desk.says("grant", "ann", "1", "--period", "2199")
    desk.refuses("burndown", "ann", "--chart", "x.pdf", match="expected .html, .png, .svg")


def test_a_run_is_paid_only_by_grants_of_its_time(tmp_path: Path) -> None:
    """Money that may be spent later is not there yet."""
    desk = Desk(tmp_path)
    desk.says("open", "ann")
    desk.says("grant", "ann", "100", "--period", "2199")
    with Book(desk.book) as book:
        assert book.available("ann", 1_800_000_000.0) == 0
        refused = book.hold(1_800_000_000.0, "k", "ann", "run/budget", MICROS)
    assert isinstance(refused, Refusal)
    assert "0 SU of 100 SU that may be spent at this time" in refused.reason
