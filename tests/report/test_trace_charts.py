"""Pictures of clusters: every rectangle of a schedule, and curves that keep their area."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bursar.cluster.machine import Machine
from bursar.cluster.simulation import simulate
from bursar.model.errors import InputError
from bursar.report.charts import save_chart
from bursar.report.traces import comparison_chart, gantt_chart, state_chart
from bursar.simulation.workloads import poisson_background


def values(chart: Any, part: int | None = None) -> list[dict[str, Any]]:
    """The rows that a chart, or a part of one, draws."""
    spec = chart.to_dict()
    data = (spec if part is None else spec["vconcat"][part])["data"]
    rows: list[dict[str, Any]] = spec["datasets"][data["name"]]
    return rows


def test_a_state_is_drawn_as_it_is_planned(tmp_path: Path) -> None:
    """Running, reserved and waiting, from now on; the areas add up."""
    machine = Machine(4, "conservative")
    for width, length in ((2, 4.0), (3, 2.0), (1, 9.0)):
        machine.submit(width, length)
    machine.advance(1.0)
    machine.reserve(20.0, 5.0, 4)

    chart = state_chart(machine)
    save_chart(chart, tmp_path / "now.png")

    rows = values(chart)
    assert {row["job"] for row in rows} == {
        "job 0, runs", "job 2, runs", "job 1, waits", "reservation 1",
    }  # fmt: skip
    area = sum((row["end"] - row["start"]) * 3600 * (row["to"] - row["from"]) for row in rows)
    assert area == pytest.approx(2 * 3 + 1 * 8 + 3 * 2 + 4 * 5)
    assert (tmp_path / "now.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="nothing is running"):
        state_chart(Machine(4))


def test_a_part_of_a_schedule_is_cut_at_its_edges() -> None:
    """And more than can be told apart is refused with a way out."""
    begin, end, width = np.array([0.0, 10.0]), np.array([8.0, 20.0]), np.array([1, 2])
    chart = gantt_chart(begin, end, width, 2, ["a", "b"], first=7200 / 3600, last=12.0)
    assert [(r["job"], r["start"] * 3600, r["end"] * 3600) for r in values(chart)] == [
        ("a", 2.0, 8.0),
        ("b", 10.0, 12.0),
    ]
    many = np.arange(30_000.0)
    with pytest.raises(InputError, match="more than the 20000") as caught:
        gantt_chart(many, many + 1, np.ones(30_000, dtype=int), 1, ["j"] * 30_000,
                    first=0.0, last=1e9)  # fmt: skip
    assert caught.value.hint is not None


def test_curves_are_thinned_without_changing_their_mean() -> None:
    """However many steps there are, the average queue is the same."""
    trace = poisson_background(np.random.default_rng(1), processors=20, until=2e6)
    results = {p: simulate(trace, processors=20, policy=p) for p in ("fcfs", "easy")}  # type: ignore[arg-type]

    queue = values(comparison_chart(trace, results), 0)

    for policy, result in results.items():
        shown = [row["value"] for row in queue if row["policy"] == policy]
        span = float(max(result.start.max(), trace.submit.max()) - trace.submit[0])
        assert len(shown) <= 400
        assert np.mean(shown) == pytest.approx((result.start - trace.submit).sum() / span, rel=0.01)
