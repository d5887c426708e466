"""Jobs booked ahead on real sites, killed and resumed."""

import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_run import check_money

from bursar.broker.decision_reasons import BOOKING
from bursar.dispatch.journal import read_journal
from bursar.runs.incarnations import BEGIN, leases_of

JOBS = 4
SWEEP = f"""\
[campaign]
name = "ahead"
command = "sleep 0.3"
[parameters]
x = {{ from = 1, to = {JOBS}, step = 1 }}
[task]
runtime = "0.3"
id = "x{{x}}"
[retry]
backoff = 0
"""
SITES = """\
[site.uni]
kind = "local"
processors = 2
unit_price = 1
[[site.uni.price]]
kind = "advance"
steps = [["3s", 0.5]]
"""
RUN = ("run", "ahead.toml", "--sites", "sites.toml", "--strategy", "adaptive", "--name", "r", "-q")


@pytest.fixture
def ahead(folder: Any) -> Any:
    """A folder with four jobs, and a site that sells at half its price three seconds ahead."""
    folder.write("ahead.toml", SWEEP)
    folder.write("sites.toml", SITES)
    return folder


def booked(journal: Path) -> int:
    """How many bookings are journalled."""
    if not journal.exists():
        return 0
    try:
        return sum(event.kind == BOOKING for event in read_journal(journal).events)
    except Exception:  # it is being made
        return 0


def check_bookings(folder: Any) -> dict[str, Any]:
    """
    Check a run that has ended: each job succeeded once, and all is paid at what was agreed.

    Returns
    -------
    dict
        Its key figures.
    """
    told: dict[str, Any] = folder.json("report", "r")
    run = folder.path / "runs" / "r"
    journal = read_journal(run / "journal.sqlite")
    assert told["succeeded"] == JOBS
    assert told["held"] == 0
    assert sorted(r.outcome.task for r in journal.records if r.final) == list(range(JOBS))
    leases = leases_of(journal.events).values()
    owed = 0
    for lease in leases:
        assert lease.end is not None
        end = lease.end if lease.until is None else min(lease.end, lease.until)
        owed += lease.charge(max(0.0, end - lease.start))
    assert told["cost"] == pytest.approx(owed / 1e6, abs=1e-5 * len(leases))
    check_money(run, folder.json("bill", "r"))
    return told


@pytest.mark.ci
def test_jobs_are_booked_and_paid_at_the_advance_price(ahead: Any) -> None:
    """Half of what they cost at once, from the begin that was agreed."""
    ahead.bursar(*RUN, "--deadline", "60", "--budget", "20")

    check_bookings(ahead)
    events = read_journal(ahead.path / "runs" / "r" / "journal.sqlite").events
    begin = events[0].time
    leases = [lease for lease in leases_of(events).values() if lease.end > lease.start]
    assert {lease.unit_price for lease in leases} == {0.5}
    assert min(lease.start for lease in leases) - begin >= 3.0 - 1e-3


@pytest.mark.parametrize("pause", [0.0, pytest.param(4.0, marks=pytest.mark.long)], ids=str)
def test_a_booking_survives_the_run_that_made_it(ahead: Any, pause: float) -> None:
    """
    Killed before its bookings begin, a run keeps them, and pays for each once.

    Back in time, it takes them up. Back when they are over, it pays for what it had booked:
    the owner kept that for it; the jobs are booked anew.
    """
    process = ahead.start(*RUN, "--deadline", "60", "--budget", "20")
    journal = ahead.path / "runs" / "r" / "journal.sqlite"
    ahead.until(lambda: booked(journal) >= 2, process)
    time.sleep(0.2)  # what is booked is journalled with the money that is held
    process.signal_group(signal.SIGKILL)
    process.wait()
    before = leases_of(read_journal(journal).events)
    assert len(before) >= 2
    time.sleep(pause)

    ahead.bursar("run", "--resume", "r", "-q")

    check_bookings(ahead)
    events = read_journal(journal).events
    after = leases_of(events)
    back = [event.time for event in events if event.kind == BEGIN][1]
    missed = [name for name, lease in before.items() if lease.until <= back]
    assert missed or pause < 4.0
    for name, lease in before.items():
        assert after[name].unit_price == lease.unit_price == 0.5
        assert after[name].start >= lease.start
        if name in missed:
            assert (after[name].start, after[name].end) == (lease.start, lease.until)
    assert booked(journal) == JOBS + len(missed)


@pytest.mark.long
def test_twenty_random_kills_pay_each_booking_once(ahead: Any) -> None:
    """The same at random moments, with a seed."""
    dice = random.Random(18)
    for _ in range(20):
        process = ahead.start(*RUN, "--deadline", "120", "--budget", "20")
        journal = ahead.path / "runs" / "r" / "journal.sqlite"
        ahead.until(lambda there=journal: booked(there) >= 1, process)
        for _ in range(dice.randint(1, 3)):
            time.sleep(dice.uniform(0.5, 4.0))
            if process.poll() is not None:
                break
            process.signal_group(signal.SIGKILL)
            process.wait()
            process = ahead.start("run", "--resume", "r", "-q")
        process.communicate(timeout=60)
        assert check_bookings(ahead)["cost"] <= 20
        shutil.rmtree(ahead.path / "runs" / "r")
