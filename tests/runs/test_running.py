"""A campaign carried out: budgets, thresholds, several sites, wide tasks."""

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bursar
from bursar.dispatch.journal import read_journal
from bursar.dispatch.journal_records import AttemptRecord
from bursar.engine.dispatcher import Dispatcher
from bursar.market.ledger import Ledger
from bursar.model.task import Status
from bursar.provisioning.pool import PilotPool
from bursar.provisioning.pool_snapshot import PoolDecision, PoolSnapshot
from bursar.runs.environment import StopOrder
from bursar.runs.folder import RunFolder
from bursar.runs.incarnations import leases_of


def site(name: str = "here", processors: int = 2, price: float | None = 1.0) -> bursar.SiteFacts:
    """A local one; its price is per processor-second."""
    return bursar.SiteFacts(
        name=name,
        processors=processors,
        unit_price=price,
        fixed_price=None if price is None else 0.0,
        currency="EUR",
    )


def campaign(*tasks: bursar.Task, attempts: int = 1, **goal: object) -> bursar.Campaign:
    """Of these tasks."""
    return bursar.Campaign(
        name="c",
        workflow=bursar.Workflow(tasks),
        goal=bursar.Goal(**goal),  # type: ignore[arg-type]
        retry=bursar.Retry(attempts=attempts, backoff=0.0),
    )


def shell(name: str, line: str, **more: object) -> bursar.Task:
    """A task of one line."""
    return bursar.Task(id=name, steps=(bursar.Shell(line),), **more)  # type: ignore[arg-type]


def messages(result: bursar.RunResult) -> str:
    """What the run said."""
    events = read_journal(result.path / "journal.sqlite").events
    return "\n".join(event.text for event in events if event.kind == "message")


def ledger(result: bursar.RunResult) -> Ledger:
    """Its ledger, which balances and holds nothing."""
    ledger = Ledger(read_journal(result.path / "journal.sqlite").transfers)
    assert sum(ledger.balances.values()) == 0
    assert ledger.held == 0
    return ledger


def test_a_task_that_overruns_its_estimate_cannot_overspend(tmp_path: Path) -> None:
    """Without a wall limit it is stopped when the money runs out, not after."""
    # More than a worker's start costs on a busy machine: else the task does not begin.
    wanted = campaign(shell("long", "sleep 60", runtime=0.1), budget=3.0)

    result = bursar.run(wanted, site(processors=1), runs=tmp_path)

    assert result.exit_status == 4
    assert ledger(result).spent <= 3_000_000
    assert ledger(result).spent >= 400_000
    assert result.to_dict()["state"] == "budget-stopped"
    (outcome,) = [r.outcome for r in read_journal(result.path / "journal.sqlite").records]
    assert outcome.status in (Status.CANCELLED, Status.TIMED_OUT)


def test_a_task_starts_only_if_the_budget_pays_for_its_worst_case(tmp_path: Path) -> None:
    """A wall limit that the budget does not cover: refused, though its estimate would fit."""
    wanted = campaign(shell("a", "true", runtime=0.1, wall_limit=100.0), budget=5.0)

    with pytest.raises(bursar.GoalOutOfReach):
        bursar.run(wanted, site(processors=1), runs=tmp_path)
    result = bursar.run(wanted, site(processors=1), runs=tmp_path, anyway=True)

    assert result.exit_status == 4
    assert result.to_dict()["attempts"] == 0
    assert "go on" not in messages(result)


