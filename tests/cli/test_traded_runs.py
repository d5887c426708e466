"""Runs that buy from real services over HTTPS; their bills equal the services' ledgers."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Folder
from tests.service.service_process import PATIENCE, Served, served

from bursar.remote.access import Access
from bursar.remote.client import ServiceClient
from bursar.remote.messages import AgreementInfo
from bursar.service.identity.authority import AuthorityFolder

CAMPAIGN = """\
[campaign]
name = "c"
command = "sleep 0.1 && echo {x}"
[parameters]
x = [1, 2, 3, 4]
[task]
runtime = 0.1
"""

SELLS = """\
security = "tls"
certificate = "{pem}"
key = "{pem}"
[site]
processors = {processors}
unit_price = "{price} SU/core-hour"
[market]
must_buy = true
credit = "1000000 SU"
floor = 0.5
{more}
"""


class Seller:
    """
    A service that sells over HTTPS, and what its ledger says of the run's user.

    Parameters
    ----------
    ca
        Certificate of the authority that the service's own is signed by.
    """

    def __init__(self, name: str, service: Served, ca: Path) -> None:
        self.name = name
        self.service = service
        self.token_file = service.folder / "admin.token"
        self.url = f"https://127.0.0.1:{service.port}"
        self._access = Access(url=self.url, ca=ca, token=service.token)
        self.ca = ca

    def client(self) -> ServiceClient:
        return ServiceClient(self._access, patience=PATIENCE)

    def spent(self) -> int:
        """Micro-units that the user has paid."""
        with self.client() as client:
            account = client.account()
        assert account.held == 0
        return account.spent

    def agreements(self) -> list[AgreementInfo]:
        with self.client() as client:
            return client.agreements()

    def table(self, **more: object) -> str:
        """The service as a site of a sites file."""
        lines = [f"[site.{self.name}]", 'kind = "remote"', f'url = "{self.url}"']
        lines += [f'ca = "{self.ca}"', f'token_file = "{self.token_file}"', "processors = 2"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in more.items()]
        return "\n".join([*lines, f"[site.{self.name}.pool]", 'probe_every = "1s"', ""])


@pytest.fixture(scope="module")
def sellers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Seller]]:
    """Two owners of two processors each: one SU a second, and one and a third."""
    folder = tmp_path_factory.mktemp("sellers")
    authority = AuthorityFolder.create(folder / "certs", "test")
    authority.issue("server", "here", hosts=["127.0.0.1"])
    pem = authority.folder / "server-here.pem"
    with ExitStack() as stack:
        found = {}
        for name, price in (("cheap", 3600), ("dear", 4800)):
            text = SELLS.format(pem=pem, processors=2, price=price, more="")
            service = stack.enter_context(served(folder / name, text))
            found[name] = Seller(name, service, authority.trusted)
        yield found


@pytest.fixture
def here(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setenv("BURSAR_OWNERS", str(folder.path / "owners.sqlite"))
    monkeypatch.delenv("BURSAR_SITE", raising=False)
    folder.write("c.toml", CAMPAIGN)
    return folder


def bill_of(here: Folder, run: str) -> dict[str, Any]:
    bill: dict[str, Any] = json.loads((here.path / "runs" / run / "bill.json").read_text())
    return bill


def deals_of(here: Folder, run: str) -> list[dict[str, Any]]:
    """Every negotiation that brought processors to the first job."""
    placed = here.json("why", run, "c-0")["placed"]
    return [deal for one in placed for deal in one["deals"]]


PLAN, POOL = ("--provisioning", "planned"), ("--provisioning", "dynamic")


@pytest.mark.parametrize(
    ("market", "policy"),
    [
        pytest.param("posted", PLAN, id="posted-plan", marks=pytest.mark.ci),
        pytest.param("bargain", PLAN, id="bargain-plan", marks=pytest.mark.ci),
        pytest.param("bargain", POOL, id="bargain-pool", marks=pytest.mark.ci),
        pytest.param("tender", POOL, id="tender-pool"),
    ],
)
def test_the_bill_is_the_services_ledger_to_the_micro_unit(
    here: Folder, sellers: dict[str, Seller], market: str, policy: tuple[str, ...]
) -> None:
    """The lease has the seconds that the service counted, at the price that was agreed on."""
    seller = sellers["dear"]
    before, known = seller.spent(), {a.id for a in seller.agreements()}
    here.write("s.toml", seller.table(market=market))
    # What is planned for 0.1 s has ended before its job has crossed the network.
    here.write("c.toml", CAMPAIGN.replace("runtime = 0.1", "runtime = 5"))
    here.bursar("run", "c.toml", "--sites", "s.toml", "--name", "r", *policy)
    charged = {a.charged: a for a in seller.agreements() if a.id not in known}
    bill = bill_of(here, "r")
    assert bill["total_micros"] == seller.spent() - before == sum(charged)
    for lease in bill["leases"]:
        agreement = charged[lease["total_micros"]]
        assert lease["unit_price"] == agreement.unit_price
        held = lease["processors"] * lease["seconds"]
        assert held == pytest.approx(agreement.charged / 1e6 / agreement.unit_price, abs=1e-5)
        assert lease["agrees"]
    if market == "bargain":
        assert {lease["unit_price"] < 1.3 for lease in bill["leases"]} == {True}


OWNER = """\
[site.mine]
processors = 2
unit_price = "4000 SU/core-hour"
market = "tender"
"""
"""An owner inside the run, whose bid lies between those of the two services."""


@pytest.mark.ci
def test_a_pool_calls_all_its_sites_for_tenders(here: Folder, sellers: dict[str, Seller]) -> None:
    """The lowest bid of two services and an owner of the sites file; ``why`` shows all three."""
    cheap = sellers["cheap"]
    before = cheap.spent()
    tables = [seller.table(market="tender") for seller in sellers.values()]
    here.write("s.toml", "".join([OWNER, *tables]))
    here.write("one.toml", CAMPAIGN.replace("[1, 2, 3, 4]", "[1, 2]"))
    # With a budget every request has an end, which services and owners bid for alike.
    here.bursar("run", "one.toml", "--sites", "s.toml", "--name", "r", "--budget", "5000", *POOL)
    (deal,) = deals_of(here, "r")[:1]
    assert (deal["site"], deal["market"], deal["next_best"]) == ("cheap", "tender", "mine")
    assert {a["owner"]: a["state"] for a in deal["answers"]} == {
        "cheap": "agreed",
        "mine": "offered",
        "dear": "offered",
    }
    assert bill_of(here, "r")["total_micros"] == cheap.spent() - before
    shown = here.bursar("why", "r", "c-0").stdout
    assert "tender: agreed on" in shown
    assert "next best: mine" in shown


@pytest.mark.ci
def test_a_tender_passes_over_who_does_not_answer(here: Folder, sellers: dict[str, Seller]) -> None:
    """A service that is away bids nothing, and the next best gets the request."""
    cheap = sellers["cheap"]
    away = cheap.table(market="tender", unit_price="3600 SU/core-hour", patience="1s")
    port = str(cheap.service.port)
    away = away.replace(f":{port}", ":1").replace("processors = 2", "processors = 9")
    here.write("s.toml", away + sellers["dear"].table(market="tender"))
    before = sellers["dear"].spent()
    here.write("two.toml", CAMPAIGN.replace("[1, 2, 3, 4]", "[1, 2]"))
    here.bursar("run", "two.toml", "--sites", "s.toml", "--name", "r", "--budget", "5000", *POOL)
    bill = bill_of(here, "r")
    assert {lease["site"] for lease in bill["leases"]} == {"dear"}
    answers = {a["owner"]: a["state"] for a in deals_of(here, "r")[0]["answers"]}
    assert answers == {"dear": "agreed", "cheap": "silent"}
    assert bill["total_micros"] == sellers["dear"].spent() - before


@pytest.mark.ci
def test_a_tender_of_a_killed_run_is_settled_by_the_next_process(
    here: Folder, sellers: dict[str, Seller]
) -> None:
    """What it was awarded is ended and paid once; nothing stays open at either service."""
    tables = [seller.table(market="tender") for seller in sellers.values()]
    here.write("s.toml", "".join(tables))
    gate = f"until test -e {here.path / 'go'}; do sleep 0.05; done"
    here.write("long.toml", CAMPAIGN.replace("sleep 0.1", gate))
    before = sum(seller.spent() for seller in sellers.values())
    process = here.start("run", "long.toml", "--sites", "s.toml", "--name", "k", *POOL)
    here.until(lambda: any(a.ready for s in sellers.values() for a in s.agreements()), process)
    process.kill()
    process.wait()
    here.write("go", "")
    here.bursar("run", "--resume", "k")
    assert bill_of(here, "k")["total_micros"] == sum(s.spent() for s in sellers.values()) - before


# An agreement that was made by hand.


def agreement_of(seller: Seller, ident: str) -> AgreementInfo:
    return next(a for a in seller.agreements() if a.id == ident)


@pytest.mark.ci
@pytest.mark.parametrize("policy", [pytest.param(PLAN, id="plan"), pytest.param(POOL, id="pool")])
def test_a_run_uses_an_agreement_made_by_hand(
    here: Folder, sellers: dict[str, Seller], policy: tuple[str, ...]
) -> None:
    """The bill has its whole price; nothing else is bought, and it goes on after the run."""
    cheap = sellers["cheap"]
    here.write("s.toml", cheap.table())
    made = here.json("tender", "-p", "2", "--for", "60s", "--sites", "s.toml")
    known = {a.id for a in cheap.agreements()}
    words = ("run", "c.toml", "--sites", "s.toml", "--agreement", made["agreement"], *policy)
    here.bursar(*words, "--name", "r", "--budget", "121")
    assert {a.id for a in cheap.agreements()} == known
    assert agreement_of(cheap, made["agreement"]).state == "running"
    bill = bill_of(here, "r")
    (lease,) = bill["leases"]
    assert (bill["total_micros"], lease["processors"]) == (made["amount"], 2)
    assert bill["total_micros"] == 120_000_000
    short = here.bursar(*words, "--fresh", "--name", "s", "--budget", "119", status=None)
    assert short.returncode != 0
    here.json("account", "cancel", made["agreement"], "--site", cheap.url, env=access_to(cheap))


@pytest.mark.ci
def test_a_run_gives_an_agreement_back_where_it_is_told_to(
    here: Folder, sellers: dict[str, Seller]
) -> None:
    """Its bill is then what the service has charged, to the micro-unit."""
    dear = sellers["dear"]
    here.write("s.toml", sellers["cheap"].table() + dear.table())
    made = here.json("tender", "-p", "1", "--for", "60s", "--sites", "s.toml")
    name = made["owner"]
    used = f"{made['agreement']}@{name}"
    before = sellers[name].agreements()
    here.write("s.toml", sellers[name].table())
    words = ("run", "c.toml", "--sites", "s.toml", "--agreement", used, "--give-back", *POOL)
    here.bursar(*words, "--name", "r")
    ended = agreement_of(sellers[name], made["agreement"])
    assert ended.state in ("cancelled", "over")
    assert len(sellers[name].agreements()) == len(before)
    assert 0 < bill_of(here, "r")["total_micros"] == ended.charged < made["amount"]
    gone = here.bursar(*words, "--fresh", "--name", "s", status=None)
    assert gone.returncode != 0
    assert f"agreement {made['agreement']} is" in gone.stderr


def access_to(seller: Seller) -> dict[str, str]:
    """Environment by which a command reaches a service."""
    return {**os.environ, "BURSAR_TOKEN": seller.service.token, "BURSAR_CA": str(seller.ca)}


# Auctions that a service holds.

RULES = ("english", "dutch", "first-price", "vickrey", "share")

HOUSE = "".join(
    f'[[market.auctions]]\nrule = "{rule}"\nprocessors = 1\nduration = 20\nevery = 4\nlasts = 2\n'
    for rule in RULES
)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seller]:
    """An owner that auctions a processor for 20 s by each rule, every four seconds."""
    folder = tmp_path_factory.mktemp("house")
    authority = AuthorityFolder.create(folder / "certs", "test")
    authority.issue("server", "here", hosts=["127.0.0.1"])
    pem = authority.folder / "server-here.pem"
    text = SELLS.format(pem=pem, processors=40, price=3600, more=HOUSE)
    with served(folder / "state", text) as service:
        yield Seller("house", service, authority.trusted)


@pytest.mark.parametrize(
    "rule",
    [
        rule
        if rule == "english"
        else pytest.param(rule, marks=pytest.mark.ci if rule == "vickrey" else pytest.mark.long)
        for rule in RULES
    ],
)
def test_a_run_buys_in_the_auctions_of_a_service(here: Folder, house: Seller, rule: str) -> None:
    """What was won is used, paid by the service's charge, and told by ``why``."""
    before = house.spent()
    here.write("s.toml", house.table(market=rule, reserve_price="3000 SU/core-hour"))
    here.bursar("run", "c.toml", "--sites", "s.toml", "--name", "r", "--budget", "200", *POOL)
    (deal,) = deals_of(here, "r")[:1]
    assert (deal["market"], deal["processors"], deal["seconds"]) == (rule, 1, 20)
    most = 3000 / 3600 * 20 * 1e6
    assert deal["limit"] == pytest.approx(most, abs=2)
    assert 0.5 * 20e6 - 2 <= deal["amount"] <= most + 2
    assert bill_of(here, "r")["total_micros"] == house.spent() - before > 0
    assert here.bursar("why", "r", "c-0").stdout.count("agreed on") == 1


