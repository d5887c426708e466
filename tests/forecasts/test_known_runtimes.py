"""Which earlier tasks say something of a campaign's kinds."""

from pathlib import Path

import numpy as np
import pytest

from bursar.forecasts.known_runtimes import known_runtimes
from bursar.forecasts.runtime_draws import draw_runtimes
from bursar.history.observation import TaskObservation
from bursar.history.store import History
from bursar.history.writing import ExecutionFacts
from bursar.model.campaign import Campaign, Workflow
from bursar.model.task import Task


def history(folder: Path, seconds: dict[str, list[float]], template: str = "") -> History:
    """Return a history in which each kind took so long, one execution after the other."""
    made = History(folder / "history.sqlite")
    made.add(
        TaskObservation(
            execution=f"run-{number}",
            task=kind,
            kind=kind,
            template=template,
            site="here",
            start=1e9 + 1e4 * number,
            seconds=value,
        )
        for kind, values in seconds.items()
        for number, value in enumerate(values)
    )
    return made


def campaign(*names: str, templates: dict[str, str] | None = None) -> Campaign:
    tasks = tuple(Task(id=f"t{at}", name=name) for at, name in enumerate(names))
    return Campaign(name="c", workflow=Workflow(tasks), templates=templates or {})


def test_a_kind_that_never_ran_has_the_run_times_of_its_family(tmp_path: Path) -> None:
    """Another size of the campaign has more parts, whose names differ in a number."""
    source = history(tmp_path, {"align chr1": [50.0], "align chr2": [52.0], "merge": [3.0]})

    known = known_runtimes(campaign("align chr1", "align chr7", "merge"), ["here"], source)

    assert known.kinds == ("align chr#", "merge")
    assert known.medians() == pytest.approx([51.0, 51.0, 3.0], rel=0.05)
    assert known.observed == 3


def test_names_that_take_longer_than_their_family_are_told_apart(tmp_path: Path) -> None:
    """A name's own earlier tasks count where several executions show that they say something."""
    times = {f"part {n}": [10.0 * 1.05**n * f for f in (1.0, 1.1, 0.95)] for n in range(20)}

    known = known_runtimes(
        campaign(*(f"part {n}" for n in range(20))), ["here"], history(tmp_path, times)
    )

    medians = known.medians()
    assert medians[19] / medians[0] == pytest.approx(1.05**19, rel=0.4)


def test_kinds_that_took_very_different_times_are_no_family(tmp_path: Path) -> None:
    """A number in a name may number the steps."""
    source = history(tmp_path, {"step 1": [1.0, 1.1], "step 2": [500.0, 520.0]})

    known = known_runtimes(campaign("step 1", "step 2"), ["here"], source)

    assert known.kinds == ("step 1", "step 2")


def test_a_family_is_of_one_command(tmp_path: Path) -> None:
    """Numbered names of different programs have nothing in common."""
    templates = {"step 1": "split {x}", "step 2": "solve {x}"}
    source = history(tmp_path, {"step 1": [1.0]}, template="split {x}")

    known = known_runtimes(campaign("step 1", "step 2", templates=templates), ["here"], source)

    assert known.kinds == ("step 1", "step 2")
    assert np.isnan(known.medians()[1])


def test_tasks_of_one_family_are_slow_together(tmp_path: Path) -> None:
    """Forty tasks with a name each vary as one kind does, not as forty."""
    times = {f"part {n}": [10.0, 14.0, 8.0] for n in range(40)}
    known = known_runtimes(
        campaign(*(f"part {n}" for n in range(40))), ["here"], history(tmp_path, times)
    )
    from bursar.forecasts.campaign_forecast import NO_PROGRESS

    drawn, *_ = draw_runtimes(
        known.model, known.tasks, NO_PROGRESS.observed, 500, np.random.default_rng(1)
    )

    assert np.std(np.log(drawn.sum(axis=1))) > 0.1


