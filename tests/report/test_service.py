"""What people see of a service: progress, results, everything at a glance."""

import io
import re
import time

import msgspec
import pytest
from msgspec import structs
from rich.console import Console

from bursar.remote.admin_messages import Overview, WorkerInfo
from bursar.remote.forecast_messages import CostQuantiles, ForecastQuantiles, InstanceForecast
from bursar.remote.messages import (
    AccountInfo,
    Counts,
    InstanceInfo,
    Result,
)
from bursar.report.service_views import (
    InstanceProgress,
    ResultTable,
    outlook_of,
    overview_panel,
    own_panel,
    rates_between,
)


def console_of(width: int = 100, terminal: bool = False) -> Console:
    """One that keeps what is printed."""
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, no_color=True)


def text_of(console: Console) -> str:
    """What was printed."""
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def info(done: int, total: int = 100, failed: int = 0, note: str = "") -> InstanceInfo:
    """An instance of which so much is done."""
    counts = Counts(
        total=total, succeeded=done, failed=failed, running=1, waiting=total - done - failed - 1
    )
    return InstanceInfo(id="a" * 32, label="sweep", counts=counts, note=note)


def test_the_time_left_follows_from_the_speed() -> None:
    """20 of 100 in 10 s: 2/s, 79 and one running are left, 40 s."""
    console = console_of()
    with InstanceProgress(console) as progress:
        progress.update(info(0), now=100.0)
        progress.update(info(20), now=110.0)
    last = text_of(console).splitlines()[-1]
    assert last == "sweep: 20 of 100 done, 1 running, 79 waiting, 2/s, 40 s left"


def test_without_a_terminal_lines_are_sparse() -> None:
    """One at the begin, then after 2, 4, 8 ... seconds."""
    console = console_of()
    with InstanceProgress(console) as progress:
        for second in range(20):
            progress.update(info(second), now=100.0 + second)
    assert len(text_of(console).splitlines()) == 4


def test_why_nothing_runs_is_said() -> None:
    """By the service's own note."""
    console = console_of()
    with InstanceProgress(console) as progress:
        progress.update(info(0, note="the agreement has not begun"), now=1.0)
        progress.end(info(0))
    assert "(the agreement has not begun)" in text_of(console)


@pytest.mark.parametrize("terminal", [False, True])
def test_words_of_others_move_no_cursor(terminal: bool) -> None:
    """What a service says of an instance is not taken for commands to the terminal."""
    console = console_of(terminal=terminal)
    said = structs.replace(info(1, note="\x1b[2Jgone"), label="\x1b]0;title\x07")
    with InstanceProgress(console) as progress:
        progress.update(said, now=100.0)
        progress.update(said, now=110.0)
        progress.end(said)
    assert "title" in text_of(console)
    assert "\x1b]0" not in text_of(console)
    assert "\x1b[2J" not in text_of(console)


def test_results_are_a_line_each() -> None:
    """With the first line printed, or why it failed and the last complaint; no cursor moves."""
    console = console_of(width=40)
    table = ResultTable(console)
    good = Result(
        cursor=1, task=0, state="succeeded", exit_code=0, stdout="\x1b[2Jone\ntwo\n", host="n1"
    )
    bad = Result(
        cursor=2,
        task=1,
        state="failed",
        exit_code=3,
        reason="the command exited with 3",
        stderr="Traceback:\nValueError: seven\n",
    )
    silent = Result(cursor=3, task=2, state="failed", exit_code=1, reason="false exited with 1")
    table.print([good, bad, silent])
    table.end(3)

    lines = text_of(console).splitlines()

    assert len(lines) == 5
    assert lines[1].endswith("one")
    assert lines[2].endswith("the command exited with 3: ValueError: seven")
    assert lines[3].endswith("false exited with 1")
    assert lines[4] == "1 succeeded, 2 failed; cursor 3"
    assert "\x1b" not in text_of(console)


def test_no_results_are_said_to_be_none() -> None:
    """Not an empty table."""
    console = console_of()
    ResultTable(console).end(0)
    assert text_of(console) == "no results\n"


SEEN = Overview(
    at=110.0,
    since=100.0,
    instances=[info(20), structs.replace(info(0), label="[bold]idle[/bold]")],
    owners=["ann", "bob"],
    workers=[
        WorkerInfo(name="w1", host="n1", pool="shared", processors=4, busy=3, connected=True),
        WorkerInfo(name="w2", host="n2", pool="shared", processors=4, busy=0, connected=False),
    ],
    submitted=1000,
    started=500,
    finished=400,
    delivered=300,
    journal_bytes=2_500_000,
    spent=12_500_000,
)


def test_rates_are_of_the_time_between_two_looks() -> None:
    """None when the service was started anew between them: its counts began again."""
    later = structs.replace(SEEN, at=120.0, finished=600)
    rates = rates_between(SEEN, later)
    assert rates is not None
    assert rates["finished"] == pytest.approx(20.0)
    assert rates_between(SEEN, structs.replace(later, since=115.0)) is None
    assert rates_between(SEEN, SEEN) is None