@pytest.mark.ci
def test_a_lost_lot_leaves_the_run_to_its_other_sites(here: Folder, house: Seller) -> None:
    """Below the reserve nothing is won; the jobs run elsewhere, and nothing is paid there."""
    before = house.spent()
    here.write(
        "s.toml",
        house.table(market="first-price", reserve_price="1 SU/core-hour", market_patience="10s")
        + '[site.mine]\nprocessors = 1\nunit_price = "9999 SU/core-hour"\n',
    )
    here.bursar("run", "c.toml", "--sites", "s.toml", "--name", "r", *POOL)
    assert {lease["site"] for lease in bill_of(here, "r")["leases"]} == {"mine"}
    assert house.spent() == before


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("run", "--market", "english", "--sites", "own.toml"), "--market: no site holds"),
        (("simulate", "--market", "dutch", "--sites", "far.toml"), "simulated time has no auct"),
        (("run", "--agreement", "a", "--sites", "own.toml"), "--agreement: there are 0 sites"),
        (("run", "--agreement", "a@b", "--sites", "far.toml"), '"b" is no site with kind'),
        (("run", "--give-back", "--sites", "far.toml"), "--give-back: goes with --agreement"),
        (("simulate", "--agreement", "a", "--sites", "far.toml"), "--agreement: "),
        (("run", "--sites", "both.toml"), "agreement: is bought already"),
        (("run", "--sites", "auction.toml"), "market: an owner in this file holds no auctions"),
        (
            ("run", "--market", "share", "--strategy", "cost", "--sites", "far.toml"),
            "its processors come as a whole",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    here: Folder, words: tuple[str, ...], complaint: str
) -> None:
    far = '[site.far]\nkind = "remote"\nurl = "http://127.0.0.1:1"\nprocessors = 1\n'
    far += 'patience = "1s"\nunit_price = 1\n'
    here.write("far.toml", far)
    here.write("both.toml", far + 'market = "tender"\nagreement = "a"\n')
    here.write("own.toml", "[site.own]\nunit_price = 1\n")
    here.write("auction.toml", '[site.own]\nunit_price = 1\nmarket = "english"\n')
    refused = here.bursar(words[0], "c.toml", *words[1:], status=2)
    assert complaint in refused.stderr
