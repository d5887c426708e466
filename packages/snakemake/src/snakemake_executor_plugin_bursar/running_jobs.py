"""Where jobs run: workers of this process on sites of a sites file, or a Bursar service."""

import json
import os
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Protocol

import cloudpickle
from snakemake_interface_common.exceptions import WorkflowError

import bursar
from bursar.api.call_encoding import amount_of
from bursar.api.executor import deadline_of
from bursar.api.site_resolution import resolve_sites
from bursar.model.errors import BursarError
from bursar.remote.access import find_service
from bursar.remote.client import ServiceClient
from bursar.remote.messages import TaskSpec
from snakemake_executor_plugin_bursar import script_call
from snakemake_executor_plugin_bursar.job_needs import JobNeeds
from snakemake_executor_plugin_bursar.script_call import ScriptEnd, in_words, run_script

# Workers have Bursar alone; the module is sent with each call.
cloudpickle.register_pickle_by_value(script_call)

MOST_LABEL = 200
"""Characters of a task's label at a service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptJob:
    """
    A job as a shell script.

    Parameters
    ----------
    name
        Kind of job: the rule's name, by which run times are remembered.
    identity
        Text that is the same when Snakemake comes to the same job again.
    folder
        Folder in which the script runs.
    log
        Path of the file for what it prints.
    mark
        Path of the file that says that it has ended well.
    limit
        Seconds after which it is killed; None: no limit.
    """

    name: str
    identity: str
    text: str
    folder: str
    log: str
    mark: str
    needs: JobNeeds
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of a job; ``reason`` is empty when it succeeded."""

    reason: str = ""
    printed: str = ""


class JobRunner(Protocol):
    """Runs jobs, which have names of its own."""

    outlives: bool
    """Whether jobs go on, and can be found again by their names, when this process is killed."""

    def start(self, jobs: Sequence[ScriptJob]) -> list[str]:
        """
        Start jobs, or adopt those that an earlier Snakemake has started; return their names.

        Raises
        ------
        WorkflowError
            When a job can never run there, or the service cannot be reached.
        """

    def knows(self, name: str) -> bool:
        """Whether a job of an earlier Snakemake is known by this name."""

    def ended(self, names: Iterable[str]) -> dict[str, JobEnd]:
        """Return the ends of those jobs that have ended."""

    def cancel(self, names: Iterable[str]) -> None:
        """Cancel jobs; those that have ended are left alone."""

    def close(self) -> None:
        """Give processors back; jobs that outlive this process go on."""


def read_goal(
    sites: str | None, budget: str | None, deadline: str | None, begin: float | None
) -> tuple[float | None, float | None]:
    """
    Return a budget in the currency of the sites and a deadline in seconds; None: no limit.

    Parameters
    ----------
    begin
        When the campaign was first begun, seconds since the epoch, from which a deadline that is a
        moment is counted; None: now.

    Raises
    ------
    WorkflowError
        When one of them, or the sites file, cannot be read.
    """
    try:
        amount = None
        if budget is not None:
            amount = amount_of(budget, resolve_sites(None if sites is None else Path(sites)))
        return amount, deadline_of(deadline, begin)
    except BursarError as error:
        raise WorkflowError(f"bursar: {error}") from None


class EngineOfThisProcess:
    """
    Runs jobs on workers that this process starts at the sites of a sites file.

    Parameters
    ----------
    sites
        Sites file; None: this machine.
    budget
        Most that may be spent, currency units; None: no limit.
    deadline
        Seconds from now on after which jobs are ended; None: no limit.
    folder
        Folder for the journal and the bill, which is made.
    """

    outlives = False

    def __init__(
        self, sites: str | None, budget: float | None, deadline: float | None, folder: Path
    ) -> None:
        try:
            self.executor = bursar.Executor(
                sites=None if sites is None else Path(sites),
                budget=budget,
                deadline=deadline,
                folder=folder,
            )
        except BursarError as error:
            raise WorkflowError(f"bursar: {error}") from None
        self._futures: dict[str, Future[ScriptEnd]] = {}

    def start(self, jobs: Sequence[ScriptJob]) -> list[str]:
        """Submit each job as a call; see :class:`JobRunner`."""
        names = []
        for job in jobs:
            needs = job.needs
            try:
                options = self.executor.options(
                    processors=needs.processors,
                    memory=needs.memory,
                    runtime=needs.runtime,
                    gpus=needs.gpus,
                    resources=needs.licences,
                    wall_limit=job.limit,
                    name=job.name,
                )
                future = options.submit(run_script, job.text, job.folder, job.log, job.mark)
            except BursarError as error:
                raise WorkflowError(f"bursar: rule {job.name}: {error}") from None
            name = str(len(self._futures))
            self._futures[name] = future
            names.append(name)
        return names

    def knows(self, name: str) -> bool:
        """No job outlives this process."""
        return False

    def ended(self, names: Iterable[str]) -> dict[str, JobEnd]:
        """Return the ends of those jobs that have ended."""
        return {name: _end_of(self._futures[name]) for name in names if self._futures[name].done()}

    def cancel(self, names: Iterable[str]) -> None:
        """Cancel all jobs: Snakemake cancels only when the workflow ends."""
        for name in names:
            self._futures[name].cancel()
        self.executor.terminate_workers()

    def close(self) -> None:
        """Wait for the workers' end, and write the bill."""
        self.executor.shutdown(cancel_futures=True)


