"""
A hundred malformed files for each way in: every refusal is one line with the place and a reason.

The files are made of a good one, in ways that hands and scripts damage files: a word replaced, a
line left out or doubled, the end cut off, bytes that are no text.
"""

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bursar.formats.campaign_file import read_campaign
from bursar.formats.command_lists.job_log import read_job_log
from bursar.formats.file_text import read_text
from bursar.history.importing.formats import TEXT_READERS
from bursar.model.errors import InputError

HYPERQUEUE = """\
name = "fit"
[[task]]
id = 1
command = ["sh", "-c", "echo $A"]
env = { A = "1" }
stdout = "out-%{TASK_ID}"
stderr = { path = "err", mode = "rm-if-finished" }
time_limit = "1m 10s"
[[task.request]]
resources = { "cpus" = "2 compact", "gpus" = 1 }
[[task]]
id = 7
deps = [1]
cwd = "%{SUBMIT_DIR}/sub"
priority = -1
command = ["true"]
"""

ARRAY = """\
[array]
ids = "1-3,7"
entries = ["a", "b", "c", "d"]
command = ["echo"]
stdin = "text"
pin = "none"
"""

OPENJD = json.dumps(
    {
        "specificationVersion": "jobtemplate-2023-09",
        "name": "render {{Param.Scene}}",
        "parameterDefinitions": [
            {"name": "Scene", "type": "STRING", "default": "s", "minLength": 1},
            {"name": "Frames", "type": "INT", "default": 3, "maxValue": 9},
        ],
        "steps": [
            {
                "name": "frames",
                "hostRequirements": {"amounts": [{"name": "amount.worker.vcpu", "min": 2}]},
                "parameterSpace": {
                    "taskParameterDefinitions": [
                        {"name": "F", "type": "INT", "range": "1-{{Param.Frames}}"},
                        {"name": "S", "type": "STRING", "range": ["l", "r"]},
                    ],
                    "combination": "F * S",
                },
                "script": {
                    "actions": {
                        "onRun": {
                            "command": "echo",
                            "args": ["{{Task.Param.F}}"],
                            "timeout": 60,
                        }
                    }
                },
            },
            {
                "name": "join",
                "dependencies": [{"dependsOn": "frames"}],
                "script": {"actions": {"onRun": {"command": "true"}}},
            },
        ],
    },
    indent=1,
)

SBATCH = """\
#!/bin/bash
#SBATCH --job-name=fit --array=0-9:3%2
#SBATCH -n 2 -c 2 --mem=4G
#SBATCH --time=1-02:30:00
#SBATCH -o out-%A_%3a.txt -e err-%j --open-mode=append
#SBATCH --gres=gpu:2 --licenses=matlab:2
#SBATCH --export=ALL,A=1
./fit $SLURM_ARRAY_TASK_ID
"""

TRACE = (
    "task_id\thash\tnative_id\tname\tstatus\texit\tsubmit\tduration\trealtime\t%cpu\tpeak_rss\n"
    "1\tab/cdef01\t11\tQC (a)\tCOMPLETED\t0\t2026-01-01 10:00:00.000\t12s\t10s\t98.5%\t1.5 GB\n"
    "2\tab/cdef02\t12\tTRIM (a)\tCOMPLETED\t0\t2026-01-01 10:00:13.000\t1m 2s\t1m\t150%\t2 MB\n"
    "3\tab/cdef03\t13\tQC (b)\tFAILED\t1\t2026-01-01 10:00:00.500\t900ms\t800ms\t10%\t0\n"
)

COMMANDS = "#!/bin/bash\n# a comment\necho 1\nsleep 1; echo 'two words'\n\n./fit --all > out\n"

WFFORMAT = json.dumps(
    {
        "name": "pair",
        "schemaVersion": "1.5",
        "workflow": {
            "specification": {
                "tasks": [
                    {
                        "name": "make",
                        "id": "a",
                        "parents": [],
                        "children": ["b"],
                        "outputFiles": ["half"],
                    },
                    {
                        "name": "use",
                        "id": "b",
                        "parents": ["a"],
                        "children": [],
                        "inputFiles": ["half"],
                    },
                ],
                "files": [{"id": "half", "sizeInBytes": 20}],
            },
            "execution": {
                "makespanInSeconds": 3.5,
                "executedAt": "2026-01-01T00:00:00Z",
                "tasks": [
                    {"id": "a", "runtimeInSeconds": 1.5, "coreCount": 1, "machines": ["n"]},
                    {"id": "b", "runtimeInSeconds": 2, "memoryInBytes": 5},
                ],
                "machines": [{"nodeName": "n", "cpu": {"coreCount": 4, "speedInMHz": 2400}}],
            },
        },
    },
    indent=1,
)

JOBLOG = (
    "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n"
    "1\t:\t1795764176.382\t     0.101\t0\t2\t0\t0\techo 1\n"
    "2\tn1\t1795764176.482\t     1.5\t0\t0\t3\t0\t./fit --all\n"
    "3\t:\t1795764178.000\t    10.0\t0\t0\t-1\t15\tsleep 100\n"
)

