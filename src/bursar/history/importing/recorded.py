"""Observations of recorded workflows (WfFormat) and of logs of clusters (SWF)."""

import math

import numpy as np

from bursar.history.importing.imported_log import ImportedLog, program_of, without_numbering
from bursar.history.observation import TaskObservation
from bursar.history.writing import ExecutionFacts
from bursar.model.campaign import Campaign, Recording
from bursar.model.errors import InputError
from bursar.model.task import Status
from bursar.model.trace import Trace

_FAILED, _CANCELLED = 0, 5
"""Status of a job in the Standard Workload Format."""


def observe_workflow(campaign: Campaign, path: str, digest: str) -> ImportedLog:
    """
    Observe the tasks of a recorded workflow, each as of the kind of its program.

    Their times of day are not recorded: each counts as begun when the execution did.

    Parameters
    ----------
    campaign
        The recording.
    path
        Path of the file, for messages.
    digest
        Digits that tell this recording from others of its name.
    """
    log = ImportedLog()
    recording = campaign.recording or Recording()
    execution = f"{campaign.name}@{digest}"
    begun = recording.begun or 0.0
    for task in campaign.workflow.tasks:
        if task.runtime is None:
            log.passed_over["no run time"] += 1
            continue
        program = recording.programs.get(task.id, "")
        sizes = [file.size for file in task.inputs]
        try:
            log.observations.append(
                TaskObservation(
                    execution=execution,
                    task=task.id,
                    kind=program_of(program) if program else without_numbering(task.name),
                    input_bytes=None if None in sizes else sum(size or 0 for size in sizes),
                    host=next(iter(recording.machine_of.get(task.id, ())), ""),
                    processors=task.processors,
                    start=begun,
                    seconds=task.runtime,
                    max_rss=task.memory,
                    source="wfformat",
                )
            )
        except ValueError as error:
            log.problems.append(InputError(str(error), where=f"{path}: task {task.id}"))
    log.executions.append(
        ExecutionFacts(
            name=execution,
            campaign=campaign.name,
            source="wfformat",
            begun=begun,
            tasks=len(campaign.workflow.tasks),
        )
    )
    return log


def observe_trace(trace: Trace, path: str) -> ImportedLog:
    """
    Observe the jobs of a cluster's log, each as of the kind of its user and program.

    Jobs of one day are one execution: what varies from day to day is the same for them.

    Parameters
    ----------
    path
        Path of the file, for messages.
    """
    log = ImportedLog()
    for finding in trace.cleaning:
        if finding.dropped:
            log.passed_over[finding.reason] += finding.jobs
    unknown = np.full(len(trace), -1)
    statuses = trace.status if trace.status is not None else unknown
    programs = trace.application if trace.application is not None else unknown
    begin = trace.begin or 0.0
    for number, submit, ran, asked, width, wait, user, program, status in zip(
        trace.number.tolist(),
        trace.submit.tolist(),
        trace.runtime.tolist(),
        trace.estimate.tolist(),
        trace.processors.tolist(),
        trace.wait.tolist(),
        trace.user.tolist(),
        programs.tolist(),
        statuses.tolist(),
        strict=True,
    ):
        waited = None if math.isnan(wait) else wait
        start = begin + submit + (waited or 0.0)
        kind = "job" if user < 0 else f"user {user}"
        if program >= 0:
            kind = f"{kind} program {program}" if user >= 0 else f"program {program}"
        ended = Status.SUCCEEDED
        if status == _FAILED:
            ended = Status.FAILED
        elif status == _CANCELLED:
            ended = Status.CANCELLED
        try:
            log.observations.append(
                TaskObservation(
                    execution=f"{trace.name}-day-{int((submit + (waited or 0.0)) // 86400)}",
                    task=str(number),
                    kind=kind,
                    site=trace.name,
                    processors=width,
                    start=start,
                    seconds=ran,
                    waited=waited,
                    status=ended,
                    estimate=asked,
                    source="swf",
                )
            )
        except ValueError as error:
            log.problems.append(InputError(str(error), where=f"{path}: job {number}"))
    return log
