"""``bursar exchange`` between real processes: an exchange, services of owners, and their users."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.forked import ForkedCommand
from tests.service.service_process import Served, served

from bursar.remote.access import Access
from bursar.remote.admin_messages import NewToken
from bursar.remote.client import ServiceClient

SECONDS = 600
CREDIT = 1_000_000_000
"""Credit of each user at the exchange, micro-units."""

EXCHANGE = """
[site]
processors = 1
[market]
protocols = []
credit = "1000 SU"
[market.exchange]
rule = "{rule}"
every = {every}
confirm = {confirm}
duration = {seconds}
"""

OWNER = """
[site]
processors = 4
[market]
credit = "0 SU"
"""
"""Nobody has money here but what was paid at the exchange."""


@dataclass
class Town:
    """An exchange, and services of owners; each user has a file of its services and tokens."""

    folder: Path
    exchange: Served
    services: dict[str, Served]
    running: list[ForkedCommand] = field(default_factory=list)

    def start(self, user: str, *words: str, own: str = "") -> ForkedCommand:
        """Begin a command of a user."""
        command = ForkedCommand(
            ["exchange", *words, "--site", "exchange"], self.folder, self.environment(user, own)
        )
        self.running.append(command)
        return command

    def sell(self, owner: str, *words: str) -> ForkedCommand:
        return self.start(owner, "ask", *words, "--from", owner, "--json", own=owner)

    def environment(self, user: str, own: str = "") -> dict[str, str]:
        path = self.folder / f"{user}.toml"
        if not path.exists():
            text = self._entry(user, "exchange", self.exchange, ["submit", "read"])
            for name, service in self.services.items():
                scopes = ["submit", "read", *(["sell"] if name == own else [])]
                text += self._entry(user, name, service, scopes)
            path.write_text(text)
        kept = {key: value for key, value in os.environ.items() if key != "BURSAR_SITE"}
        return kept | {"BURSAR_SERVICES": str(path)}

    def _entry(self, user: str, name: str, service: Served, scopes: list[Any]) -> str:
        with service.client() as client:
            token = client.create_token(NewToken(user=user, scopes=scopes)).token
        file = self.folder / f"{user}-{name}"
        file.write_text(token)
        file.chmod(0o600)
        url = f"http://127.0.0.1:{service.port}"
        return f'[service.{name}]\nurl = "{url}"\ntoken_file = "{file}"\n'

    def client(self, user: str, name: str) -> ServiceClient:
        service = self.exchange if name == "exchange" else self.services[name]
        self.environment(user)
        token = (self.folder / f"{user}-{name}").read_text()
        return ServiceClient(Access(url=f"http://127.0.0.1:{service.port}", token=token))

    def announce(self, within: int) -> float:
        """Have the book cleared in so many seconds, and never again; return when."""
        # The next multiple of a period that is nearly all time since 1970.
        closes = int(time.time()) + within
        rest = self.exchange.text.partition("every =")
        tail = rest[2].partition("\n")[2]
        self.exchange.text = f"{rest[0]}every = {closes}\n{tail}"
        self.restart()
        return float(closes)

    def restart(self) -> None:
        """Kill the exchange, and start it again."""
        self.exchange.kill()
        self.exchange.start("--exchange")


@contextmanager
def town(folder: Path, owners: int, *, rule: str = "double", confirm: int = 20) -> Iterator[Town]:
    """Processes of an exchange and of so many owners' services."""
    with ExitStack() as stack:
        services = {
            f"owner-{number}": stack.enter_context(served(folder / f"owner-{number}-state", OWNER))
            for number in range(owners)
        }
        text = EXCHANGE.format(rule=rule, every=10**9, confirm=confirm, seconds=SECONDS)
        exchange = stack.enter_context(served(folder / "exchange-state", text, "--exchange"))
        made = Town(folder, exchange, services)
        try:
            yield made
        finally:
            for command in made.running:
                if command.poll() is None:
                    command.kill()
                    command.communicate(60.0)


