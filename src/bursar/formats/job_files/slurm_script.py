"""
Scripts for ``sbatch`` as campaigns: one task, or one for each index of an array.

A script runs as Slurm would run it: in the folder of the script (or ``--chdir``), with the
variables ``SLURM_...`` of a job on one node, and prints into the files that ``--output`` and
``--error`` name. ``docs/guides/sbatch-scripts.md`` says what is lost in translation.

References
----------
.. [1] SchedMD. sbatch. Slurm workload manager, version 24.05, https://slurm.schedmd.com/sbatch.html
"""

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bursar.formats.file_text import read_text
from bursar.formats.job_files.sbatch_options import (
    INSTEAD,
    OF_THE_QUEUE,
    ArrayIndices,
    StatedOption,
    parse_array,
    parse_count,
    parse_counted,
    parse_gpus,
    parse_memory,
    parse_nodes,
    parse_options,
    parse_signal,
    parse_time_limit,
)
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import InputError
from bursar.model.task import GPU, Exec, File, Inherit, Step, Task, Write

ENDINGS = (".sh", ".bash", ".sbatch", ".slurm", ".job")
"""Ends of names that a script may have; a file with another is taken by its ``#SBATCH`` lines."""

SRUN = "srun"
"""Program that starts job steps; scripts that name it get a stand-in."""

_OF_A_LOGIN = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR")
"""Variables that a job has whatever ``--export`` says."""

_RUN_SCRIPT = r"""
place=$PWD; folder=$1; output=$2; error=$3; mode=$4; input=$5; script=$6; position=$7
number=$8; signal=$9; shift 9; arguments=$1; shift
for name in $(env | sed -n 's/^\(SLURM[A-Z]*_[A-Z0-9_]*\)=.*/\1/p'); do unset "$name"; done
run=$(printf %.6s "$BURSAR_RUN"); A=${number:-$((0x${run:-0} % 60000000 + 1))}; J=$((A + position))
N=$(uname -n); N=${N%%.*}; U=$(id -un)
export SLURM_JOB_ID=$J SLURM_JOBID=$J SLURMD_NODENAME=$N SLURM_JOB_NODELIST=$N SLURM_NODELIST=$N
export SLURM_JOB_USER=$U SLURM_JOB_UID=$(id -u) SLURM_TASK_PID=$$ SLURM_SUBMIT_HOST=$N
[ -z "$BURSAR_RESTARTS" ] || export SLURM_RESTART_COUNT=$BURSAR_RESTARTS
[ "$mode" != append ] || export SLURM_OPEN_MODE=a
[ -z "$position" ] || export SLURM_ARRAY_JOB_ID=$A
if [ -f srun ]; then chmod +x srun; export PATH="$place:$PATH"; fi
if [ -n "$number" ]; then export BURSAR_STEPS="$place/.steps"; mkdir "$BURSAR_STEPS"; fi
cd "$folder" || exit 1
eval "output=\"$output\" error=\"$error\" input=\"$input\""
before=0; erred=0
if [ "$mode" = append ]; then
  [ ! -f "$output" ] || before=$(wc -c < "$output")
  [ ! -f "$error" ] || erred=$(wc -c < "$error")
else
  : > "$output" || exit 1
  [ -z "$error" ] || : > "$error" || exit 1
fi
eval "set -- \"\$@\" \"\$place/\$script\" $arguments"
announce() {  # where a signal for the job has to go
  [ ! -d "$BURSAR_RUNNING" ] ||
    echo "$(uname -n) $1 $(cut -d ' ' -f 22 "/proc/$1/stat") $place" > "$BURSAR_RUNNING/$J"
}
below() {  # the processes that some have started, and these themselves
  for one in "$@"; do
    echo "$one"; below $(cat "/proc/$one/task/$one/children" 2> /dev/null)
  done
}
start() {
  [ -n "$signal" ] || { env "$@"; return; }
  env "$@" <&0 & child=$!
  announce "$child"
  ( trap 'kill "$nap"; exit' TERM; after=${signal% *}; sleep "${after#* }" & nap=$!
    wait "$nap" || exit
    case $signal in
      *script) set -- "$child" ;;
      *) cd "$BURSAR_STEPS" && set -- [0-9]* && set -- $(below "$@") ;;
    esac
    kill -s "${signal%% *}" "$@" ) > /dev/null 2>&1 & timer=$!
  wait "$child"; status=$?
  kill "$timer" 2> /dev/null; wait "$timer"
  return "$status"
}
if [ -n "$number" ] && [ -z "$signal" ]; then  # all that is left to do
  announce $$
  [ -n "$error" ] || exec env "$@" < "$input" >> "$output" 2>&1
  exec env "$@" < "$input" >> "$output" 2>> "$error"
fi
if [ -z "$error" ]; then
  start "$@" < "$input" >> "$output" 2>&1
else
  start "$@" < "$input" >> "$output" 2>> "$error"
fi
status=$?
[ -z "$number" ] || exit $status
[ ! -f "$output" ] || tail -c +$((before + 1)) "$output"
[ -z "$error" ] || [ ! -f "$error" ] || tail -c +$((erred + 1)) "$error" >&2
exit $status
"""
"""
Runs a script as a job of Slurm, and prints what it has printed into its files once it has ended,
so that the task's own output has it, too. Without a number, which keeps what is printed in its
files alone, the number of the job is made of the run's identity.
"""

