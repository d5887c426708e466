"""Executor plugin of Snakemake: jobs are run by Bursar."""

from dataclasses import dataclass, field
from typing import Optional

from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from snakemake_executor_plugin_bursar.executor import SnakemakeExecutor as Executor

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    init_seconds_before_status_checks=0,
)


# Snakemake makes options of the settings, and can do so of Optional only.
@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """
    Settings of the plugin, as options ``--bursar-...`` of Snakemake.

    Parameters
    ----------
    sites
        Sites file; None: this machine.
    budget
        Most that the workflow may cost, as ``"40 EUR"``; None: no limit.
    deadline
        Time within which the jobs are to end, as ``"2h"``; None: no limit.
    service
        Name or address of a Bursar service that runs the jobs, in place of sites.
    folder
        Folder for the journal and the bill of the jobs; None: a new one in ``.snakemake/bursar``.
    enforce_runtime
        Whether a job is killed after its resource ``runtime``, which else is an estimate.
    anew
        Whether budget and deadline count from now on, whatever earlier beginnings have cost.
    whole_snakemake
        Whether shell commands run in a Snakemake of their own, too.
    """

    sites: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={"help": "Sites file of Bursar. Default: this machine.", "env_var": False},
    )
    budget: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": 'Most that the workflow may cost, however often it is begun: "40 EUR".',
            "env_var": False,
        },
    )
    deadline: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": 'Time within which the jobs are to end: "2h". The odds are told before and '
            "as jobs end; jobs that run when the time is over are ended.",
            "env_var": False,
        },
    )
    service: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "Bursar service that runs the jobs: a name in services.toml, or an address. "
            "Jobs go on there when Snakemake is killed.",
            "env_var": False,
        },
    )
    folder: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={"help": "Folder for journal and bill of the jobs.", "env_var": False},
    )
    enforce_runtime: bool = field(
        default=False,
        metadata={
            "help": "Kill a job after its resource runtime, which else is an estimate.",
            "env_var": False,
        },
    )
    anew: bool = field(
        default=False,
        metadata={
            "help": "Count budget and deadline from now on. Else what a Snakemake has cost that "
            "was killed, or had jobs that failed, counts when it is begun again.",
            "env_var": False,
        },
    )
    whole_snakemake: bool = field(
        default=False,
        metadata={
            "help": "Start a Snakemake for each job, also where its shell command is enough.",
            "env_var": False,
        },
    )


__all__ = ["Executor", "ExecutorSettings", "common_settings"]
