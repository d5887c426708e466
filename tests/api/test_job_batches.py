"""Batches hold each job once, among its like, and leave enough single jobs for the end."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.api.job_batches import MOST_JOBS, SINGLE_EACH, in_batches
from bursar.model.campaign import Campaign, Workflow
from bursar.model.site import SiteFacts
from bursar.model.task import Task


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
@settings(max_examples=20)
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


def test_few_jobs_and_many_processors_have_no_batches() -> None:
    """A batch on each of many processors would end much later than its jobs on all of them."""
    campaign, kind = campaign_of(MOST_JOBS, 2, 1)
    assert in_batches(campaign, sites_of(4), kind) is None
    campaign, kind = campaign_of(3000, 2, 1)
    assert in_batches(campaign, sites_of(4), kind) is not None
    assert in_batches(campaign, sites_of(200), kind) is None