SACCT = (
    "JobID|JobName|State|ExitCode|Submit|Start|End|Elapsed|AllocCPUS|MaxRSS|NodeList\n"
    "7|fit|COMPLETED|0:0|2026-01-01T10:00:00|2026-01-01T10:00:05|2026-01-01T10:01:05|00:01:00|2||n1\n"
    "7.batch|batch|COMPLETED|0:0|2026-01-01T10:00:05|2026-01-01T10:00:05|2026-01-01T10:01:05|"
    "00:01:00|2|1500K|n1\n"
    "8|fit|TIMEOUT|0:15|2026-01-01T10:00:00|2026-01-01T10:00:05|2026-01-02T10:00:15|1-00:00:10|1||n2\n"
)

JOURNAL = (
    '{"time":"2024-01-01T10:00:00Z","event":{"type":"job-created","job":1,"job_desc":{"name":"fit"},'
    '"submit_desc":{"task_desc":{"type":"Array","n_tasks":1}}}}\n'
    '{"time":"2024-01-01T10:00:01Z","event":{"type":"task-started","job":1,"task":0,"worker":1}}\n'
    '{"time":"2024-01-01T10:00:04Z","event":{"type":"task-finished","job":1,"task":0}}\n'
)

Read = Callable[[Path], list[InputError]]


def campaign(path: Path) -> list[InputError]:
    """Read a file as ``bursar plan`` does; return what is wrong."""
    try:
        read_campaign(path)
    except InputError as error:
        return [error]
    return []


def log_of_parallel(path: Path) -> list[InputError]:
    """Read a job log as ``bursar map --resume`` does; return what is wrong."""
    try:
        read_job_log(read_text(path), str(path))
    except InputError as error:
        return [error]
    return []


def history(kind: str) -> Read:
    """Return what reads a file as ``bursar history import`` does; bad rows are told one by one."""

    def read(path: Path) -> list[InputError]:
        try:
            text = read_text(path)
            return list(TEXT_READERS[kind](text, str(path)).problems)  # type: ignore[index]
        except InputError as error:
            return [error]

    return read


KINDS: dict[str, tuple[str, str, Read]] = {
    "hyperqueue": ("job.toml", HYPERQUEUE, campaign),
    "hyperqueue array": ("job.toml", ARRAY, campaign),
    "openjd": ("render.json", OPENJD, campaign),
    "sbatch": ("fit.sh", SBATCH, campaign),
    "nextflow": ("trace.txt", TRACE, campaign),
    "commands": ("commands.txt", COMMANDS, campaign),
    "wfformat": ("pair.json", WFFORMAT, campaign),
    "job log": ("log", JOBLOG, log_of_parallel),
    "history of nextflow": ("trace.txt", TRACE, history("nextflow")),
    "history of slurm": ("sacct.txt", SACCT, history("slurm")),
    "history of parallel": ("log", JOBLOG, history("parallel")),
    "history of hyperqueue": ("journal.json", JOURNAL, history("hyperqueue")),
}
"""Name of a file, its good content, and what reads it."""

JUNK = (
    "", "-1", "0", "1e999", "NaN", "true", "null", "[]", "{}", '"', "'", "\\", "\0", "x" * 300,
    "99999999999999999999", "%", "%{NO}", "{{No}}", "--no-such", "=", "\u2028", "\r", "#!", "..",
    "2026-99-99", "1-", ":", "@", "\udcff",
)  # fmt: skip
"""What stands in place of a word; the last one is a byte that is no text."""

MALFORMED = 100


def damaged(text: str, seed: int) -> Iterator[bytes]:
    """Yield files that differ from a good one in one or two places, without end."""
    chance = random.Random(seed)
    words = [match.span() for match in re.finditer(r"[\w.%-]+|[^\w\s]", text)]
    while True:
        kind = chance.random()
        found = text
        if kind < 0.7:
            for begin, end in sorted(chance.sample(words, chance.choice((1, 1, 2))), reverse=True):
                found = found[:begin] + chance.choice(JUNK) + found[end:]
        elif kind < 0.8:
            found = text[: chance.randrange(len(text))]
        else:
            lines = text.splitlines(keepends=True)
            at = chance.randrange(len(lines))
            lines[at : at + 1] = [] if kind < 0.9 else [lines[at], lines[at]]
            found = "".join(lines)
        yield found.encode(errors="surrogateescape")


OF_PYTHON = re.compile(
    r"Traceback|object has no|NoneType|not subscriptable|unhashable|out of range$|KeyError|'utf-8'"
    r"|codec can't|must be str\b|<class|msgspec|argument of type|unsupported operand|for int\("
)
"""Words of Python's own errors, which say nothing to whoever wrote the file."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_malformed_files_are_refused_in_one_line_each(kind: str, tmp_path: Path) -> None:
    """
    The good file reads; of the damaged ones some read as well, as a comment may hold anything.
    """
    name, text, read = KINDS[kind]
    path = tmp_path / name
    path.write_text(text)
    assert read(path) == []
    refused = 0
    for number, content in enumerate(damaged(text, len(kind))):
        assert number < 100 * MALFORMED, f"only {refused} of {number} were refused"
        path.write_bytes(content)
        problems = read(path)
        for problem in problems:
            said = str(problem)
            assert problem.where.startswith(str(path)), (content, said)
            lines = said.split("\n")
            assert len(lines) == (2 if problem.hint else 1), (content, said)
            assert all(line.isprintable() for line in lines), (content, said)
            assert len(problem.message) > 5, (content, said)
            assert not OF_PYTHON.search(problem.message), (content, said)
        refused += bool(problems)
        if refused == MALFORMED:
            break
