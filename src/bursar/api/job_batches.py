"""
Jobs of a large campaign in batches, by which a strategy is simulated in reasonable time.

A batch is jobs of one kind and like length that run one after the other on one processor. A
strategy sees a batch as one job. What all jobs have in common decides how a large campaign varies;
what tells single jobs apart averages out within batches, as it does on a processor.
"""

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from bursar.broker.dynamic_scheduler import ResumeState
from bursar.model.campaign import Campaign, Workflow
from bursar.model.site import SiteFacts
from bursar.model.task import Task

MOST_JOBS = 2000
"""Jobs, at most, that are all simulated one by one."""

FEWEST_BATCHES, MOST_BATCHES = 500, 1000

BATCHES_EACH, FEWEST_EACH = 20, 5
"""Batches for each processor: as many as are wanted, and without which none are made."""

SINGLE_EACH = 10
"""
Jobs for each processor that stay single. They come last, so that what ends just in time, or does
not, is a job and no batch.
"""

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBatches:
    """
    A campaign with a job for each batch.

    Parameters
    ----------
    batch_of
        Number of the batch of each job, shape ``(jobs,)``.
    """

    campaign: Campaign
    batch_of: IntArray

    def past_of(self, past: ResumeState) -> ResumeState:
        """Return how a run stands in the numbers of the batches; what has ended is alone in one."""
        number = self.batch_of.tolist()
        return replace(
            past,
            ended=frozenset(number[task] for task in past.ended),
            succeeded=frozenset(number[task] for task in past.succeeded),
            attempts=[
                (msgspec.structs.replace(outcome, task=number[outcome.task]), site)
                for outcome, site in past.attempts
            ],
        )


def in_batches(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    kind: IntArray,
    *,
    ended: Set[int] = frozenset(),
    running: Collection[int] = (),
) -> JobBatches | None:
    """
    Put the jobs of a campaign into batches; None: they are few enough, or too few for batches.

    Parameters
    ----------
    kind
        Number of the kind of each job, shape ``(jobs,)``.
    ended, running
        Numbers of the jobs that have ended, or run: each stays alone.
    """
    tasks = campaign.workflow.tasks
    processors = sum(site.processors for site in sites)
    if len(tasks) - len(ended) <= max(MOST_JOBS, SINGLE_EACH * processors):
        return None
    runtime = np.array([task.runtime or 0.0 for task in tasks])
    single = np.zeros(len(tasks), dtype=np.bool_)
    single[[*ended, *running]] = True
    order = np.lexsort((runtime, kind))
    order = order[~single[order]]
    # Evenly from all kinds and lengths.
    places = np.linspace(0, len(order) - 1, SINGLE_EACH * processors).astype(np.int64)
    single[order[places]] = True
    order = order[~single[order]]
    wanted = min(max(FEWEST_BATCHES, BATCHES_EACH * processors), MOST_BATCHES)
    size = -(-len(order) // wanted)
    if size < 2 or len(order) // size < FEWEST_EACH * processors:
        return None
    # A new batch begins after so many jobs, and where another kind begins.
    begins = np.flatnonzero(np.diff(kind[order], prepend=-1))
    lengths = np.diff(begins, append=len(order))
    within = np.concatenate([np.arange(length) for length in lengths]) % size
    batch_of = np.empty(len(tasks), dtype=np.int64)
    batch_of[order] = np.cumsum(within == 0) - 1
    alone = np.flatnonzero(single)
    batch_of[alone] = np.arange(len(alone)) + np.count_nonzero(within == 0)
    work = np.bincount(batch_of, weights=runtime)
    first = [*order[within == 0], *alone]
    batches = tuple(
        Task(
            id=f"batch-{batch}",
            name=tasks[task].name,
            runtime=None if tasks[task].runtime is None else float(work[batch]),
        )
        for batch, task in enumerate(first)
    )
    return JobBatches(campaign=replace(campaign, workflow=Workflow(batches)), batch_of=batch_of)
