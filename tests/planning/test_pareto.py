"""What no other plan beats, against moocore."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.planning.front import EvaluatedPlan, ParetoArchive
from bursar.planning.policy import ScheduleRecipe
from bursar_devtools.front_measures import at_trade_off, hypervolume, nondominated

moocore = pytest.importorskip("moocore")

POINTS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=40)


@given(POINTS)
def test_nondominated_points_are_those_moocore_finds(points: list[tuple[int, int]]) -> None:
    array = np.array(points, dtype=float)

    kept = nondominated(array)

    expected = array[moocore.is_nondominated(array, keep_weakly=False)]
    assert sorted(map(tuple, array[kept])) == sorted(map(tuple, expected))
    assert array[kept, 0].tolist() == sorted(array[kept, 0])


@given(POINTS, st.tuples(st.integers(1, 14), st.integers(1, 14)))
def test_the_hypervolume_is_moocores(
    points: list[tuple[int, int]], reference: tuple[int, int]
) -> None:
    array = np.array(points, dtype=float)

    volume = hypervolume(array, reference)

    assert volume == pytest.approx(moocore.hypervolume(array, ref=np.array(reference, float)))


@given(POINTS)
def test_an_archive_keeps_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    archive = ParetoArchive()
    for makespan, cost in points:
        expected = archive.would_keep(makespan, cost)
        assert archive.add(EvaluatedPlan(makespan, cost, ScheduleRecipe(caps=()))) == expected

    array = np.array(points, dtype=float)
    assert archive.points.tolist() == array[nondominated(array)].tolist()


@given(POINTS, st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_the_trade_off_picks_the_least_weighted_sum(
    points: list[tuple[int, int]], weight: float
) -> None:
    """HPDC'07 equations 7 and 8, told plainly."""
    array = np.array(points, dtype=float)
    front = array[nondominated(array)]

    def scaled(value: float, of: list[float]) -> float:
        return (value - min(of)) / (max(of) - min(of)) if max(of) > min(of) else 0.0

    makespans, costs = front[:, 0].tolist(), front[:, 1].tolist()
    sums = [
        weight * scaled(c, costs) + (1 - weight) * scaled(m, makespans)
        for m, c in zip(makespans, costs, strict=True)
    ]

    chosen = at_trade_off(front, weight)

    assert sums[chosen] == pytest.approx(min(sums))
    assert all(value > sums[chosen] - 1e-9 for value in sums[:chosen])