SRUN_SCRIPT = r"""#!/bin/sh
# Stands for Slurm's srun within a task of Bursar, whose processors are on one machine.
count=${SLURM_NTASKS:-1}; label=; output=; error=; mode=${SLURM_OPEN_MODE:-t}
while [ $# -gt 0 ]; do
  case $1 in
    -n|--ntasks) count=$2; shift ;;
    --ntasks=*) count=${1#*=} ;;
    -n[0-9]*) count=${1#-n} ;;
    -o|--output) output=$2; shift ;;
    --output=*) output=${1#*=} ;;
    -e|--error) error=$2; shift ;;
    --error=*) error=${1#*=} ;;
    --open-mode=*) mode=${1#*=} ;;
    -c|--cpus-per-task|--mem|--mem-per-cpu|-J|--job-name) shift ;;
    -c[0-9]*|--cpus-per-task=*|--mem=*|--mem-per-cpu=*|--job-name=*) ;;
    -N|--nodes) [ "$2" = 1 ] || { echo "srun: $1 $2: a task has one node" >&2; exit 1; }; shift ;;
    -N1|--nodes=1|--exact|--exclusive|--overlap|-u|--unbuffered) ;;
    --cpu-bind=*|--cpu_bind=*|--mpi=none|--kill-on-bad-exit*|-K*) ;;
    -l|--label) label=yes ;;
    --) shift; break ;;
    -*) echo "srun: $1 is not honoured within a task of Bursar" >&2; exit 1 ;;
    *) break ;;
  esac
  shift
done
[ $# -gt 0 ] || { echo 'srun: expected a program' >&2; exit 1; }
export SLURM_NTASKS=$count SLURM_NPROCS=$count SLURM_STEP_NUM_TASKS=$count
# Names itself among the steps, for signals that are meant for these.
[ -z "$BURSAR_STEPS" ] || set -- /bin/sh -c \
  'cut -d " " -f 22 "/proc/$$/stat" > "$0/$$"; exec "$@"' "$BURSAR_STEPS" "$@"
trap : HUP USR1 USR2  # the programs get them, too, and have no trap of this shell
node=${SLURMD_NODENAME:-$(uname -n)}
filled() {  # sets name to a pattern's file
  name=
  rest=$1
  while [ "${rest#*%}" != "$rest" ]; do
    name=$name${rest%%\%*}; rest=${rest#*%}; sign=${rest%"${rest#?}"}; rest=${rest#?}
    case $sign in
      A) value=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID} ;;
      a) value=${SLURM_ARRAY_TASK_ID:-4294967294} ;;
      j) value=$SLURM_JOB_ID ;;
      J) value=$SLURM_JOB_ID.0 ;;
      N) value=$node ;;
      n|t) value=$SLURM_PROCID ;;
      s) value=0 ;;
      u) value=$SLURM_JOB_USER ;;
      x) value=$SLURM_JOB_NAME ;;
      %) value=% ;;
      *) echo "srun: %$sign is not honoured in names of files" >&2; return 1 ;;
    esac
    name=$name$value
  done
  name=$name$rest
}
opened() {  # a file, empty unless it is to be appended to, made by the first task only
  filled "$1" || exit 1
  case $mode in a|append) ;; *)
    case $1 in *%[nt]*) : > "$name" ;; *) [ "$SLURM_PROCID" != 0 ] || : > "$name" ;; esac
  esac
}
one() {
  if [ -n "$label" ]; then
    { { { "$@" 2>&1 >&3 3>&- 4>&-; echo $? >&4; } |
      sed "s/^/$SLURM_PROCID: /" >&2; } 3>&1 4> "$mark.$SLURM_PROCID"; } |
      sed "s/^/$SLURM_PROCID: /"
    return "$(cat "$mark.$SLURM_PROCID")"
  fi
  exec "$@"
}
redirected() {
  if [ -n "$error" ]; then opened "$error"; errors=$name; fi
  if [ -n "$output" ]; then
    opened "$output"; exec >> "$name"
    [ -n "$error" ] || exec 2>&1
  fi
  [ -z "$error" ] || exec 2>> "$errors"
}
failed() { [ "$2" = 0 ] || echo "srun: error: $node: task $1: Exited with exit code $2" >&2; }
if [ "$count" = 1 ] && [ -z "$label" ]; then
  export SLURM_PROCID=0 SLURM_LOCALID=0
  (redirected; exec "$@"); status=$?
  failed 0 "$status"; exit "$status"
fi
mark=$(mktemp -d)/status; trap 'rm -rf "${mark%/*}"' EXIT
number=0; started=
while [ "$number" -lt "$count" ]; do
  ( export SLURM_PROCID=$number SLURM_LOCALID=$number; trap - EXIT; redirected; one "$@" ) &
  started="$started $!"; number=$((number + 1))
done
worst=0; number=0
for process in $started; do
  wait "$process"; status=$?
  while [ "$status" -gt 128 ] && kill -0 "$process" 2> /dev/null; do
    wait "$process"; status=$?
  done
  failed "$number" "$status"; number=$((number + 1))
  [ "$status" -le "$worst" ] || worst=$status
done
exit "$worst"
"""
"""Stands for ``srun`` within a task."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """
    Options of a job, as its script states them.

    Parameters
    ----------
    processors
        Of each element.
    variables
        Variables that are the same for all elements.
    """

    options: Mapping[str, StatedOption]
    processors: int
    memory: int | None
    resources: Mapping[str, int]
    limit: float | None
    array: ArrayIndices | None
    variables: dict[str, str]

    def value(self, name: str, otherwise: str = "") -> str:
        """Return the value of an option as written."""
        stated = self.options.get(name)
        return otherwise if stated is None else stated.value


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmScript:
    """
    A script, and how a job runs it.

    Parameters
    ----------
    name
        Name of the file in the task's folder.
    interpreter
        Program that runs the script, and its argument.
    root
        Folder in which the job was submitted.
    uses_srun
        Whether the job gets a stand-in of ``srun``.
    number
        Number of the job, and of an array's first element; None: made of the run's identity.
    arguments
        Words behind the script.
    """

    name: str
    interpreter: tuple[str, ...]
    root: Path
    uses_srun: bool
    number: int | None = None
    arguments: tuple[str, ...] = ()


def is_slurm_script(path: Path) -> bool:
    """Whether a file is a script for ``sbatch``, by its name or its first lines."""
    if path.suffix.lower() in ENDINGS:
        return True
    try:
        with path.open("rb") as file:
            head = file.read(8192)
    except OSError:
        return False
    return head.startswith(b"#!") and re.search(rb"^#SBATCH\s", head, re.MULTILINE) is not None


def read_slurm_script(path: Path) -> Campaign:
    """
    Read a script with ``#SBATCH`` lines.

    The campaign names no file of its own, so that runs of it do not reuse results of earlier ones:
    which files of the folder a script reads and makes is not known.

    Raises
    ------
    InputError
        At the line, when an option is wrong or not honoured.
    """
    text = read_text(path)
    interpreter = read_interpreter(text, str(path))
    options = read_directives(text, str(path))
    job = read_job(options)
    root = Path(os.path.abspath(path)).parent
    name = job.value("job-name") or path.name
    script = SlurmScript(name=path.name, interpreter=interpreter, root=root, uses_srun=SRUN in text)
    tasks = tuple(tasks_of(job, name, script))
    return Campaign(
        name=name if name.strip() and name.isprintable() else path.stem,
        workflow=Workflow(tasks),
        root=root,
        templates={name: path.name},
        remarks=tuple(
            f"{options[one].where}: --{one} is left to the sites file, or to options of Bursar"
            for one in OF_THE_QUEUE
            if one in options
        ),
        at_once=None if job.array is None else job.array.at_once,
    )


def read_interpreter(text: str, where: str) -> tuple[str, ...]:
    """
    Read which program runs a script, from the script's first line.

    Raises
    ------
    InputError
        When the line names none.
    """
    first = text.split("\n", 1)[0]
    if not first.startswith("#!") or not first[2:].strip():
        raise InputError(
            "is no script for sbatch: expected a first line such as #!/bin/bash", where=f"{where}:1"
        )
    # As the kernel does: all behind the program is one argument.
    return tuple(first[2:].strip().split(None, 1))


def read_directives(text: str, where: str, also: Collection[str] = ()) -> dict[str, StatedOption]:
    """
    Read the options in the ``#SBATCH`` lines of a script.

    Parameters
    ----------
    also
        Options that are honoured besides those that a campaign honours.

    Raises
    ------
    InputError
        At the line, when an option is unknown or not honoured.
    """
    options: dict[str, StatedOption] = {}
    for number, line in _directives(text):
        place = f"{where}:{number}"
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            raise InputError("expected a closing quotation mark", where=place) from None
        options |= parse_options(words, place, also)
    return options


def _directives(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the options of each line, until the first command as Slurm does."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"#SBATCH(?:\s+(.*))?$", line):
            yield number, match[1] or ""
        elif line.strip() and not line.startswith("#"):
            return


def read_job(options: Mapping[str, StatedOption]) -> SlurmJob:
    """
    Read what the options of a job ask for.

    Raises
    ------
    InputError
        Naming the option that is wrong or not honoured.
    """

    def number(name: str) -> int | None:
        return options[name].read(parse_count) if name in options else None

    if "nodes" in options and options["nodes"].read(parse_nodes) > 1:
        raise options["nodes"].error("more than one node is not honoured", INSTEAD["nodes"])
    each = number("cpus-per-task")
    count, on_node = number("ntasks"), number("ntasks-per-node")
    if count is None:
        count = on_node
    elif on_node is not None and on_node < count:
        raise options["ntasks"].error(
            f"{count} tasks, {on_node} on each node: more than one node is not honoured"
        )
    processors = (count or 1) * (each or 1)
    memory = options["mem"].read(parse_memory) if "mem" in options else None
    if "mem-per-cpu" in options:
        memory = options["mem-per-cpu"].read(parse_memory) * processors
    array = options["array"].read(parse_array) if "array" in options else None
    limit = options["time"].read(parse_time_limit) if "time" in options else None
    variables = _variables(options, processors, count, each, array)
    return SlurmJob(
        options=options,
        processors=processors,
        memory=memory,
        resources=_resources(options, count or 1),
        limit=limit or None,  # 0: no limit
        array=array,
        variables=variables,
    )


def _resources(options: Mapping[str, StatedOption], tasks: int) -> dict[str, int]:
    found: dict[str, int] = {}
    if "licenses" in options:
        found |= options["licenses"].read(parse_counted)
    for name in ("gres", "gpus", "gpus-per-node", "gpus-per-task"):
        if name in options:
            found[GPU] = options[name].read(parse_gpus)
            found[GPU] *= tasks if name == "gpus-per-task" else 1
    return {name: count for name, count in found.items() if count}


def _variables(
    options: Mapping[str, StatedOption],
    processors: int,
    tasks: int | None,
    each: int | None,
    array: ArrayIndices | None,
) -> dict[str, str]:
    """Return the variables of a job that are known before it runs."""
    found = {
        "SLURM_CLUSTER_NAME": "bursar",
        "SLURM_CPUS_ON_NODE": processors,
        "SLURM_JOB_CPUS_PER_NODE": processors,
        "SLURM_JOB_NUM_NODES": 1,
        "SLURM_NNODES": 1,
        "SLURM_NODEID": 0,
        "SLURM_PROCID": 0,
        "SLURM_LOCALID": 0,
        "SLURM_TASKS_PER_NODE": tasks or processors // (each or 1),
    }
    if tasks is not None:
        found |= {"SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks}
    if "ntasks-per-node" in options:
        found["SLURM_NTASKS_PER_NODE"] = options["ntasks-per-node"].value
    if each is not None:
        found["SLURM_CPUS_PER_TASK"] = each
    if gpus := _resources(options, tasks or 1).get(GPU):
        found["SLURM_GPUS_ON_NODE"] = gpus
    for name in ("gpus", "gpus-per-node", "gpus-per-task"):
        if name in options:
            found[f"SLURM_{name.upper().replace('-', '_')}"] = options[name].value
    for name, variable in (("mem", "SLURM_MEM_PER_NODE"), ("mem-per-cpu", "SLURM_MEM_PER_CPU")):
        if name in options:
            found[variable] = options[name].read(parse_memory) // 2**20
    if array is not None:
        found |= {
            "SLURM_ARRAY_TASK_COUNT": len(array.indices),
            "SLURM_ARRAY_TASK_MIN": array.indices[0],
            "SLURM_ARRAY_TASK_MAX": array.indices[-1],
            "SLURM_ARRAY_TASK_STEP": array.step,
        }
    return {name: str(value) for name, value in found.items()}


def tasks_of(job: SlurmJob, name: str, script: SlurmScript) -> Iterator[Task]:
    """
    Yield the tasks of a job: one, or one for each index of an array.

    Raises
    ------
    InputError
        Naming the option that is wrong.
    """
    exported, added = exported_variables(job)
    chdir = job.value("chdir")
    folder = str(script.root / chdir) if chdir else str(script.root)
    common = job.variables | {"SLURM_JOB_NAME": name, "SLURM_SUBMIT_DIR": str(script.root)} | added
    before: tuple[Step, ...] = () if exported is None else (Inherit(exported),)
    if script.uses_srun:
        before += (Write(SRUN, SRUN_SCRIPT),)
    mode = job.value("open-mode", "truncate")
    if mode not in ("append", "truncate"):
        raise job.options["open-mode"].error(f'expected append or truncate, got "{mode}"')
    usual = "slurm-%j.out" if job.array is None else "slurm-%A_%a.out"
    signal = job.options["signal"].read(parse_signal) if "signal" in job.options else None
    indices: tuple[int | None, ...] = (None,) if job.array is None else job.array.indices
    for position, index in enumerate(indices):
        # Slurm's own number of no element.
        known = {"x": name, "a": str(0xFFFFFFFE if index is None else index)}
        output, error, source = (
            _shell_text(job.value(option, otherwise), known)
            for option, otherwise in (("output", usual), ("error", ""), ("input", "/dev/null"))
        )
        own = {} if index is None else {"SLURM_ARRAY_TASK_ID": str(index)}
        when = ""
        if signal is not None and job.limit is not None:
            meant = "script" if signal.is_for_script else "steps"
            when = f"{signal.name} {max(job.limit - signal.seconds, 0):.0f} {meant}"
        command = Exec(
            (
                *("/bin/sh", "-c", _RUN_SCRIPT, "sbatch", folder, output, error, mode, source),
                *(script.name, "" if index is None else str(position)),
                *("" if script.number is None else str(script.number), when),
                shlex.join(script.arguments),
                *(f"{variable}={value}" for variable, value in (common | own).items()),
                *script.interpreter,
            )
        )
        yield Task(
            id=name if index is None else f"{name}_{index}",
            name=name,
            steps=(*before, command),
            inputs=(File(script.name),),
            processors=job.processors,
            wall_limit=job.limit,
            memory=job.memory,
            resources=job.resources,
            parameters={} if index is None else {"index": index},
        )


def exported_variables(job: SlurmJob) -> tuple[tuple[str, ...] | None, dict[str, str]]:
    """Return the variables of the worker that a job sees, None: all, and those that are stated."""
    stated = job.value("export", "ALL")
    names, added, everything = [], {}, False
    for part in filter(None, stated.split(",")):
        name, equals, value = part.partition("=")
        if part in ("ALL", "NONE"):
            everything |= part == "ALL"
        elif not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise job.options["export"].error(f'expected names of variables, got "{part}"')
        elif equals:
            added[name] = value
        else:
            names.append(name)
    return None if everything else (*_OF_A_LOGIN, *names), added


_FIXED = {"n": "0", "t": "0", "s": "batch"}
"""Signs of a file name pattern that stand for the same in each job, which has one node and task."""

_LATE = {"j": "J", "J": "J", "A": "A", "N": "N", "u": "U"}
"""Signs that are known when the job runs, and their variables in :data:`_RUN_SCRIPT`."""


def _shell_text(pattern: str, known: Mapping[str, str]) -> str:
    """
    Return a pattern of a file name as text for the inside of a shell's double quotes.

    ``%j``, ``%A``, ``%a``, ``%x``, ``%N``, ``%n``, ``%s``, ``%t``, ``%u`` and ``%%``; a number in
    between pads numbers with zeros. A backslash has Slurm take the pattern as it stands.
    """
    if "\\" in pattern:
        return escaped(pattern.replace("\\", ""))
    found = []
    for plain, percent, width, sign in re.findall(r"([^%]+)|(%)(\d*)(.?)", pattern, re.DOTALL):
        if not percent:
            found.append(escaped(plain))
        elif sign == "%":
            found.append("%")
        elif sign in known:
            value = known[sign]
            found.append(escaped(value.zfill(int(width or 0)) if value.isdigit() else value))
        elif sign in _FIXED:
            found.append(_FIXED[sign])
        elif sign not in _LATE:
            found.append(escaped(percent + width + sign))
        elif sign in "jJA" and width:
            found.append(f"$(printf %0{min(int(width), 10)}d ${{{_LATE[sign]}}})")
        else:
            found.append(f"${{{_LATE[sign]}}}")
    return "".join(found)


def escaped(text: str) -> str:
    """Return a text as it stands within double quotes of a shell."""
    return re.sub(r'([\\"$`])', r"\\\1", text)
