"""Batches hold each job once, among its like, and leave enough single jobs for the end."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.api.job_batches import MOST_JOBS, SINGLE_EACH, in_batches
from bursar.api.strategy_quotes import NOTHING_YET
from bursar.model.campaign import Campaign, Workflow
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status, Task


def campaign_of(jobs: int, kinds: int, seed: int) -> tuple[Campaign, np.ndarray]:
    random = np.random.default_rng(seed)
    kind = random.integers(0, kinds, jobs)
    tasks = tuple(
        Task(id=f"t{at}", name=f"k{of}", runtime=float(f"{seconds:.3g}"))
        for at, (of, seconds) in enumerate(zip(kind, random.uniform(1, 100, jobs), strict=True))
    )
    return Campaign(name="c", workflow=Workflow(tasks)), kind


def sites_of(processors: int) -> list[SiteFacts]:
    return [SiteFacts(name="s", processors=processors)]


@given(
    jobs=st.integers(MOST_JOBS + 1, 6000),
    kinds=st.integers(1, 4),
    processors=st.integers(1, 40),
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(20))
def test_each_job_is_in_one_batch_of_its_kind(
    jobs: int, kinds: int, processors: int, seed: int
) -> None:
    """The work is the same, and the last batches are single jobs."""
    campaign, kind = campaign_of(jobs, kinds, seed)
    made = in_batches(campaign, sites_of(processors), kind)
    assert made is not None
    batches = made.campaign.workflow.tasks
    sizes = np.bincount(made.batch_of, minlength=len(batches))
    assert sizes.min() >= 1
    assert sizes.sum() == jobs
    assert (sizes[-SINGLE_EACH * processors :] == 1).all()
    of_batch = {(int(batch), int(of)) for batch, of in zip(made.batch_of, kind, strict=True)}
    assert max(Counter(batch for batch, _ in of_batch).values()) == 1
    before = sum(task.runtime or 0.0 for task in campaign.workflow.tasks)
    assert sum(batch.runtime or 0.0 for batch in batches) == pytest.approx(before)


def test_jobs_that_have_ended_or_run_stay_alone() -> None:
    """What is known of each is of that job, and the past is told in the batches' numbers."""
    campaign, kind = campaign_of(3000, 2, 1)
    ended, running = frozenset(range(0, 600, 2)), [1, 3, 5]
    made = in_batches(campaign, sites_of(4), kind, ended=ended, running=running)
    assert made is not None
    sizes = np.bincount(made.batch_of)
    assert (sizes[made.batch_of[[*ended, *running]]] == 1).all()
    assert sizes.max() > 1

    outcome = Outcome(task=4, attempt=1, status=Status.SUCCEEDED, start=0.0, end=7.0)
    past = replace(NOTHING_YET, ended=ended, succeeded=ended, attempts=[(outcome, "s")])
    told = made.past_of(past)

    assert len(told.ended) == len(ended)
    assert told.ended == told.succeeded
    ((of_batch, _),) = told.attempts
    runtime = made.campaign.workflow.tasks[of_batch.task].runtime
    assert runtime == campaign.workflow.tasks[4].runtime
    assert of_batch.task in told.ended
    # Too few are left for batches.
    assert in_batches(campaign, sites_of(4), kind, ended=frozenset(range(1500))) is None


def test_few_jobs_and_many_processors_have_no_batches() -> None:
    """A batch on each of many processors would end much later than its jobs on all of them."""
    campaign, kind = campaign_of(MOST_JOBS, 2, 1)
    assert in_batches(campaign, sites_of(4), kind) is None
    campaign, kind = campaign_of(3000, 2, 1)
    assert in_batches(campaign, sites_of(4), kind) is not None
    assert in_batches(campaign, sites_of(200), kind) is None