def test_everything_is_seen_at_a_glance() -> None:
    """Processors of workers that are away do not count; what users wrote is no markup."""
    console = console_of()
    console.print(overview_panel("physics", SEEN, dict.fromkeys(_RATED, 2.0)))
    shown = text_of(console)
    assert "3/4 processors busy" in shown
    assert "12.5 SU spent" in shown
    assert "400 finished (2/s)" in shown
    assert "away" in shown
    assert "[bold]idle[/bold]" in shown


_RATED = ("submitted", "started", "finished", "delivered")


def test_many_rows_are_summed_up() -> None:
    """A screen has an end."""
    console = console_of()
    console.print(own_panel("physics", [info(1)] * 100, None))
    assert "and 85 more" in text_of(console)


def crowd(worker: int, instance: int) -> Overview:
    """A service with so many."""
    return structs.replace(
        SEEN,
        instances=[
            structs.replace(info(i % 5), id=f"{i:032x}", created=float(i)) for i in range(instance)
        ],
        owners=["somebody-with-a-long-name"] * instance,
        workers=[
            WorkerInfo(
                name=f"lease-{i:012x}.0",
                host="node-with-a-long-name.cluster.example.org",
                pool="shared:somebody",
                processors=8,
                busy=i % 3,
                connected=True,
            )
            for i in range(worker)
        ],
        degraded='workers of the account "ann" cannot be had: no such program',
    )


@pytest.mark.parametrize(("workers", "instances"), [(0, 0), (3, 40), (40, 3), (40, 40)])
def test_a_screen_of_80_by_24_holds_it(workers: int, instances: int) -> None:
    """Nothing is cut off below: each table says how many more there are, in lines of their own."""
    console = console_of(80, terminal=True)
    panel = overview_panel("physics", crowd(workers, instances), dict.fromkeys(_RATED, 2.0), 24)
    lines = console.render_lines(panel, pad=False)
    shown = ["".join(piece.text for piece in line) for line in lines]

    assert len(shown) <= 24
    if workers + instances > 20:
        assert len(shown) >= 23  # a table that is shown whole has no line of the rest
        rows = [line for line in shown if line.lstrip().startswith(("0000", "lease-"))]
        more = [int(line.split()[1]) for line in shown if line.startswith("and ")]
        assert len(rows) + sum(more) == workers + instances
    assert any('workers of the account "ann" cannot be had' in line for line in shown)


def test_rows_stay_where_they_are() -> None:
    """By age and by name, whatever order they are told in and whoever is busy now."""

    def rows(seen: Overview) -> list[str]:
        console = console_of(120)
        console.print(overview_panel("physics", seen, None))
        lines = text_of(console).splitlines()
        return [line.split()[0] for line in lines if line.startswith(("0000", "lease-"))]

    seen = crowd(10, 10)
    turned = structs.replace(seen, instances=seen.instances[::-1], workers=seen.workers[::-1])
    assert rows(seen) == rows(turned)
    assert rows(seen)[10:] == [f"lease-{i:012x}.0" for i in range(10)]


def forecast(**changes: object) -> InstanceForecast:
    """One for half past twelve of a day, local time, with both odds."""
    noon = time.mktime((2026, 11, 27, 12, 0, 0, 0, 0, -1))
    known: dict[str, object] = {
        "at": noon,
        "end": ForecastQuantiles(p10=noon + 1700, p50=noon + 1800, p90=noon + 2000),
        "cost": CostQuantiles(p10=1_100_000, p50=1_207_000, p90=1_548_000),
        "deadline_odds": 0.72,
        "budget_odds": 0.999,
    }
    return msgspec.convert(known | changes, InstanceForecast, from_attributes=True)


def test_a_forecast_is_shown_while_an_instance_is_watched() -> None:
    """From the 50 % figure to the 90 % one, with the odds of what was asked for."""
    console = console_of(160)
    with InstanceProgress(console) as progress:
        progress.update(structs.replace(info(20), forecast=forecast()), now=0.0)
    assert (
        text_of(console)
        .splitlines()[-1]
        .endswith("ends 12:30:00 to 12:33:20, cost 1.207 to 1.548, odds 72 % deadline, 99 % budget")
    )


def test_forecasts_fit_a_terminal_of_80_columns() -> None:
    """Nothing of ends, costs and odds is cut, also where an end lies on another day."""
    console = console_of(80)
    later = forecast(end={"p10": 2e9, "p50": 2e9 + 1, "p90": 2e9 + 2})
    shown = [
        structs.replace(info(20), forecast=forecast()),
        structs.replace(info(30), id="b" * 32, forecast=later),
        structs.replace(info(40), id="c" * 32),
    ]
    account = AccountInfo(user="ada", currency="SU", balance=5, held=0, spent=0)
    console.print(own_panel("physics", shown, account, height=24))
    lines = [" ".join(line.split()) for line in text_of(console).splitlines()]
    first = "aaaaaaaaaaaa 12:30:00 to 12:33:20 1.207 to 1.548 SU 72 % 99 %"
    assert first in lines
    assert any(re.match(r"b{12} \d\d-\d\d \d\d:\d\d to \d\d-\d\d", line) for line in lines)
    assert not any(line.startswith("cccc") and " to " in line for line in lines)


def test_a_forecast_without_limits_and_price_says_the_end_only() -> None:
    """No cost under an agreement, no odds where nothing was asked for."""
    bare = forecast(cost=None, deadline_odds=None, budget_odds=None)
    assert outlook_of(bare) == "ends 12:30:00 to 12:33:20"