@pytest.mark.parametrize(
    ("action", "ended", "status"),
    [
        pytest.param("warn", 4, 0, marks=pytest.mark.ci),
        ("drain", None, 4),
        pytest.param("stop", None, 4, marks=pytest.mark.ci),
    ],
)
def test_thresholds_act_in_a_real_run(
    tmp_path: Path, action: str, ended: int | None, status: int
) -> None:
    """A share of the budget warns, starts nothing more, or stops what runs."""
    tasks = [shell(f"t{i}", "sleep 0.6", runtime=0.6, wall_limit=2.0) for i in range(4)]
    wanted = campaign(*tasks, budget=8.0, on_budget={0.15: action})

    result = bursar.run(wanted, site(processors=1), runs=tmp_path, anyway=True)

    assert result.exit_status == status
    assert "15% of the budget is spent" in messages(result)
    outcomes = list(result.outcomes())
    if ended is not None:
        assert len(outcomes) == ended
    else:
        assert len(outcomes) < 4
    records = read_journal(result.path / "journal.sqlite").records
    stopped = [r for r in records if r.outcome.status is Status.CANCELLED]
    assert bool(stopped) == (action == "stop")
    ledger(result)


def test_sites_of_unknown_price_cost_an_unknown_amount(tmp_path: Path) -> None:
    """Never 0; the budget cannot be checked there, and the reason says so."""
    wanted = campaign(shell("a", "true", runtime=0.1), budget=1.0)

    result = bursar.run(wanted, site(price=None), runs=tmp_path)

    assert result.exit_status == 0
    assert result.to_dict()["cost"] is None
    assert result.bill().unpriced == ["here"]


def test_two_sites_are_leased_where_both_are_bought(tmp_path: Path) -> None:
    """A lease for each, tasks where they were placed, and a bill by site."""
    tasks = [shell(f"t{i}", "sleep 0.05", runtime=0.05) for i in range(6)]
    sites = [site("cheap", 1, 1.0), site("dear", 2, 2.0)]

    result = bursar.run(campaign(*tasks, trade_off=0.0), sites, runs=tmp_path)

    bill = result.bill()
    assert set(bill.by_site) == {"cheap", "dear"}
    assert sum(bill.by_site.values()) == bill.total == ledger(result).spent
    assert {item.site for item in bill.tasks} == {"cheap", "dear"}


def test_processors_go_back_when_nothing_is_left_for_them(tmp_path: Path) -> None:
    """The lease of the site that is done first ends, and is paid, long before the other's."""
    tasks = [shell("long", "sleep 4", runtime=4.0), shell("short", "sleep 0.2", runtime=0.2)]
    sites = [site("one", 1), site("other", 1)]

    result = bursar.run(campaign(*tasks, trade_off=0.0), sites, runs=tmp_path)

    ran = {item.task: item.site for item in result.bill().tasks}
    held = {item.site: item.seconds for item in result.bill().leases}
    assert ran["long"] != ran["short"]
    assert held[ran["short"]] + 2 < held[ran["long"]]
    assert ledger(result).spent == result.bill().total


class StopsAtTheFirst:
    """Ends a run, and what runs, when it hears of an attempt."""

    may_stop = True

    def heard(self, folder: RunFolder, record: AttemptRecord) -> StopOrder | None:
        return StopOrder("enough", at_once=True)


