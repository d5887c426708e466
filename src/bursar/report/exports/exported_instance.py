"""
An instance at a service as an export tells of it, in the same form as a run.

A service keeps how each task ended, and neither what it waited for nor what it asked for: the
campaign that was submitted tells that, if it is given.
"""

from collections.abc import Mapping, Sequence

from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.errors import InputError
from bursar.model.money import from_micros
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status, Task
from bursar.remote.messages import InstanceInfo, Result, SiteInfo, TaskInfo
from bursar.remote.submission import specs_of
from bursar.report.bill import Bill
from bursar.report.exports.exported_run import ExportedAttempt, ExportedRun


def exported_instance(
    info: InstanceInfo,
    tasks: Sequence[TaskInfo],
    results: Sequence[Result],
    site: SiteInfo,
    campaign: Campaign | None = None,
    *,
    commands: bool = True,
) -> ExportedRun:
    """
    Return what an export tells of an instance, also while its tasks go on.

    What the instance came to is shared among the tasks by the processor-seconds that they held.

    Parameters
    ----------
    tasks
        All of the instance, by number.
    results
        Ends of tasks, each once.
    campaign
        The campaign that was submitted; None: each task holds one processor and waits for none.
    commands
        Whether the commands of tasks are told.

    Raises
    ------
    InputError
        When the tasks are not those of the campaign.
    """
    # Of a task that has ended the service knows the label by its result only.
    labels = {one.task: one.label for one in tasks} | {one.task: one.label for one in results}
    workflow, numbers = _workflow(labels, campaign)
    final = {
        numbers[one.task]: AttemptRecord(_outcome(one, numbers[one.task]), True, site.name, "")
        for one in sorted(results, key=lambda one: (one.end, one.task))
        if one.attempt and one.state != "skipped" and one.start
    }
    attempts = list(_attempts(workflow, final, info))
    begun = min((one.record.outcome.start for one in attempts), default=None)
    ended = max((one.end for one in attempts), default=None)
    goes_on = info.counts.waiting + info.counts.running
    return ExportedRun(
        name=info.label or info.id,
        identity=f"instance {info.id} {info.created!r}",
        campaign=info.label if campaign is None else campaign.name,
        state="running" if goes_on else "failed" if info.counts.failed else "finished",
        created=info.created,
        goal=Goal(
            deadline=None if info.deadline is None else max(0.0, info.deadline - info.created),
            budget=None if info.budget is None else from_micros(info.budget),
        ),
        workflow=workflow,
        attempts=attempts,
        final=final,
        skipped=frozenset(numbers[one.task] for one in tasks if one.state == "skipped"),
        reused={},
        begun=begun,
        ended=ended,
        makespan=None if begun is None or ended is None else ended - begun,
        sites=(SiteFacts(name=site.name, processors=max(1, site.processors), speed=site.speed),),
        leases={},
        bill=Bill(
            run=info.label or info.id,
            currency=site.currency,
            leases=[],
            tasks=[],
            total=info.spent,
            granted=info.spent,
            held=0,
            unpriced=[],
        ),
        sizes={},
        places={},
        commands=commands,
    )


def _workflow(
    labels: Mapping[int, str], campaign: Campaign | None
) -> tuple[Workflow, dict[int, int]]:
    """Return the tasks, and the position there of each number in the instance."""
    if campaign is not None:
        workflow = campaign.workflow
        place = {task.id: index for index, task in enumerate(workflow.tasks)}
        ids = [spec.label for spec in specs_of(campaign)]
        known = all(label in ("", ids[task]) for task, label in labels.items() if task < len(ids))
        if len(ids) != len(labels) or not known:
            raise InputError(
                f"is not the campaign of the instance's {len(labels)} tasks",
                where=str(campaign.source or campaign.name),
            )
        return workflow, {task: place[name] for task, name in enumerate(ids)}
    are_ids = all(labels.values()) and len(set(labels.values())) == len(labels)
    return Workflow(
        tuple(
            Task(id=label if are_ids else str(task), name=label or "task", steps=())
            for task, label in labels.items()
        )
    ), {task: index for index, task in enumerate(labels)}


def _outcome(result: Result, task: int) -> Outcome:
    return Outcome(
        task=task,
        attempt=result.attempt,
        status=Status.LOST if result.lost else Status(result.state),
        exit_code=result.exit_code,
        start=result.start,
        end=result.end,
        stdout_size=result.stdout_size,
        stderr_size=result.stderr_size,
        user_seconds=result.user_seconds,
        system_seconds=result.system_seconds,
        max_rss=result.max_rss,
        reason=result.reason,
    )


def _attempts(
    workflow: Workflow, final: dict[int, AttemptRecord], info: InstanceInfo
) -> list[ExportedAttempt]:
    """Return the last attempt of each task, which is all that a service keeps."""

    def held(number: int) -> float:
        outcome = final[number].outcome
        return workflow.tasks[number].processors * max(0.0, outcome.end - outcome.start)

    everything = sum(map(held, final))
    found, used, borne = [], 0.0, 0
    for number in sorted(final):
        used += held(number)
        # Rounded over all so far, so that the shares add up.
        so_far = round(info.spent * used / everything) if everything else 0
        ends = [final[p].outcome.end for p in workflow.parents[number] if p in final]
        start = final[number].outcome.start
        found.append(
            ExportedAttempt(
                record=final[number],
                number=number,
                task=workflow.tasks[number],
                ready=min(max([info.created, *ends]), start),
                cost=so_far - borne,
            )
        )
        borne = so_far
    return found
