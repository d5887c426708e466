"""The bill's items are the ledger, to the micro-unit."""

import io
import json
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bursar.dispatch.journal_records import AttemptRecord
from bursar.market.lease import Lease
from bursar.market.ledger import Ledger
from bursar.model.money import ExchangeRate
from bursar.model.task import Outcome, Status, Task
from bursar.report.bill import SiteFigures, make_bill, print_bill

PRICE = st.sampled_from([0.0, 1e-9, 1 / 3600, 0.37, 12.5])
SECONDS = st.floats(0.0, 50.0)
STATUS = st.sampled_from([Status.SUCCEEDED, Status.FAILED, Status.LOST])


@given(
    prices=st.lists(st.tuples(PRICE, PRICE), min_size=1, max_size=3),
    attempts=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 2), SECONDS, SECONDS, STATUS), max_size=30
    ),
    widths=st.lists(st.integers(1, 4), min_size=10, max_size=10),
    shortfall=st.integers(0, 10),
)
def test_tasks_and_remainders_add_up_to_what_was_paid(
    prices: list[tuple[float, float]],
    attempts: list[tuple[int, int, float, float, Status]],
    widths: list[int],
    shortfall: int,
) -> None:
    """
    Whatever was run, at any price, also where a lease could not be paid in full.
    """
    tasks = [Task(id=f"t{i}", processors=width) for i, width in enumerate(widths)]
    leases = [
        Lease(
            id=f"lease-{i}",
            site=f"s{i}",
            processors=8,
            unit_price=unit,
            fixed_price=fixed,
            start=0.0,
            end=100.0,
        )
        for i, (unit, fixed) in enumerate(prices)
    ]
    ledger = Ledger()
    for lease in leases:
        paid = max(0, lease.charge(8 * 100.0) - shortfall)
        if paid:
            ledger.grant(0.0, "", "", paid)
            ledger.hold(0.0, "", "", lease.id, paid)
            ledger.settle(100.0, "", lease.id, lease.site, paid)
    records = [
        AttemptRecord(
            Outcome(task=task, attempt=n, status=status, start=begin, end=begin + seconds),
            status is Status.SUCCEEDED,
            f"s{site % len(leases)}",
            f"lease-{site % len(leases)}",
        )
        for n, (task, site, begin, seconds, status) in enumerate(
            sorted(attempts, key=lambda a: a[0]), 1
        )
    ]

    bill = make_bill("run", ledger, leases, tasks, records)

    assert bill.total == ledger.spent == sum(item.total for item in bill.leases)
    assert sum(i.amount for i in bill.tasks) == sum(i.tasks for i in bill.leases)
    assert all(i.tasks + i.remainder == i.total for i in bill.leases)
    assert all(i.tasks >= 0 for i in bill.leases)
    assert all(0 <= i.repeated <= i.amount for i in bill.tasks)
    assert sum(bill.by_site.values()) == bill.total
    assert bill.to_dict()["total_micros"] == bill.total


def test_many_short_tasks_are_billed_for_what_they_used() -> None:
    """
    Ten thousand tasks of a tenth of a micro-unit each bear a thousand of them together.
    """
    lease = Lease(
        id="l", site="s", processors=1, unit_price=1e-4, fixed_price=0.0, start=0.0, end=10.0
    )
    ledger = Ledger()
    ledger.grant(0.0, "", "", 1000)
    ledger.hold(0.0, "", "", "l", 1000)
    ledger.settle(10.0, "", "l", "s", 1000)
    tasks = [Task(id=str(i)) for i in range(10_000)]
    records = [
        AttemptRecord(
            Outcome(task=i, attempt=1, status=Status.SUCCEEDED, start=i / 1e3, end=(i + 1) / 1e3),
            True,
            "s",
            "l",
        )
        for i in range(10_000)
    ]

    bill = make_bill("run", ledger, [lease], tasks, records)

    assert bill.leases[0].tasks in (999, 1000)  # the sum of floats may miss by one
    assert {item.amount for item in bill.tasks} == {0, 1}


def test_the_printed_bill_names_what_is_unknown() -> None:
    """
    A site without a price is said to be unpriced; nothing is printed as free.
    """
    lease = Lease(
        id="l", site="dark", processors=1, unit_price=None, fixed_price=None, start=0.0, end=1.0
    )
    bill = make_bill("run", Ledger(), [lease], [], [])
    text = io.StringIO()
    print_bill(bill, console=Console(file=text, width=100))

    assert bill.unpriced == ["dark"]
    assert "dark" in text.getvalue()
    assert "unknown" in text.getvalue()


