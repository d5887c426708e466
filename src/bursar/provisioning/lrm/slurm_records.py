"""Reads Slurm's records of jobs that are no longer in the queue."""

from collections.abc import Mapping, Sequence

from bursar.provisioning.lrm import slurm_output, slurm_states
from bursar.provisioning.lrm.command_runner import CommandRunner

EPOCH = {"SLURM_TIME_FORMAT": "%s"}
"""Variables that make Slurm print seconds since the epoch; other times have a zone of their own."""

MOST_LISTED = 50_000
"""Limit on the characters of ids on one command line; ssh takes 128 kB for all."""


class SlurmRecords:
    """
    Reads a cluster's records, by accounting or by the list of completed jobs.

    Parameters
    ----------
    shell
        Runs the commands.

    Attributes
    ----------
    accounting
        Whether the cluster keeps accounting records; true until Slurm says otherwise.
    """

    def __init__(self, shell: CommandRunner) -> None:
        self._shell = shell
        self._raw: dict[str, str] = {}
        self.accounting = True

    def note(self, raw: Mapping[str, str]) -> None:
        """Record the numbers by which accounting knows jobs, by job id: array elements have two."""
        self._raw.update(raw)

    async def read(self, ids: Sequence[str]) -> tuple[slurm_output.SqueueStatus, dict[str, str]]:
        """
        Read accounting records or, without accounting, the list of completed jobs.

        Returns
        -------
        status : SqueueStatus
            State of the jobs.
        names : dict
            Names under which the records have jobs, where these differ from their ids.

        Raises
        ------
        SiteError
            When the records cannot be asked for now.
        """
        if self.accounting:
            jobs = ",".join(slurm_output.parents(ids)) if len(ids) < 5000 else ""
            which = [f"--jobs={jobs}"] if jobs and len(jobs) <= MOST_LISTED else []
            answer = await self._shell.run(
                ["sacct", "-X", "-n", "-P", *which, f"--format={slurm_output.RECORDS}"],
                environment=EPOCH,
            )
            if answer.status == 0:
                return slurm_output.read_records(answer.stdout), {}
            if "storage is disabled" not in answer.words:
                raise slurm_states.slurm_error("records cannot be read", answer.words)
            self.accounting = False
        # Asked for all jobs, sacct 22.05 breaks down when any job's name holds a line end.
        raw = [self._raw.get(id, id) for id in ids]
        jobs = ",".join(
            dict.fromkeys(id for id in (*raw, *slurm_output.parents(ids)) if "_" not in id)
        )
        which = [f"--jobs={jobs}"] if len(jobs) <= MOST_LISTED else []
        answer = await self._shell.run(
            ["sacct", "--completion", "-n", "-P", *which, f"--format={slurm_output.COMPLETIONS}"],
            environment=EPOCH,
        )
        if answer.status != 0 and not answer.stdout:
            # Most sites have one of the two; without either, ended jobs are simply not known.
            if slurm_states.is_unreachable(answer.words):
                raise slurm_states.slurm_error("records cannot be read", answer.words)
            return slurm_output.SqueueStatus({}, {}, []), {}
        return slurm_output.read_completions(answer.stdout), self._raw

    async def stints(self, ids: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
        """Return processors and seconds of each run of jobs that were requeued, where recorded."""
        if not ids:
            return {}
        raw = {self._raw.get(id, id): id for id in ids}
        answer = None
        for kind in ("--duplicates", "--completion"):  # a site has one of them, or neither
            if answer is None or answer.status != 0 or not answer.stdout.strip():
                answer = await self._shell.run(
                    ["sacct", kind, "-X", "-n", "-P", f"--jobs={','.join(raw)}",
                     f"--format={slurm_output.COMPLETIONS}"],
                    environment=EPOCH,
                )  # fmt: skip
        assert answer is not None
        stints = slurm_output.read_stints(answer.stdout) if answer.status == 0 else {}
        return {raw[job]: times for job, times in stints.items() if job in raw}
