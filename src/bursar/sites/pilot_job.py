"""A pilot's request to a scheduler, and the job script that starts the pilot's workers."""

import contextlib
import shlex
import socket
import sys
from collections.abc import Callable, Sequence

from bursar.dispatch.credential import LAST_WORDS, PilotTerms
from bursar.model.allocation import Allocation
from bursar.model.errors import SiteError
from bursar.model.provisioning import PATIENCE, STARTING, BatchScheduler
from bursar.model.site import SiteFacts
from bursar.provisioning.lrm.command_runner import CommandRunner
from bursar.provisioning.lrm.resource_manager import JobRequest
from bursar.sites.batch_pilot import BatchPilot
from bursar.sites.queue_observer import QueueObserver

_LAST_WORDS = 400  # bytes of a pilot's complaint that are repeated

_ON_EACH_NODE = {
    # One on each node, with the processors that the job has there: "12(x2),5" says how many.
    "slurm": """\
if [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ]; then
  export BURSAR_PER_NODE="$SLURM_JOB_CPUS_PER_NODE"
  exec srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=0 \\
    --cpu-bind=none \\
    --export=ALL --input=none --unbuffered sh -c '
      BURSAR_PROCESSORS=$(printf "%s\\n" "$BURSAR_PER_NODE" | tr , "\\n" |
        sed -n "s/^\\([0-9]*\\)(x\\([0-9]*\\))\\$/\\1 \\2/; s/^[0-9]*\\$/& 1/; p" |
        while read -r many times; do
          while [ "$times" -gt 0 ]; do echo "$many"; times=$((times - 1)); done
        done | sed -n "$((SLURM_NODEID + 1))p")
      export BURSAR_PROCESSORS
      unset SLURM_CPU_BIND
      exec "$@"' pilot "$@"
fi
BURSAR_PROCESSORS=${SLURM_CPUS_ON_NODE:-}
""",
    "gridengine": "BURSAR_PROCESSORS=${NSLOTS:-}\n",
    "pbs": "BURSAR_PROCESSORS=${NCPUS:-}\n",
    "lsf": "BURSAR_PROCESSORS=${LSB_DJOB_NUMPROC:-}\n",
    "flux": "",
}


def complaints_of(credential: str) -> str:
    """Return the file with a pilot's complaints, beside the credential's file."""
    return f"{credential}.err"


def pilot_script(batch: BatchScheduler, credentials: Sequence[str]) -> str:
    """
    Return the job script that starts the pilot program on each node.

    The script runs on the first node, after the site's own lines. The credential lies in a
    file that only its owner can read; the script has the file's name only.

    Parameters
    ----------
    credentials
        Credential file of each of the equal jobs, in order.
    """
    python = batch.python or sys.executable
    lines = []
    if len(credentials) == 1:
        lines.append(f"credential={shlex.quote(credentials[0])}")
    else:
        # Elements of an array share one script: each finds its own credential by its number.
        lines.append('case "${BURSAR_ELEMENT:-}" in')
        lines += [f"{i}) credential={shlex.quote(path)} ;;" for i, path in enumerate(credentials)]
        lines += ['*) echo "no element ${BURSAR_ELEMENT:-}" >&2; exit 64 ;;', "esac"]
    lines.append(f'set -- {shlex.quote(python)} -P -m bursar.provisioning.pilot "$credential"')
    lines.append('exec 2>"$credential.err"')
    script = "\n".join(lines) + "\n" + _ON_EACH_NODE[batch.manager]
    return script + "export BURSAR_PROCESSORS\n" + 'exec "$@"\n'


def pilot_request(
    batch: BatchScheduler,
    entries: Sequence[BatchPilot],
    *,
    name: str,
    folder: str,
    queue: QueueObserver,
    begin: float | None,
    reservation: str | None,
) -> JobRequest:
    """
    Build one request for equal pilots, and record in each pilot what was requested.

    Parameters
    ----------
    entries
        Pilots; one job is asked for each.
    name, folder
        Name of the jobs, and folder in which they run.
    queue
        Observer that knows the nodes and the longest allocation.
    begin
        Seconds since the epoch before which no job may begin; None: at once.
    reservation
        Reservation in which the jobs run, which says when they begin; None for none.
    """
    pilot, together = entries[0].pilot, entries[0].together
    # A pool thinks of the start itself, a plan of tasks does not.
    seconds = min(pilot.duration + (STARTING if pilot.tasks else 0.0), queue.longest)
    nodes, processors = None, pilot.processors
    per_node = queue.per_node if queue.spans_nodes else None
    if per_node and pilot.least_processors is not None:
        nodes = (
            max(1, pilot.least_processors // per_node),
            max(1, -(-pilot.processors // per_node)),
        )
        processors = per_node
    elif per_node and together and processors > per_node:
        # As many on each node: a wide task finds its processors on one.
        count = -(-processors // per_node)
        nodes, processors = (count, count), processors // count
        if count * processors != pilot.processors:
            for entry in entries:
                entry.processors = count * processors
    for entry in entries:
        entry.seconds = seconds
    least = pilot.least_duration
    return JobRequest(
        name=name,
        processors=processors,
        seconds=seconds,
        script=pilot_script(batch, [entry.credential for entry in entries]),
        folder=folder,
        copies=len(entries),
        nodes=nodes,
        together=nodes is None and (together or not queue.spans_nodes),
        least_seconds=least if least is None else min(least, seconds),
        begin=None if reservation else begin,
        reservation=reservation,
    )


def pilot_terms(
    facts: SiteFacts,
    pilot: Allocation,
    *,
    reach: str | None,
    on_join: Callable[[], None],
    on_leave: Callable[[], None] | None = None,
) -> PilotTerms:
    """
    Return the terms on which a pilot's workers are let in.

    Parameters
    ----------
    reach
        Host or address under which the workers find this machine; None: its name.
    """
    rules = facts.acquiring
    # Workers may leave when idle only where no task is planned on them.
    may_leave = rules.release in ("adaptive", "idle") and not rules.fewest and not pilot.tasks
    return PilotTerms(
        lease=pilot.name,
        site=facts.name,
        host=reach or socket.getfqdn(),
        processors=pilot.processors,
        idle=rules.idle if may_leave else None,
        patience=PATIENCE,
        grace=LAST_WORDS if facts.cloud is None else facts.cloud.grace,
        on_join=on_join,
        on_leave=on_leave,
    )


async def read_complaint(shell: CommandRunner, credential: str) -> str:
    """Return the last words that a pilot's program wrote about an error; empty for none."""
    with contextlib.suppress(SiteError):
        # On a shared file system they may come late; they are a help, no more.
        answer = await shell.run(["tail", "-c", str(_LAST_WORDS), complaints_of(credential)])
        if not answer.status:
            return "; ".join(answer.stdout.split("\n")).strip("; \r")
    return ""
