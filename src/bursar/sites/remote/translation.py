"""Translate the dispatcher's jobs into a service's tasks, and the results back."""

import base64
import os
import time

from msgspec.structs import replace

from bursar.dispatch.wire import WireJob
from bursar.model.site import Trust
from bursar.model.task import Call, Copy, Outcome, Status, Step
from bursar.remote.messages import Result, TaskSpec
from bursar.remote.output_messages import printed
from bursar.remote.submission import encode_steps

MADE = ".bursar-made"
"""Folder of an instance in which lies what tasks copy to the root, apart for each attempt."""

_STATUS = {
    "succeeded": Status.SUCCEEDED,
    "timed-out": Status.TIMED_OUT,
    "cancelled": Status.CANCELLED,
    "skipped": Status.CANCELLED,
}


def label_of(job: WireJob) -> str:
    """Label by which a job's result is recognised."""
    return f"{job.task}.{job.attempt}"


def made_folder(job: WireJob) -> str:
    """Folder of the instance, relative, in which lies what a job copies to the root."""
    return f"{MADE}/{label_of(job)}"


def copied(job: WireJob) -> list[tuple[str, str]]:
    """Pairs of target and source name of what a job copies to the root."""
    pairs = [
        (os.path.normpath(step.target), os.path.basename(os.path.normpath(step.source)))
        for step in job.steps
        if isinstance(step, Copy) and step.target_at_root
    ]
    return list(dict.fromkeys(pairs))


def spec_of(job: WireJob, trust: Trust = "data") -> TaskSpec:
    """
    Return a job as the task specification to submit.

    Files that jobs copy to the root are kept apart at the service; which of two copies wins is
    decided here, when the files are fetched.

    Parameters
    ----------
    trust
        Form in which calls send their results: data, or pickles of a trusted service.
    """
    return TaskSpec(
        steps=encode_steps([_translated(step, job, trust) for step in job.steps]),
        environment=job.environment,
        inputs=job.inputs,
        outputs=job.outputs,
        processors=job.processors,
        limit=job.limit or None,
        memory=job.memory or None,
        label=label_of(job),
    )


def _translated(step: Step, job: WireJob, trust: Trust) -> Step:
    if isinstance(step, Call):
        return replace(step, as_data=trust == "data")
    if isinstance(step, Copy) and step.target_at_root:
        return replace(step, target=os.path.normpath(f"{made_folder(job)}/{step.target}"))
    return step


def outcome_of(job: WireJob, result: Result, since: float) -> Outcome:
    """
    Translate the service's result to the outcome of a job.

    Parameters
    ----------
    since
        Time of the submission, seconds since the epoch. The service's clock may be wrong, but no
        job runs before its submission or ends after now.
    """
    status = _STATUS.get(result.state, Status.FAILED)
    if status is Status.FAILED and result.lost:
        status = Status.LOST
    start, end = _within(result.start, result.end, since, time.time())
    return Outcome(
        task=job.task,
        attempt=job.attempt,
        status=status,
        exit_code=result.exit_code,
        start=start,
        end=end,
        stdout=printed(result, "stdout") or b"",
        stderr=printed(result, "stderr") or b"",
        stdout_size=result.stdout_size,
        stderr_size=result.stderr_size,
        user_seconds=result.user_seconds,
        system_seconds=result.system_seconds,
        max_rss=result.max_rss,
        reason=result.reason,
        value=base64.b64decode(result.value),
    )


def long_streams(outcome: Outcome) -> list[str]:
    """List the streams that the result did not hold."""
    sizes = {"stdout": outcome.stdout_size, "stderr": outcome.stderr_size}
    held = {"stdout": outcome.stdout, "stderr": outcome.stderr}
    return [name for name, size in sizes.items() if size and not held[name]]


def _within(start: float, end: float, since: float, now: float) -> tuple[float, float]:
    if since <= start <= end <= now:
        return start, end
    # A clock that is wrong still measures durations: the time is kept and moved to end now.
    seconds = min(max(0.0, end - start), max(0.0, now - since))
    return now - seconds, now