def test_kinds_of_others_are_chosen_from_all_their_families(tmp_path: Path) -> None:
    """A campaign whose tasks all have names of their own does not crowd out the others."""
    times = {f"a {n}": [5.0] for n in range(200)} | {"z": [1.0, 3.0]}

    known = known_runtimes(campaign("mine"), ["here"], history(tmp_path, times))

    assert sum(own.observed > 0 for own in known.model.kinds) == 2


def probed(folder: Path, *, tasks: int) -> History:
    """Return a history of three of 72 parts and the one task that gathers them."""
    made = History(folder / "history.sqlite")
    observed = [("part", f"p{at}", 10.0 + at) for at in range(3)] + [("gather", "g", 30.0)]
    made.add(
        [
            TaskObservation(execution="probe", task=task, kind=kind, site="here", seconds=seconds)
            for kind, task, seconds in observed
        ],
        [ExecutionFacts(name="probe", campaign="c", tasks=tasks)],
    )
    return made


def test_a_probe_is_no_campaign_of_another_size(tmp_path: Path) -> None:
    """The task that gathers others' work gathered that of all of them in the probe, too."""
    whole = campaign(*["part"] * 72, "gather")
    told, untold = (
        known_runtimes(whole, ["here"], probed(tmp_path / str(tasks), tasks=tasks))
        for tasks in (73, 0)
    )

    assert (told.same_size, untold.same_size) == (True, False)
    # Less is known than from a whole execution.
    assert (told.basis, untold.basis) == ("other size", "other size")
    assert np.exp(told.model.kinds[1].size) == pytest.approx(73)
    from bursar.forecasts.campaign_forecast import NO_PROGRESS

    spread = []
    for known in (told, untold):
        drawn, *_ = draw_runtimes(
            known.model, known.tasks, NO_PROGRESS.observed, 500, np.random.default_rng(1)
        )
        spread.append(float(np.std(np.log(drawn[:, -1]))))
    # Between executions levels differ by 0.1 before anything is known, or 0.11 with the mean's.
    assert spread[0] < 0.2 < spread[1]


def test_a_run_that_was_stopped_had_as_many_tasks_as_its_campaign(tmp_path: Path) -> None:
    """A campaign of three parts is another size beside one of 73 tasks of which four ended."""
    known = known_runtimes(campaign(*["part"] * 3, "gather"), ["here"], probed(tmp_path, tasks=73))

    assert not known.same_size


@pytest.mark.parametrize("spread", ["in one execution", "over executions"])
def test_more_threads_are_expected_to_take_less_time(tmp_path: Path, spread: str) -> None:
    """A rule that took 80, 20 and 10 s on 1, 4 and 8 threads takes about 40 s on 2."""
    random = np.random.default_rng(7)
    made = History(tmp_path / "history.sqlite")
    made.add(
        TaskObservation(
            execution="run" if spread == "in one execution" else f"run-{threads}",
            task=f"sort{number}",
            kind="sort",
            processors=threads,
            site="here",
            start=1e9 + number,
            seconds=float(80 / threads * random.lognormal(0, 0.1)),
        )
        for number, threads in enumerate([1, 4, 8] * 6)
    )
    tasks = tuple(Task(id=f"t{many}", name="sort", processors=many) for many in (1, 2, 4, 8))

    known = known_runtimes(Campaign(name="c", workflow=Workflow(tasks)), ["here"], made)

    np.testing.assert_allclose(known.medians(), [80, 40, 20, 10], rtol=0.15)


def test_threads_without_an_effect_are_left_out(tmp_path: Path) -> None:
    """Three executions that differ as executions do, and have other numbers of threads."""
    made = History(tmp_path / "history.sqlite")
    made.add(
        TaskObservation(
            execution=f"run-{threads}",
            task=f"sort{number}",
            kind="sort",
            processors=threads,
            site="here",
            start=1e9 + number,
            seconds={1: 20.0, 4: 25.0, 8: 21.0}[threads] + number / 20,
        )
        for number, threads in enumerate([1, 4, 8] * 6)
    )
    tasks = tuple(Task(id=f"t{many}", name="sort", processors=many) for many in (1, 8))

    known = known_runtimes(Campaign(name="c", workflow=Workflow(tasks)), ["here"], made)

    assert known.medians()[0] == known.medians()[1]
