"""The job script of a pilot."""

import shlex
import sys
from collections.abc import Sequence

from bursar.model.provisioning import BatchScheduler

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
    """The file with what a pilot complained of, beside that of its credential."""
    return f"{credential}.err"


def pilot_script(batch: BatchScheduler, credentials: Sequence[str]) -> str:
    """
    Job script that starts the pilot program on each node; it runs on the first of them.

    It comes after the site's own lines, which every job script has. The credential lies in a
    file that only its owner can read; the script has its name only.

    Parameters
    ----------
    credentials
        File of each of the jobs that are alike, in their order.
    """
    python = batch.python or sys.executable
    lines = []
    if len(credentials) == 1:
        lines.append(f"credential={shlex.quote(credentials[0])}")
    else:
        lines.append('case "${BURSAR_ELEMENT:-}" in')
        lines += [f"{i}) credential={shlex.quote(path)} ;;" for i, path in enumerate(credentials)]
        lines += ['*) echo "no element ${BURSAR_ELEMENT:-}" >&2; exit 64 ;;', "esac"]
    lines.append(f'set -- {shlex.quote(python)} -P -m bursar.provisioning.pilot "$credential"')
    lines.append('exec 2>"$credential.err"')
    script = "\n".join(lines) + "\n" + _ON_EACH_NODE[batch.manager]
    return script + "export BURSAR_PROCESSORS\n" + 'exec "$@"\n'
