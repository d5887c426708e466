"""Jobs that ended well before their Snakemake was killed, and that it had not recorded."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class FinishedJobs:
    """
    Knows by small files which jobs have ended well.

    The machine that runs a job leaves the file at once, so that a Snakemake that was killed before
    it could record the end need not run the job again.

    Parameters
    ----------
    workflow
        Snakemake's workflow.
    folder
        Folder for the files, which the machines that run jobs see.
    """

    def __init__(self, workflow: Any, folder: Path) -> None:
        self._workflow = workflow
        self._folder = folder

    def mark(self, job: Any) -> str:
        """Return the path of the file that says that a job, or a group of jobs, has ended well."""
        said = [
            [
                one.rule.name,
                list(map(str, one.output)) or str(one.jobid),
                list(map(str, one.input)),
                # A job of other parameters or code is another one.
                str(one.params),
                one.rule.shellcmd or getattr(one.rule, "run_func_src", None) or "",
            ]
            for one in _jobs(job)
        ]
        digest = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]
        return os.path.abspath(self._folder / f"{_jobs(job)[0].rule.name[:60]}-{digest}")

    def has_ended(self, job: Any) -> bool:
        """
        Return whether an earlier Snakemake ran a job to its good end and did not record that.

        The file is removed where the job has to run.
        """
        mark = self.mark(job)
        try:
            ended = os.path.getmtime(mark)
        except OSError:
            return False
        if all(self._is_kept(one, ended) for one in _jobs(job)):
            return True
        os.unlink(mark)
        return False

    def _is_kept(self, job: Any, ended: float) -> bool:
        """Return whether the outputs of a job are those that its last run has made."""
        outputs = list(map(str, job.output))
        # What Snakemake has recorded as complete runs for another reason, such as --forceall.
        unrecorded = self._workflow.async_run(self._workflow.persistence.incomplete(job))
        if not outputs or len(unrecorded) < len(outputs):
            return False
        script = job.rule.script or job.rule.notebook
        sources = [str(self._workflow.main_snakefile)]
        if script is not None:
            sources.append(os.path.join(str(job.rule.basedir.get_path_or_uri(False)), str(script)))
        changed = max(_modified(map(str, (*job.input, *sources))), default=0.0)
        return changed <= min(_modified(outputs), default=ended)

    def forget_recorded(self) -> None:
        """Remove the files of jobs that Snakemake has recorded, also of earlier Snakemakes."""
        if not self._folder.exists():
            return
        dag = self._workflow.dag
        left = {path.name for path in self._folder.iterdir()}
        for job in dag.get_jobs_or_groups():
            if not left:
                return
            if not all(map(dag.noneedrun_finished, _jobs(job))):
                continue
            mark = self._folder / os.path.basename(self.mark(job))
            for path in (mark, mark.with_name(f"{mark.name}.lock")):
                if path.name in left:
                    left.discard(path.name)
                    path.unlink(missing_ok=True)


def _jobs(job: Any) -> list[Any]:
    return sorted(job.jobs, key=lambda one: str(one.output)) if job.is_group() else [job]


def _modified(paths: Iterable[str]) -> list[float]:
    """Return when those of the files that are there were modified, seconds since the epoch."""
    return [os.path.getmtime(path) for path in paths if os.path.exists(path)]
