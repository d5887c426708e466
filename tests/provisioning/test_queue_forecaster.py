"""A forecaster learns from looks at a queue what comes of jobs there."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from bursar.cluster.machine import Machine
from bursar.model.errors import InputError
from bursar.provisioning.lrm.resource_manager import ClusterNode, QueuedJob, QueueState
from bursar.provisioning.queue_forecaster import (
    DAY,
    EndedJob,
    EndedJobs,
    ProjectedQueue,
    QueueForecaster,
    project_waits,
)
from bursar.provisioning.wait_forecast import ProjectedWaits
from bursar.sites.queue_observer import project_queue, read_forecaster, write_history


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def ended(*shares: float, user: str = "", asked: float = 1000.0) -> EndedJobs:
    """Jobs that took such shares of what they asked for."""
    jobs = EndedJobs()
    for share in shares:
        jobs.add(EndedJob(submitted=0.0, processors=1, asked=asked, ran=share * asked, user=user))
    return jobs


def test_run_times_are_shares_of_the_time_asked_for() -> None:
    """Jobs that took a tenth and a half: of 200 s that is 20 s or 100 s, equally often."""
    drawn = ended(0.1, 0.5).draw_run_times(np.array([200.0]), np.zeros(1), ("",), 1000, rng())

    assert drawn.shape == (1000, 1)
    assert set(np.round(drawn[:, 0], 6)) == {20.0, 100.0}
    assert (drawn == 20.0).mean() == pytest.approx(0.5, abs=0.06)


def test_a_job_is_compared_with_those_that_ran_as_long() -> None:
    """After 30 of 200 s only the half is left, 70 s more; after 150 s nobody knows: 0 to 50 s."""
    drawn = ended(0.1, 0.5).draw_run_times(
        np.array([200.0, 200.0]), np.array([30.0, 150.0]), ("", ""), 500, rng()
    )

    assert np.allclose(drawn[:, 0], 70.0)
    assert 0 <= drawn[:, 1].min() < 5
    assert 45 < drawn[:, 1].max() <= 50


def test_a_user_is_compared_with_that_users_jobs() -> None:
    """From four jobs on; others are compared with all, nine of ten of which took all they asked."""
    jobs = ended(*[1.0] * 36)
    for _ in range(4):
        jobs.add(EndedJob(submitted=0.0, processors=1, asked=10.0, ran=1.0, user="ann"))

    drawn = jobs.draw_run_times(np.full(2, 100.0), np.zeros(2), ("ann", "bob"), 2000, rng())

    assert np.allclose(drawn[:, 0], 10.0)
    assert (drawn[:, 1] == 100.0).mean() == pytest.approx(0.9, abs=0.03)


def test_submissions_come_again_at_their_time_of_day() -> None:
    """One job two hours after the same time yesterday; nothing while less than a day is known."""
    jobs = EndedJobs()
    jobs.add(EndedJob(submitted=0.0, processors=1, asked=60.0, ran=30.0))
    jobs.add(EndedJob(submitted=5 * 3600.0, processors=7, asked=60.0, ran=90.0))

    (nothing,) = jobs.draw_future(DAY - 1, 1, rng())
    (later,) = jobs.draw_future(DAY + 3 * 3600.0, 1, rng())

    assert len(nothing.submit) == 0
    assert later.submit.tolist() == [2 * 3600.0]
    assert later.processors.tolist() == [7]
    assert later.runtime.tolist() == [60.0]  # no longer than it asked for


@pytest.mark.parametrize(
    ("asked", "ran", "processors"),
    [(0.0, 1.0, 1), (math.inf, 1.0, 1), (math.nan, 1.0, 1), (1.0, -1.0, 1), (1.0, 1.0, 0)],
)
def test_jobs_without_times_teach_nothing(asked: float, ran: float, processors: int) -> None:
    jobs = EndedJobs()
    jobs.add(EndedJob(submitted=0.0, processors=processors, asked=asked, ran=ran))
    assert len(jobs) == 0


def test_a_projection_rests_on_what_jobs_took() -> None:
    """All jobs took a tenth: a job that may hold everything for 1,000 s is gone after 100 s."""
    machine = Machine(4, "easy")
    machine.submit(4, 1000.0)
    machine.advance(0.0)
    queue = ProjectedQueue(machine, 0.0, np.array([1000.0]), np.zeros(1), ("",))

    waits = project_waits(queue, ended(*[0.1] * 5), 1, 60.0, rng())

    assert waits.stated == 1000.0
    assert waits.waits == pytest.approx((100.0,) * 40)


# Looks at a queue of one node of 4 processors, every 60 s. A job of 4 that asks for 1,000 s comes
# every 300 s and takes 290 s: each starts when the one before has ended.

EVERY, TAKES, ASKED = 300.0, 290.0, 1000.0


def look(at: float) -> QueueState:
    """Two jobs a time: one runs and the next waits."""
    first = int(at // EVERY)
    jobs = [
        QueuedJob(
            id=f"{first}",
            running=True,
            processors=4,
            submitted=first * EVERY - 150.0,
            began=first * EVERY,
            seconds=ASKED,
        )
    ]
    if at % EVERY >= 150.0:
        jobs.append(
            QueuedJob(
                id=f"{first + 1}",
                running=False,
                processors=4,
                submitted=first * EVERY + 150.0,
                seconds=ASKED,
            )
        )
    nodes = (ClusterNode(name="n", processors=4, allocated=4, up=True, state="allocated"),)
    return QueueState(at=at, nodes=nodes, jobs=tuple(jobs))


def watched(hours: float) -> QueueForecaster:
    """A forecaster that has looked for so long, last 150 s after a job's start."""
    forecaster = QueueForecaster(rng())
    for minute in range(int(hours * 60)):
        state = look(minute * 60.0)
        forecaster.observe(state, project_queue(state))
    state = look(hours * 3600.0 + 149.0)
    forecaster.observe(state, project_queue(state))
    return forecaster


