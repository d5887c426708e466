"""
Snakemake's benchmark files and the metadata that it keeps of each output.

A benchmark file (``benchmark:`` of a rule) is a table of tab-separated fields with a row for each
repetition: seconds, memory in MiB, processor time. ``.snakemake/metadata`` has a JSON file for
each output, named by the output's path in base64.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from bursar.history.importing.imported_log import (
    ImportedLog,
    bad_field,
    collect,
    fingerprint,
    is_absent,
    number_of,
    plain_value,
    table_rows,
    without_numbering,
)
from bursar.history.observation import TaskObservation
from bursar.history.writing import ExecutionFacts
from bursar.model.errors import InputError
from bursar.model.task import Value

_MIB = 1 << 20
_FOLDER = re.compile(r"bench\w*", re.IGNORECASE)
_WORDS = frozenset({"benchmark", "benchmarks", "bench", "tsv", "txt", "log", "jsonl"})
_MAPPED = re.compile(r"'([^']+)': (?:'([^']*)'|([^,}]+))")


def read_snakemake_benchmark(
    text: str, path: str, *, modified: float, rule: str | None = None
) -> ImportedLog:
    """
    Read a benchmark file.

    Parameters
    ----------
    path
        Absolute path of the file: ``benchmarks/RULE/SAMPLE.tsv`` or ``SAMPLE.RULE.tsv`` names the
        rule, where the file has no column for it (``--benchmark-extended``).
    modified
        When the file was written, seconds since the epoch: the file has no dates.
    rule
        Name of the rule; None: as the file or its path say.

    Raises
    ------
    InputError
        When the text is no benchmark file.
    """
    _, rows, problems = table_rows(
        text, path, separator="\t", needed=("s",), what="a Snakemake benchmark file"
    )
    project, task, named = _named_by(path)
    execution = f"snakemake-{project}"
    numbered = [(where, {**row, "": str(n)}) for n, (where, row) in enumerate(rows, start=1)]

    def observe(row: Mapping[str, str]) -> TaskObservation:
        ran = number_of(row, "s")
        if ran is None:
            raise bad_field("s", row["s"], "seconds")
        memory, processor_time = number_of(row, "max_rss"), number_of(row, "cpu_time")
        kind = rule or row.get("rule_name") or named
        return TaskObservation(
            execution=execution,
            task=task,
            attempt=int(row[""]),
            kind=kind,
            parameters={**_mapped(row, "wildcards"), **_mapped(row, "params")},
            input_bytes=_input_bytes(row),
            processors=max(1, int(number_of(row, "threads") or 1)),
            start=max(0.0, modified - ran),
            seconds=ran,
            max_rss=None if memory is None else round(memory * _MIB),
            user_seconds=processor_time,
            source="snakemake",
        )

    log = collect(numbered, observe)
    log.problems.extend(problems)
    return log


def _named_by(path: str) -> tuple[str, str, str]:
    """Return what a path says: the project, the task in it, and the rule."""
    parts = path.split("/")
    at = next((i for i, part in enumerate(parts[:-1]) if _FOLDER.fullmatch(part)), None)
    inner = parts[-1:] if at is None else parts[at + 1 :]
    project = parts[:-1] if at is None else parts[:at]
    words = [word for word in inner[-1].split(".") if word.lower() not in _WORDS] or [inner[-1]]
    rule = inner[0] if len(inner) > 1 else words[-1]
    name = project[-1] if project else ""
    return (
        f"{name or 'project'}@{fingerprint('/'.join(project))}",
        "/".join(inner),
        without_numbering(rule),
    )


def _mapped(row: Mapping[str, str], name: str) -> dict[str, Value]:
    """Return the plain values of a dictionary as Python prints it."""
    if is_absent(row.get(name)):
        return {}
    return {
        key: plain_value(text if text or not other else other.strip())
        for key, text, other in _MAPPED.findall(row[name])
    }


def _input_bytes(row: Mapping[str, str]) -> int | None:
    if is_absent(row.get("input_size_mb")):
        return None
    sizes = list(_mapped(row, "input_size_mb").values())
    if not all(isinstance(size, int | float) for size in sizes):
        return None
    return round(sum(float(size) for size in sizes) * _MIB)


class _OutputRecord(msgspec.Struct, frozen=True):
    rule: str | None = None
    input: list[str] | None = None
    shellcmd: str | None = None
    params: list[str] | None = None
    code: Any = None
    starttime: float | None = None
    endtime: float | None = None
    incomplete: bool = False


def read_snakemake_metadata(
    files: Iterable[tuple[str, bytes]],
    folder: str,
    size_of_file: Callable[[str], int | None] = lambda name: None,
) -> ImportedLog:
    """
    Read the records of outputs.

    Outputs of one job have the same rule and times, and are one observation.

    Parameters
    ----------
    files
        Path of each file below ``metadata``, and its content.
    folder
        Absolute path of the project's folder, for messages and the name of the execution.
    size_of_file
        Returns the bytes of an input by its path in the project; None: not known any more.
    """
    log = ImportedLog()
    name = folder.rstrip("/").rpartition("/")[2] or "project"
    execution = f"snakemake-{name}@{fingerprint(folder)}"
    seen: dict[tuple[Any, ...], str] = {}
    begun = []
    for path, data in sorted(files):
        where = f"{folder}/.snakemake/metadata/{path}"
        try:
            output = _decoded(path)
            record = msgspec.json.decode(data, type=_OutputRecord)
        except (msgspec.MsgspecError, ValueError, binascii.Error) as error:
            log.problems.append(InputError(f"is no record of an output: {error}", where=where))
            continue
        start, end = record.starttime, record.endtime
        if record.incomplete or start is None or end is None or not record.rule:
            log.passed_over["no times, or not completed"] += 1
            continue
        key = (record.rule, start, end, record.shellcmd)
        if key in seen:
            log.passed_over["another output of the same job"] += 1
            continue
        seen[key] = output
        sizes = [size_of_file(one) for one in record.input or []]
        has_template = record.shellcmd is not None and isinstance(record.code, str)
        try:
            log.observations.append(
                TaskObservation(
                    execution=execution,
                    task=output,
                    kind=record.rule,
                    template=record.code if has_template else "",
                    parameters={
                        f"params[{i}]": plain_value(text)
                        for i, text in enumerate(record.params or [])
                        if len(text) < 1000
                    },
                    input_bytes=None
                    if any(size is None for size in sizes)
                    else sum(size or 0 for size in sizes),
                    start=start,
                    seconds=end - start,
                    source="snakemake",
                )
            )
            begun.append(start)
        except ValueError as error:
            log.problems.append(InputError(str(error), where=where))
    if begun:
        log.executions.append(
            ExecutionFacts(name=execution, campaign=name, source="snakemake", begun=min(begun))
        )
    return log


def _decoded(path: str) -> str:
    """Return the path of the output that a record is named by; long names lie in folders."""
    text = "".join(part.removeprefix("@") for part in path.split("/"))
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