def test_nothing_begins_after_an_order_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the background task that ends what runs begins late, as on a busy machine."""
    stop = Dispatcher.stop

    async def late(self: Dispatcher, reason: str, *, grace: float = 5.0) -> None:
        await asyncio.sleep(0.5)
        await stop(self, reason, grace=grace)

    monkeypatch.setattr(Dispatcher, "stop", late)
    log = tmp_path / "log"
    tasks = [shell(str(number), f"echo {number} >> {log}") for number in range(4)]

    runs = tmp_path / "runs"
    bursar.run(campaign(*tasks), site(processors=1), runs=runs, listener=StopsAtTheFirst())

    assert len(log.read_text().split()) == 1


def test_a_wide_task_holds_its_processors(tmp_path: Path) -> None:
    """Beside a task of two processors nothing else runs on two."""
    log = tmp_path / "log"
    line = f"echo begin $BURSAR_PROCESSORS >> {log}; sleep 0.1; echo end >> {log}"
    tasks = [
        shell("n1", line, runtime=0.1),
        shell("n2", line, runtime=0.1),
        shell("wide", line, runtime=0.1, processors=2),
    ]

    result = bursar.run(campaign(*tasks), site(), runs=tmp_path)

    assert result.succeeded
    words = log.read_text().split("\n")
    at = words.index("begin 2")
    assert words[at + 1] == "end"
    busy = [w for w in words[:at] if w.startswith("begin")], words[:at].count("end")
    assert len(busy[0]) == busy[1]


def test_a_run_in_another_thread_needs_no_signals(tmp_path: Path) -> None:
    """A server or a notebook may start one; Ctrl-C is then theirs to handle."""
    found: list[bursar.RunResult] = []

    def work() -> None:
        found.append(bursar.run(campaign(shell("a", "true")), site(), runs=tmp_path))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert found[0].succeeded


def test_two_runs_of_one_name_leave_each_other_alone(tmp_path: Path) -> None:
    """What one begins with, killing what its earlier life left, is not the other's."""
    first: list[bursar.RunResult] = []
    mark = tmp_path / "mark"
    line = f"touch {mark}; sleep 0.5"

    def work() -> None:
        first.append(
            bursar.run(campaign(shell("a", line)), site(), runs=tmp_path / "x", name="same")
        )

    thread = threading.Thread(target=work)
    thread.start()
    while not mark.exists():
        thread.join(0.01)
    second = bursar.run(campaign(shell("a", "true")), site(), runs=tmp_path / "y", name="same")
    second = bursar.resume("same", runs=tmp_path / "y")
    thread.join()

    assert second.succeeded
    assert first[0].to_dict()["attempts"] == 1


def test_modules_in_the_users_folder_are_no_business_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A campaign's folder may well hold a socket.py."""
    (tmp_path / "socket.py").write_text("raise SystemExit('wrong module')")
    monkeypatch.chdir(tmp_path)

    assert bursar.run(campaign(shell("a", "true")), site(), runs=tmp_path).succeeded


@given(
    seconds=st.lists(st.sampled_from([0.0, 0.02, 0.1, 5.0]), min_size=1, max_size=6),
    budget=st.sampled_from([0.3, 0.8, 1.5]),
    limit=st.sampled_from([None, 0.05, 0.3]),
    processors=st.integers(1, 2),
)
@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_no_run_spends_more_than_its_budget(
    tmp_path: Path, seconds: list[float], budget: float, limit: float | None, processors: int
) -> None:
    """Whatever the tasks do: every lease is paid, nothing stays held, the bill adds up."""
    tasks = [
        shell(f"t{i}", f"sleep {s}", runtime=0.01, wall_limit=limit) for i, s in enumerate(seconds)
    ]

    result = bursar.run(
        campaign(*tasks, budget=budget), site(processors=processors), runs=tmp_path, anyway=True
    )

    books = ledger(result)
    assert books.spent <= books.funded == round(budget * 1e6)
    bill = result.bill()
    assert bill.total == books.spent
    assert sum(i.amount for i in bill.tasks) + sum(i.remainder for i in bill.leases) == bill.total
    assert result.exit_status in (0, 1, 4)


def test_a_pool_that_fails_gives_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong is told; leases are closed and paid all the same."""
    decide = PilotPool.decide

    def once(self: PilotPool, view: PoolSnapshot) -> list[PoolDecision]:
        if any(a.granted is not None for a in view.allocations):
            raise ValueError("a slip")
        return decide(self, view)

    monkeypatch.setattr(PilotPool, "decide", once)
    with pytest.raises((ValueError, bursar.BursarError), match="a slip"):
        bursar.run(
            campaign(shell("long", "sleep 60")), site(), provisioning="dynamic", runs=tmp_path
        )

    (folder,) = (path.parent for path in tmp_path.glob("*/journal.sqlite"))
    journal = read_journal(folder / "journal.sqlite")
    assert [lease.end is not None for lease in leases_of(journal.events).values()] == [True]
    assert Ledger(journal.transfers).held == 0