def result(command: ForkedCommand, status: int = 0) -> dict[str, Any]:
    said, errors = command.communicate(120.0)
    assert command.returncode == status, errors
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.ci
def test_three_owners_and_five_buyers_meet(tmp_path: Path) -> None:
    """
    Asks of 2 processors at 1, 2 and 5 SU per core-hour meet bids of one at 6 to 2: four trade.

    Four bids (6, 5, 4, 3) meet the asks at 1 and 2. The price is the middle of [2, 3]: the
    marginal bid of 3 and the ask of 2, with the bid of 2 and the ask of 5 left over: 2.5 SU a
    core-hour. The exchange is killed while orders stand, and after the clearing.
    """
    prices = (6, 5, 4, 3, 2)
    with town(tmp_path, 3) as made:
        for name in made.services:
            made.environment(name, name)
        for price in prices:
            made.environment(f"buyer-{price}")
        closes = made.announce(20)
        asks = {
            name: made.sell(name, f"{price} SU/core-hour", "-p", "2", "--key", "one")
            for name, price in zip(made.services, (1, 2, 5), strict=True)
        }
        bids = {
            f"buyer-{price}": made.start(
                f"buyer-{price}", "bid", f"{price} SU/core-hour", "-p", "1", "--json"
            )
            for price in prices
        }
        with made.client("buyer-6", "exchange") as client:
            while not client.exchange_orders():
                time.sleep(0.1)
        made.restart()
        while time.time() < closes + 0.2:
            time.sleep(0.1)
        made.restart()

        bought = {name: result(bid, 3 if name == "buyer-2" else 0) for name, bid in bids.items()}
        sold = {name: result(ask, 3 if name == "owner-2" else 0) for name, ask in asks.items()}

        price = round(2.5 * SECONDS / 3600 * 1_000_000)
        taken: set[str] = set()
        for name, outcome in bought.items():
            with made.client(name, "exchange") as client:
                account = client.account()
            if name == "buyer-2":
                assert (account.balance, account.held, account.spent) == (CREDIT, 0, 0)
                continue
            (trade,) = outcome["trades"]
            assert (trade["state"], trade["amount"]) == ("delivered", price)
            assert (account.balance, account.held, account.spent) == (CREDIT - price, 0, price)
            taken.add(trade["agreement"])
            # The agreement is the buyer's, at the service that the trade names.
            port = int(trade["service"].rpartition(":")[2])
            (owner,) = (n for n, service in made.services.items() if service.port == port)
            with made.client(name, owner) as client:
                (agreement,) = client.agreements()
                account = client.account()
            assert (agreement.id, agreement.processors) == (trade["agreement"], 1)
            assert (agreement.held, account.balance) == (price, 0)
            assert abs(agreement.start - (closes + 20)) < 1e-6
        assert len(taken) == 4
        for name, service in made.services.items():
            with made.client(name, "exchange") as client:
                earned = client.exchange().earned
            with made.client(name, name) as client:
                sales = client.sales()
                slots = client.site().slots
            deals = [d for listed in sales.values() for d in listed.agreements]
            live = [deal for deal in deals if deal.state in ("signed", "running")]
            assert earned == sum(deal.held for deal in live) == price * len(live)
            assert len(live) == (0 if name == "owner-2" else 2)
            assert {deal.id for deal in live} == set(sold[name]["agreements"])
            assert slots[0].processors <= 4
            assert service.process is not None
        with made.client("owner-2", "exchange") as client:
            (clearing,) = client.exchange().clearings
        assert (clearing.price, clearing.processors) == (price, 4)


