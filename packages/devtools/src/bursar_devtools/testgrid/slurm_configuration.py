"""The configuration files of a test cluster under Slurm, as text."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PARTITIONS: Mapping[str, str] = {
    "main": "Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    "short": "Nodes=ALL MaxTime=2 State=UP",
}
"""Partitions in Slurm's words: all nodes are in both; in ``short``, jobs of two minutes at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmClusterSettings:
    """
    What a cluster is made of.

    Parameters
    ----------
    name
        Of the cluster; lower-case letters, digits and ``_``.
    nodes, cpus
        How many nodes, and processors on each, whatever this machine has.
    memory
        Of each node, MB.
    gpus
        Of each node; plain files stand for the devices.
    latency
        Whole seconds from a job's submission to its start at the soonest.
    port
        First of its ports: the controller's; the nodes' follow.
    partitions
        Name to options, as in ``slurm.conf``.
    accounting
        Whether records of ended jobs are written, for ``sacct --completion``.
    extra
        Further lines of ``slurm.conf``.
    default_times
        Whether Slurm's own times hold: ``SlurmdTimeout=300`` (seconds until a silent node is
        called down), ``MessageTimeout=10`` and ``KillWait=30``. Otherwise these are 5, 5 and 2 s.
    """

    name: str
    nodes: int
    cpus: int
    memory: int = 4000
    gpus: int = 0
    latency: int = 0
    port: int = 0
    partitions: Mapping[str, str] = field(default_factory=lambda: dict(PARTITIONS))
    accounting: bool = True
    extra: tuple[str, ...] = ()
    default_times: bool = False

    @property
    def node_names(self) -> tuple[str, ...]:
        """``n1`` and so on."""
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))


def slurm_conf(settings: SlurmClusterSettings, folder: Path, user: str) -> str:
    """
    ``slurm.conf`` of a cluster whose nodes are all this machine.

    Slurm allows several ``slurmd`` on one host when each has a name and a port of its own
    (Slurm documentation, "Multiple Slurmd Support"); ``config_overrides`` makes a node have what
    its line says. Scheduling cycles of a second and no delays, so that tests are quick; without
    control groups, so that it works in containers.
    """
    host = socket.gethostname().partition(".")[0]
    first, last = settings.port + 1, settings.port + settings.nodes
    lines = [
        f"ClusterName={settings.name}",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={settings.port}",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/run/munge.sock",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/%n",  # short: sockets lie in it
        f"SlurmctldPidFile={folder}/run/slurmctld.pid",
        f"SlurmdPidFile={folder}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdLogFile={folder}/log/%n/slurmd.log",  # there it works, and its step managers
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "MpiDefault=none",
        "SwitchType=switch/none",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,"
        "bf_interval=1,bf_resolution=1,bf_continue",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "MaxJobCount=20000",
        "MinJobAge=300",
        "CompleteWait=0",
        "EpilogMsgTime=0",
        "InactiveLimit=0",
        "BatchStartTimeout=10",
        "AccountingStorageType=accounting_storage/none",
    ]
    if not settings.default_times:
        lines += ["SlurmdTimeout=5", "MessageTimeout=5", "KillWait=2"]
    if settings.accounting:
        lines += ["JobCompType=jobcomp/filetxt", f"JobCompLoc={completions(folder)}"]
    if settings.latency:
        lines.append("JobSubmitPlugins=lua")
    if settings.gpus:
        lines.append("GresTypes=gpu")
    lines += settings.extra
    lines.append(
        f"NodeName={_range('n', 1, settings.nodes)} NodeHostname={host} NodeAddr=127.0.0.1"
        f" Port={_range('', first, last)} CPUs={settings.cpus} RealMemory={settings.memory}"
        + (f" Gres=gpu:{settings.gpus}" if settings.gpus else "")
    )
    lines += [f"PartitionName={name} {words}" for name, words in settings.partitions.items()]
    return "\n".join(lines) + "\n"


def write_gpus(settings: SlurmClusterSettings, folder: Path) -> None:
    """Write ``gres.conf`` of a cluster whose nodes have GPUs, and what stands for the devices."""
    files = [folder / "run" / f"gpu{number}" for number in range(settings.gpus)]
    for file in files:
        file.touch()
    (folder / "etc" / "gres.conf").write_text(f"Name=gpu File={','.join(map(str, files))}\n")


def completions(folder: Path) -> Path:
    """File of the records of ended jobs."""
    return folder / "log" / "completions.txt"


def job_submit_lua(latency: int) -> str:
    """
    Return the script that holds each job pending for some seconds after the submission.

    A job that has to wait longer anyway waits no longer for it: the delay is the scheduler's,
    not the nodes', and holds no processors.
    """
    return f"""\
function slurm_job_submit(job, partitions, uid)
    local soonest = os.time() + {latency}
    if job.begin_time == nil or job.begin_time < soonest then
        job.begin_time = soonest
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end
"""


def _range(prefix: str, first: int, last: int) -> str:
    """A lone one has no range."""
    return f"{prefix}{first}" if first == last else f"{prefix}[{first}-{last}]"
