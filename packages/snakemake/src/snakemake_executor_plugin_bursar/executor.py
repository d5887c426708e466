"""The executor of Snakemake that hands jobs to Bursar."""

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from bursar.model.errors import BursarError
from snakemake_executor_plugin_bursar.finished_jobs import FinishedJobs
from snakemake_executor_plugin_bursar.job_needs import job_needs
from snakemake_executor_plugin_bursar.shell_jobs import shell_command

# Snakemake imports all plugins, also in the process of each job: the engine is left until it runs.
if TYPE_CHECKING:
    from snakemake_executor_plugin_bursar.campaign_record import CampaignRecord
    from snakemake_executor_plugin_bursar.deadline import WorkflowDeadline
    from snakemake_executor_plugin_bursar.running_jobs import (
        EngineOfThisProcess,
        JobRunner,
        ScriptJob,
    )

FOLDER = Path(".snakemake") / "bursar"
"""Folder below the working directory for journals, bills and logs."""

STATUS_CHECKS = 0.1
"""Seconds between two looks at the jobs of this process's own engine."""

STATUS_CHECKS_AT_SERVICE = 1.0


class SnakemakeExecutor(RemoteExecutor):
    """Runs each job as a script on a worker of Bursar, with what its resources ask for."""

    def __post_init__(self) -> None:
        settings = self.workflow.executor_settings
        self._counted = _counted(settings.sites)
        self._folder = os.getcwd()
        if settings.service is not None and (
            settings.sites or settings.budget or settings.deadline or settings.anew
        ):
            raise WorkflowError(
                "--bursar-service: goes without --bursar-sites, --bursar-budget, "
                "--bursar-deadline and --bursar-anew: the service has sites of its own, and no "
                "goal for these jobs"
            )
        self._deadline: WorkflowDeadline | None = None
        self._campaign: CampaignRecord | None = None
        self._engine: EngineOfThisProcess | None = None
        self._finished = FinishedJobs(self.workflow, FOLDER / "ended")
        self._finished.forget_recorded()
        self._runner: JobRunner
        if settings.service is not None:
            from snakemake_executor_plugin_bursar.running_jobs import EngineOfService

            self._runner = EngineOfService(settings.service, FOLDER / "service.json")
        else:
            self._runner = self._engine = self._begun_engine()

    @property
    def next_seconds_between_status_checks(self) -> float:
        """
        Seconds to the next look at the jobs.

        Snakemake's thread looks a first time before `__post_init__` has begun; what is set there
        would count only after Snakemake's own ten seconds.
        """
        at_service = self.workflow.executor_settings.service is not None
        return STATUS_CHECKS_AT_SERVICE if at_service else STATUS_CHECKS

    def _begun_engine(self) -> "EngineOfThisProcess":
        """Begin an engine with what is left of the campaign's budget and deadline."""
        from snakemake_executor_plugin_bursar.campaign_record import CampaignRecord
        from snakemake_executor_plugin_bursar.deadline import WorkflowDeadline
        from snakemake_executor_plugin_bursar.running_jobs import EngineOfThisProcess, read_goal

        settings = self.workflow.executor_settings
        campaign = CampaignRecord(FOLDER / "campaign.json", is_anew=settings.anew)
        budget, deadline = read_goal(
            settings.sites, settings.budget, settings.deadline, campaign.begun
        )
        budget, deadline = campaign.left_of_budget(budget), campaign.left_of_deadline(deadline)
        if told := campaign.told():
            self.logger.info(f"bursar: {told}")
        if deadline is not None:
            self._deadline = WorkflowDeadline(
                self.workflow,
                settings.sites,
                deadline,
                budget,
                self.workflow.resource_settings.nodes,
            )
            for line in self._deadline.told_before():
                self.logger.info(line)
        begun = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        folder = Path(settings.folder or FOLDER / begun)
        # Before anything is bought: who is killed later has to be counted.
        campaign.begin(folder)
        try:
            engine = EngineOfThisProcess(settings.sites, budget, deadline, folder)
        except WorkflowError:
            campaign.withdraw()
            raise
        self._campaign = campaign
        return engine

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Start jobs that are ready, in one submission."""
        fresh = []
        for job in jobs:
            self.run_job_pre(job)
            earlier = self.dag.incomplete_external_jobid(job) if self._runner.outlives else None
            if earlier is not None and self._runner.knows(earlier):
                self.logger.info(f"Job {job.jobid} goes on as {earlier}.")
                self._submitted(job, earlier)
            elif not self._runner.outlives and self._finished.has_ended(job):
                self.logger.info(f"Job {job.jobid} had ended before Snakemake did.")
                self.report_job_success(SubmittedJobInfo(job))
            else:
                fresh.append(job)
        for job, name in zip(fresh, self._runner.start([*map(self._script, fresh)]), strict=True):
            self._submitted(job, name)
            if self._deadline is not None:
                self._deadline.submitted(job)

    def run_job(self, job: JobExecutorInterface) -> None:
        """Start one job."""
        self.run_jobs([job])

    def _submitted(self, job: JobExecutorInterface, name: str) -> None:
        info = SubmittedJobInfo(
            job,
            # A name by which nobody could find the job again must not be remembered.
            external_jobid=name if self._runner.outlives else None,
            aux={"name": name, "log": self._log(job)},
        )
        self.report_job_submission(info)

    def _log(self, job: JobExecutorInterface) -> str:
        return os.path.abspath(str(job.logfile_suggestion(str(FOLDER / "logs"))))

    def _script(self, job: JobExecutorInterface) -> "ScriptJob":
        from snakemake_executor_plugin_bursar.running_jobs import ScriptJob

        settings = self.workflow.executor_settings
        # Where jobs outlive this process, the Snakemake of each is what notes the job's end.
        is_whole = settings.whole_snakemake or self._runner.outlives
        command = None if is_whole else shell_command(self.workflow, job)
        needs = job_needs(job.resources, job.threads, self._counted)
        identity = [job.name, sorted(map(str, job.output or [job.jobid])), job.attempt]
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        return ScriptJob(
            name=job.name,
            identity=f"{job.name} {digest}"[-160:],
            text=command.text(sys.executable) if command else self.format_job_exec(job),
            folder=self._folder,
            log=self._log(job),
            mark=self._finished.mark(job),
            needs=needs,
            limit=needs.runtime if settings.enforce_runtime else None,
        )

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report jobs that have ended, and yield those that have not."""
        if not active_jobs:  # Snakemake asks before anything of this class is there
            return
        if self._deadline is not None and self._engine is not None:
            line = await asyncio.to_thread(self._deadline.told_now, self._engine.executor)
            if line is not None:
                self.logger.info(line)
        names = [_aux(info)["name"] for info in active_jobs]
        async with self.status_rate_limiter:
            ended = self._runner.ended(names)
        for info, name in zip(active_jobs, names, strict=True):
            if name not in ended:
                yield info
                continue
            end = ended[name]
            if not end.reason:
                self.report_job_success(info)
                continue
            message = f"bursar: {end.reason}. "
            self.report_job_error(info, msg=message, aux_logs=[_aux(info)["log"]])

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel the jobs of a workflow that ends early."""
        self._runner.cancel(_aux(info)["name"] for info in active_jobs)

    def shutdown(self) -> None:
        """Wait for the status checks to end, and give the processors back."""
        super().shutdown()
        self._runner.close()
        self._finished.forget_recorded()
        if self._campaign is not None:
            has_ended_well = not any(self.dag.needrun_jobs())
            self.logger.info(f"bursar: {self._campaign.end(has_ended_well=has_ended_well)}")
            self._campaign = None


def _aux(info: SubmittedJobInfo) -> dict[Any, Any]:
    found: dict[Any, Any] = info.aux
    return found


def _counted(sites: str | None) -> dict[str, int]:
    """Return the resources that sites count, with the largest number at one of them."""
    if sites is None:
        return {}
    from bursar.formats.sites_toml import read_sites

    try:
        facts = read_sites(Path(sites))
    except BursarError as error:
        raise WorkflowError(f"bursar: {error}") from None
    found: dict[str, int] = {}
    for site in facts:
        for name, count in site.resources.items():
            found[name] = max(found.get(name, 0), count)
    return found