def test_forecasts_follow_what_jobs_do() -> None:
    """
    The stated start is 851 s away, the true one 151 s.

    Jobs are seen to end between two looks, 240 to 300 s after they began.
    """
    forecast = watched(10.0).forecast(4, 60.0)

    assert forecast is not None
    assert forecast.seen > 100
    assert forecast.wait_quantiles((0.5,))[0] == pytest.approx(151.0, abs=45.0)
    assert forecast.wait_quantiles((0.95,))[0] < 300.0


def test_a_first_look_is_enough_for_a_forecast() -> None:
    """Nothing is known of run times: any end until the limit is as likely."""
    forecaster = QueueForecaster(rng())
    assert forecaster.forecast(4, 60.0) is None
    state = look(149.0)
    forecaster.observe(state, project_queue(state))

    forecast = forecaster.forecast(4, 60.0)

    assert forecast is not None
    assert forecast.seen == 0
    assert 300.0 < forecast.wait_quantiles((0.5,))[0] < 550.0
    assert forecaster.forecast(5, 60.0) is None  # wider than the machine


def test_no_node_no_forecast() -> None:
    forecaster = watched(1.0)
    forecaster.observe(QueueState(at=9e9, nodes=()), None)
    assert forecaster.forecast(1, 60.0) is None


def test_looks_out_of_turn_teach_nothing() -> None:
    """A clock that was set back: no job ends before it began."""
    forecaster = watched(1.0)
    before = forecaster.kept()
    state = look(10.0)
    forecaster.observe(state, project_queue(state))
    assert forecaster.kept() == before


def crowd(count: int, first: int, at: float) -> QueueState:
    """A machine that is held for long, and so many waiting jobs, the last ones new."""
    held = QueuedJob(id="h", running=True, processors=4, began=0.0, seconds=1e6)
    waiting = tuple(
        QueuedJob(id=f"{n}", running=False, processors=1, submitted=at - 1.0, seconds=60.0)
        for n in range(first, first + count)
    )
    nodes = (ClusterNode(name="n", processors=4, allocated=4, up=True, state="allocated"),)
    return QueueState(at=at, nodes=nodes, jobs=(held, *waiting))


def test_long_queues_take_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Five new jobs after a look at 10 jobs, two at 300 (200,000 / 90,000), and at 1,000 one of five.
    """
    made: list[int] = []

    def count(*given: object) -> ProjectedWaits:
        made.append(1)
        return ProjectedWaits((60.0,), 60.0)

    monkeypatch.setattr("bursar.provisioning.queue_forecaster.project_waits", count)

    def after(jobs: int, looks: int) -> float:
        made.clear()
        forecaster = QueueForecaster(rng())
        queue = project_queue(crowd(1, 0, 0.0))
        for number in range(looks + 1):
            forecaster.observe(crowd(jobs - 1, number * jobs, 60.0 * number + 60.0), queue)
        return len(made) / looks

    found = [after(10, 3), after(300, 3), after(1000, 100)]

    assert found[2] == pytest.approx(0.2, abs=0.12)
    assert found[:2] == [5, 2]


def test_what_was_learned_is_kept_between_runs() -> None:
    forecaster = watched(5.0)
    again = QueueForecaster.of_kept(json.loads(json.dumps(forecaster.kept())), rng())
    state = look(5 * 3600.0 + 149.0)
    again.observe(state, project_queue(state))
    assert again.kept() == forecaster.kept()
    forecast = again.forecast(4, 60.0)
    assert forecast is not None
    assert forecast.wait_quantiles((0.5,))[0] == pytest.approx(151.0, abs=45.0)


GOOD = QueueForecaster(rng()).kept()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {**GOOD, "version": 0},
        {**GOOD, "ended": 3},
        {**GOOD, "ended": [[1.0, 2]]},
        {**GOOD, "ended": [["x", 1, 1.0, 1.0, ""]]},
        {**GOOD, "ended": [[math.nan, 1, 1.0, 1.0, ""]]},
        {**GOOD, "ended": [[1.0, math.inf, 1.0, 1.0, ""]]},
        {**GOOD, "waits": {"version": 2}},
        {**GOOD, "waits": []},
    ],
)
def test_what_is_no_history_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(InputError):
        QueueForecaster.of_kept(data, rng())


def test_files_that_cannot_be_read_begin_anew(tmp_path: Path) -> None:
    """Absent, empty, damaged, of another form; a folder that is not there is no error either."""
    file = tmp_path / "queue-a.json"
    for content in (None, b"", b"{", b"[1]", b'{"version": 1}'):
        if content is not None:
            file.write_bytes(content)
        assert read_forecaster(file).kept() == GOOD
    write_history(file, watched(1.0).kept())
    assert read_forecaster(file).kept() == watched(1.0).kept()
    write_history(tmp_path / "absent" / "queue-a.json", GOOD)
    assert [path.name for path in tmp_path.iterdir()] == ["queue-a.json"]
