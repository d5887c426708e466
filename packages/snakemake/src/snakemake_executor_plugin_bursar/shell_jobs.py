"""
Jobs that run without a Snakemake of their own: shell commands on files that all machines see.

Snakemake's ``local`` executor runs such a job by Snakemake's shell alone, and the main process does
what comes after it (checks of outputs, protection, temporary files, records) for each executor.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from snakemake_interface_executor_plugins.settings import SharedFSUsage

from snakemake_executor_plugin_bursar import run_shell

OUTPUT_FLAGS = {"temp", "protected", "touch", "ensure", "report", "directory"}
"""Flags of outputs that the main process heeds, or that say what is to be removed before."""

INPUT_FLAGS = {"temp", "protected", "touch", "ensure", "report", "directory", "ancient"}

LONGEST = 60_000
"""Characters of a job's text; a shell takes an argument of 128 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellCommand:
    """
    A shell command with what Snakemake puts around it.

    Parameters
    ----------
    resources
        Resources that Snakemake's shell heeds.
    has_temporary_folder
        Whether the variables for temporary folders name that of the machine which runs the job.
    inputs
        Files that have to be there.
    patience
        Seconds until inputs have to be visible.
    files, directories
        Outputs and logs, of which nothing may be left from an earlier try.
    """

    command: str
    threads: int
    resources: dict[str, str]
    has_temporary_folder: bool
    inputs: list[str]
    patience: float
    files: list[str]
    directories: list[str]

    def text(self, python: str) -> str:
        """Return a line of a shell that runs the command by that Python."""
        program = os.path.abspath(run_shell.__file__)
        return f"exec {quote(python)} -P {quote(program)} {quote(json.dumps(asdict(self)))}"


def shell_command(workflow: Any, job: Any) -> ShellCommand | None:
    """
    Return the shell command of a job; None where it takes a whole Snakemake.

    Parameters
    ----------
    workflow
        Snakemake's workflow.
    job
        Snakemake's job or group of jobs.
    """
    if not runs_by_shell_alone(workflow) or job.is_group():
        return None
    rule = job.rule
    if (
        not job.is_shell
        or job.is_shadow
        or job.benchmark
        or not {flag for one in job.output for flag in one.flags} <= OUTPUT_FLAGS
        or not {flag for one in job.input for flag in one.flags} <= INPUT_FLAGS
    ):
        return None
    folder = rule.resources.get("tmpdir")
    # Else found on the machine that runs the job, by an expression of the user.
    if folder is not None and getattr(folder, "raw", None) != "system_tmpdir":
        return None
    try:
        command = str(job.shellcmd)
    except Exception:  # whatever is wrong in the command, a whole Snakemake says so in its log
        return None
    found = ShellCommand(
        command=command,
        threads=int(job.threads),
        resources={name: str(value) for name, value in job.resources.items() if name == SHELL},
        has_temporary_folder=folder is not None,
        inputs=list(map(str, job.get_wait_for_files())),
        patience=float(workflow.execution_settings.latency_wait),
        files=[str(one) for one in (*job.output, *job.log) if not one.is_directory],
        directories=[str(one) for one in job.output if one.is_directory],
    )
    # "<TBD>" stands for a resource that is known only where the job runs.
    if "<TBD>" in command or len(found.text("")) > LONGEST:
        return None
    return found


SHELL = "shell_exec"
"""Resource that names the shell of a rule."""


def runs_by_shell_alone(workflow: Any) -> bool:
    """Return whether nothing that holds for all jobs of a workflow takes a whole Snakemake."""
    from snakemake.shell import shell

    remote = workflow.remote_execution_settings
    return (
        set(workflow.storage_settings.shared_fs_usage) == set(SharedFSUsage.all())
        and workflow.storage_settings.default_storage_provider is None
        and not workflow.deployment_settings.deployment_method
        and workflow.workflow_settings.cache is None
        and not remote.precommand
        and not remote.envvars
        and not workflow.envvars
        # What the Snakefile says of all shell commands.
        and getattr(shell, "_process_prefix", "") is None
        and getattr(shell, "_process_suffix", None) == ""
        and os.path.basename(str(shell.get_executable())) == "bash"
        and not _changed_variables()
    )


def _changed_variables() -> bool:
    """
    Return whether environment variables were changed since this process has begun.

    The Snakefile does that, in each Snakemake that reads it.
    """
    try:
        begun = Path("/proc/self/environ").read_bytes()
    except OSError:
        return True
    there = dict(one.split(b"=", 1) for one in begun.split(b"\0") if b"=" in one)
    # Python itself sets this one where no locale is set.
    return {**there, b"LC_CTYPE": b""} != {**os.environb, b"LC_CTYPE": b""}