@pytest.mark.long
def test_shares_and_a_seller_that_is_gone(tmp_path: Path) -> None:
    """
    Bids of 30 and 10 SU share 4 processors of two owners: 3 to 1.

    The command of the first owner is killed, and goes on by its key. That of the second is killed
    for good: its trades are undone at the start, and it is named. So the first buyer pays 20 of
    its 30 SU, and the other nothing.
    """
    with town(tmp_path, 2, rule="share", confirm=5) as made:
        for name in made.services:
            made.environment(name, name)
        for name in ("ann", "bob"):
            made.environment(name)
        made.announce(20)
        for name in made.services:
            asking = made.sell(name, "-p", "2", "--key", "one")
            with made.client(name, "exchange") as client:
                while not client.exchange_orders():
                    assert asking.poll() is None, asking.communicate(10.0)
                    time.sleep(0.05)
            asking.kill()
            asking.communicate(60.0)
        first = made.sell("owner-0", "-p", "2", "--key", "one")
        ann = made.start("ann", "bid", "30 SU", "--json")
        with made.client("ann", "exchange") as client:
            while not client.exchange_orders():
                time.sleep(0.05)
        bob = made.start("bob", "bid", "10", "--json")
        trades = result(ann)["trades"]
        assert [(t["processors"], t["amount"], t["state"]) for t in trades] == [
            (2, 20_000_000, "delivered"),
            (1, 10_000_000, "undone"),
        ]
        assert trades[1]["seller"] == "owner-1"
        (lost,) = result(bob, 3)["trades"]
        assert (lost["state"], lost["seller"]) == ("undone", "owner-1")
        assert result(first)["agreements"] == [trades[0]["agreement"]]
        for name, paid in (("ann", 20_000_000), ("bob", 0)):
            with made.client(name, "exchange") as client:
                account = client.account()
            assert (account.balance, account.held, account.spent) == (CREDIT - paid, 0, paid)
        # Started again too late, the command says so, and gives the processors back.
        assert result(made.sell("owner-1", "-p", "2", "--key", "one"), 3)["agreements"] == []
        with made.client("owner-1", "owner-1") as client:
            assert [deal.state for deal in client.agreements()] in (["over"], ["cancelled"])


@pytest.mark.ci
def test_wrong_orders_are_one_line(tmp_path: Path) -> None:
    """What, where, and what was expected; nothing is set aside for them."""
    wrong = {
        ("bid", "much", "-p", "1"): "PRICE: expected a price",
        ("bid", "5"): "--processors: expected how many",
        ("bid", "1 EUR/core-hour", "-p", "1"): "PRICE: the exchange counts in SU",
        ("bid", "1e12", "-p", "9"): "PRICE: the whole order is too large",
        ("bid", "10000", "-p", "1"): "exchange: costs 6000000 SU, the account has 1000 SU",
        ("ask", "-p", "1", "--from", "owner-0"): "PRICE: expected the lowest price",
        ("ask", "1", "-p", "5", "--from", "owner-0"): "owner-0: processors: has 4 processors",
        ("withdraw", "nothing"): 'exchange: no order "nothing"',
    }
    with town(tmp_path, 1) as made:
        made.environment("owner-0", "owner-0")
        for words, said in wrong.items():
            command = made.start("owner-0", *words)
            _, errors = command.communicate(60.0)
            assert command.returncode == (1 if "costs" in said else 2), errors
            assert errors.startswith(f"bursar: {said}"), errors
            assert errors.count("\n") <= 2, errors
        with made.client("owner-0", "exchange") as client:
            assert client.exchange_orders() == []
            assert client.account().held == 0
        with made.client("owner-0", "owner-0") as client:
            assert client.agreements() == []
        # The tables, with nothing in them and with an order.
        for words, said in (("orders", "no orders"), ("trades", "no trades")):
            shown, _ = made.start("owner-0", words).communicate(60.0)
            assert shown.strip() == said
        bid = made.start("owner-0", "bid", "6 SU/core-hour", "-p", "2", "--no-wait")
        assert bid.communicate(60.0)[0] == ""
        shown, _ = made.start("owner-0", "orders").communicate(60.0)
        assert "bid, 2 at 1 SU each" in shown
        with made.client("owner-0", "exchange") as client:
            (order,) = client.exchange_orders()
        taken = made.start("owner-0", "withdraw", order.id)
        assert taken.communicate(60.0)[1] == f"withdrawn: {order.id}\n"