def test_the_dearest_tasks_are_printed_first_and_the_rest_on_request() -> None:
    """Ten of them by amount, how many more there are, and all of them with every."""
    lease = Lease(
        id="l", site="s", processors=1, unit_price=1.0, fixed_price=5.0, start=0.0, end=120.0
    )
    ledger = Ledger()
    ledger.grant(0.0, "", "", 125_000_000)
    ledger.hold(0.0, "", "", "l", 125_000_000)
    ledger.settle(120.0, "", "l", "s", 125_000_000)
    tasks = [Task(id=f"task-{i}") for i in range(15)]
    begins = [sum(range(1, i + 1)) for i in range(16)]  # task i takes i + 1 seconds: 120 in all
    records = [
        AttemptRecord(
            Outcome(
                task=i,
                attempt=1,
                status=Status.SUCCEEDED,
                start=float(begins[i]),
                end=float(begins[i + 1]),
            ),
            True,
            "s",
            "l",
        )
        for i in range(15)
    ]
    bill = make_bill("run", ledger, [lease], tasks, records)
    few, all_of_them = io.StringIO(), io.StringIO()
    print_bill(bill, console=Console(file=few, width=120))
    print_bill(bill, every=True, console=Console(file=all_of_them, width=120))

    rows = re.findall(r"task-(\d+) +1 +\S+ s +(\S+) SU", few.getvalue())
    assert [(int(number), float(paid)) for number, paid in rows] == [
        (i, i + 1.0) for i in range(14, 4, -1)
    ]
    assert "and 5 more tasks" in few.getvalue()
    assert len(re.findall(r"task-\d+", all_of_them.getvalue())) == 15
    assert bill.leases[0].tasks == 120_000_000
    assert bill.leases[0].remainder == 5_000_000  # the fixed charge
    assert "total: 125" in few.getvalue()


def test_a_bill_as_json_holds_whole_micro_units() -> None:
    """What sums in the file sums to the total, without a rounding; an open lease is not on it."""
    done = Lease(
        id="l", site="s", processors=2, unit_price=1 / 3600, fixed_price=0.0, start=0.0, end=10.0
    )
    going = Lease(id="m", site="s", processors=1, unit_price=1.0, fixed_price=0.0, start=10.0)
    ledger = Ledger()
    ledger.grant(0.0, "", "", 10_000)
    ledger.hold(0.0, "", "", "l", 6000)
    ledger.settle(10.0, "", "l", "s", 5556)
    tasks = [Task(id="a", name="k"), Task(id="b")]
    records = [
        AttemptRecord(
            Outcome(task=0, attempt=1, status=Status.LOST, start=0.0, end=3.0), False, "s", "l"
        ),
        AttemptRecord(
            Outcome(task=0, attempt=2, status=Status.SUCCEEDED, start=4.0, end=9.0), True, "s", "l"
        ),
        AttemptRecord(
            Outcome(task=1, attempt=1, status=Status.SUCCEEDED, start=0.0, end=7.0), True, "s", "l"
        ),
    ]

    told = json.loads(json.dumps(make_bill("run", ledger, [done, going], tasks, records).to_dict()))

    (item,) = told["leases"]
    assert told["total_micros"] == item["total_micros"] == 5556
    assert item["tasks_micros"] + item["remainder_micros"] == 5556
    assert sum(task["amount_micros"] for task in told["tasks"]) == item["tasks_micros"]
    assert told["granted_micros"] == 10_000
    assert told["held_micros"] == 444
    first = told["tasks"][0]
    assert (first["attempts"], first["processor_seconds"]) == (2, 8.0)
    assert first["repeated_micros"] == 833  # three of 3,600 seconds, rounded down


def test_a_site_of_another_currency_is_billed_in_both() -> None:
    """1.2 EUR at 0.012 EUR for an SU are 100 SU."""
    figures = SiteFigures(
        site="uni",
        amount=1_200_000,
        billed=100.0,
        recorded=100.0,
        agrees=True,
        differing=[],
        exchange=ExchangeRate(currency="SU", rate=0.012, since="2026-11-01"),
    )
    said = "100 CPU s billed, 100 by uni's own record: they agree; 100 SU at 0.012"
    assert str(figures) == f"{said} (rate since 2026-11-01)"
