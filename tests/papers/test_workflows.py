"""Workflows of the papers have the shapes that these state."""

import numpy as np
import pytest

from bursar.model.errors import InputError
from bursar_papers.hpdc07_slots import poisson_slots
from bursar_papers.workflows import BANDWIDTH, cybershake, layered


def test_layered_graphs_have_their_depth_parents_and_means() -> None:
    rng = np.random.default_rng(1)

    workflow = layered(rng, tasks=2000, depth=40, mean_transfer=50, mean_processors=22)

    level: list[int] = []
    for parents in workflow.parents:
        level.append(1 + max((level[p] for p in parents), default=0))
    assert max(level) == 40
    assert set(level) == set(range(1, 41))
    below = [len(p) for p, k in zip(workflow.parents, level, strict=True) if k > 1]
    assert np.mean(below) > 1.95
    assert np.mean([t.runtime or 0 for t in workflow.tasks]) == pytest.approx(100, rel=0.05)
    assert np.mean([t.processors for t in workflow.tasks]) == pytest.approx(22, rel=0.05)
    sizes = [t.outputs[0].size or 0 for t in workflow.tasks]
    assert np.mean(sizes) / BANDWIDTH == pytest.approx(50, rel=0.05)


def test_the_slots_of_the_study() -> None:
    """124 of them on four sites, from 0, of 1000 s and 1000 s apart; and equal seeds."""
    slots = poisson_slots(np.random.default_rng(7))

    assert len(slots) == 124
    assert {slot.site for slot in slots if slot.start == 0.0} == {
        "site-10", "site-20", "site-30", "site-40",
    }  # fmt: skip
    assert all(slot.processors <= int(slot.site[5:]) for slot in slots)
    assert all(slot.start < 30_000 for slot in slots)
    assert not any(slot.divisible or slot.extensible for slot in slots)
    assert {(slot.unit_price, slot.fixed_price) for slot in slots} == {(1.0, 0.0)}
    assert slots == poisson_slots(np.random.default_rng(7))
    many = poisson_slots(np.random.default_rng(2), until=1e6, count=None)
    assert np.mean([slot.duration for slot in many]) == pytest.approx(1000, rel=0.05)
    assert len(many) == pytest.approx(4 * 1001, rel=0.05)
    with pytest.raises(InputError, match="too far"):
        poisson_slots(np.random.default_rng(1), until=100.0)


def test_equal_seeds_give_equal_graphs() -> None:
    one, two = (layered(np.random.default_rng(3), tasks=50, depth=7) for _ in range(2))

    assert one == two


def test_cybershake_is_table_1_and_figure_8() -> None:
    workflow = cybershake()

    assert len(workflow.tasks) == 8039
    work = sum((t.runtime or 0) * t.processors for t in workflow.tasks)
    expected = 1 + 300 + 288 * (2100 + 2 * 86_400) + 4017 * (519 + 1)
    assert work == pytest.approx(expected)
    assert {len(p) for p in workflow.parents} == {0, 1, 2}


def test_out_of_range_is_refused() -> None:
    for wrong in ({"depth": 0}, {"depth": 9}, {"mean_processors": 0.5}, {"mean_runtime": 0.0}):
        with pytest.raises(InputError):
            layered(np.random.default_rng(0), **({"tasks": 8, "depth": 3} | wrong))  # type: ignore[arg-type]
