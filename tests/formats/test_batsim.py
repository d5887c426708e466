"""Batsim's jobs.csv: its columns, and processors that no two jobs hold at once."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.cluster.simulation import simulate
from bursar.formats.trace_files import COLUMNS, allocate, write_jobs_csv
from bursar.model.errors import BursarError
from bursar.model.trace import Trace


def trace_of(rows: list[tuple[int, int, int, int]]) -> Trace:
    """Submit, run time, estimate and processors of each job."""
    submit, runtime, estimate, width = (np.array(c) for c in zip(*sorted(rows), strict=True))
    count = len(rows)
    return Trace(
        name='odd,"name',
        number=np.arange(1, count + 1),
        submit=submit.astype(float),
        runtime=runtime.astype(float),
        estimate=estimate.astype(float),
        processors=width,
        wait=np.full(count, math.nan),
        user=np.zeros(count, dtype=np.int64),
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 9), st.integers(1, 9), st.integers(1, 8)),
        min_size=1,
        max_size=25,
    )
)
def test_no_processor_is_held_twice(rows: list[tuple[int, int, int, int]]) -> None:
    """Every job holds as many as it asked for, of the machine, alone."""
    trace = trace_of(rows)
    result = simulate(trace, processors=8, policy="conservative")

    held = allocate(result.start, result.finish, trace.processors, 8)
    sets = [{n for first, after in spans for n in range(first, after)} for spans in held]

    for i, mine in enumerate(sets):
        assert len(mine) == trace.processors[i]
        assert mine <= set(range(8))
        for j in range(i):
            apart = result.finish[j] <= result.start[i] or result.finish[i] <= result.start[j]
            assert apart or not mine & sets[j]


def test_the_table_has_batsims_columns(tmp_path: Path) -> None:
    """In its order, one line for each job, whatever the log is called."""
    trace = trace_of([(0, 10, 5, 3), (2, 4, 4, 8)])
    result = simulate(trace, processors=8, policy="fcfs")
    path = tmp_path / "jobs.csv"

    write_jobs_csv(path, trace, result.start, result.finish, result.killed, 8)

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [row["final_state"] for row in rows] == [
        "COMPLETED_WALLTIME_REACHED",
        "COMPLETED_SUCCESSFULLY",
    ]
    assert [row["allocated_resources"] for row in rows] == ["0-2", "0-7"]
    second = rows[1]
    assert (second["starting_time"], second["waiting_time"], second["finish_time"]) == (
        "5",
        "3",
        "9",
    )
    assert float(second["stretch"]) == 7 / 4
    with pytest.raises(BursarError, match="cannot be written"):
        write_jobs_csv(tmp_path / "no" / "f", trace, result.start, result.finish, result.killed, 8)