def _end_of(future: "Future[ScriptEnd]") -> JobEnd:
    try:
        end = future.result()
    except CancelledError:
        return JobEnd("cancelled")
    except BaseException as error:  # whatever a call may raise is a failure of the job
        return JobEnd(str(error) or type(error).__name__)
    if end["status"] == 0:
        return JobEnd()
    return JobEnd(in_words(end["status"]), end["printed"])


class EngineOfService:
    """
    Runs jobs at a Bursar service, where they go on without this process.

    Parameters
    ----------
    service
        Name or address.
    book
        File that remembers the service's instance of this working directory.
    """

    outlives = True

    def __init__(self, service: str, book: Path) -> None:
        try:
            self._client = ServiceClient(find_service(service).access)
            self._instance, self._live = self._opened(service, book)
        except BursarError as error:
            raise WorkflowError(f"bursar: {error}") from None
        self._cursor = 0
        self._ends: dict[int, JobEnd] = {}

    def _opened(self, service: str, book: Path) -> tuple[str, dict[str, int]]:
        """Return the instance of this folder, and its tasks that have not ended by their labels."""
        if book.exists():
            known = json.loads(book.read_text())
            if known["service"] == service:
                try:
                    tasks = list(self._client.tasks(known["instance"]))
                except BursarError as error:
                    if getattr(error, "status", None) != 404:
                        raise
                else:
                    going_on = ("waiting", "running")
                    live = {one.label: one.task for one in tasks if one.state in going_on}
                    self._known = len(tasks)
                    return known["instance"], live
        made = self._client.create_instance(label=f"snakemake {os.getcwd()}"[:MOST_LABEL])
        book.parent.mkdir(parents=True, exist_ok=True)
        before = book.with_suffix(".new")
        before.write_text(json.dumps({"service": service, "instance": made.id}))
        before.replace(book)
        self._known = 0
        return made.id, {}

    def start(self, jobs: Sequence[ScriptJob]) -> list[str]:
        """Submit the jobs together, but for those that an earlier Snakemake submitted."""
        labels = [_label(job) for job in jobs]
        fresh = [at for at, label in enumerate(labels) if label not in self._live]
        specs = [
            TaskSpec(
                shell=_whole_script(jobs[at]),
                processors=jobs[at].needs.processors,
                memory=jobs[at].needs.memory,
                limit=jobs[at].limit,
                tries=1,
                label=labels[at],
            )
            for at in fresh
        ]
        try:
            numbers = self._client.submit(self._instance, specs, key=uuid.uuid4().hex)
        except BursarError as error:
            raise WorkflowError(f"bursar: {error}") from None
        found = dict(zip(fresh, numbers, strict=True))
        for at, label in enumerate(labels):
            if at not in found:
                found[at] = self._live.pop(label)
        return [f"{self._instance}/{found[at]}" for at in range(len(jobs))]

    def knows(self, name: str) -> bool:
        """Whether a task of that name is in the instance."""
        instance, _, number = name.partition("/")
        return instance == self._instance and number.isdigit() and int(number) < self._known

    def ended(self, names: Iterable[str]) -> dict[str, JobEnd]:
        """Ask for the results that have come since the last time."""
        try:
            for result in self._client.results(self._instance, self._cursor, until="now"):
                self._cursor = result.cursor
                reason = ""
                if result.state != "succeeded":
                    reason = result.reason or result.state
                self._ends[result.task] = JobEnd(reason, result.stderr or result.stdout)
        except BursarError as error:
            if not error.transient:
                raise WorkflowError(f"bursar: {error}") from None
            return {}  # asked again
        found = {name: self._ends.get(int(name.partition("/")[2])) for name in names}
        return {name: end for name, end in found.items() if end is not None}

    def cancel(self, names: Iterable[str]) -> None:
        """Cancel the jobs that have not ended."""
        numbers = [int(name.partition("/")[2]) for name in names]
        if numbers:
            self._client.cancel(self._instance, numbers)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _label(job: ScriptJob) -> str:
    return job.identity[:MOST_LABEL]


def _whole_script(job: ScriptJob) -> str:
    """Return one line of a shell that runs a job's script as :func:`run_script` does."""
    folder = os.path.dirname(job.log)
    return (
        f"mkdir -p {quote(folder)} && cd {quote(job.folder)} && "
        f"/bin/sh -c {quote(job.text)} > {quote(job.log)} 2>&1; status=$?; "
        f"[ $status = 0 ] || tail -c 20000 {quote(job.log)} >&2; exit $status"
    )
