"""Files and folders that a history imports: opened, recognised, and read whole or not at all."""

import contextlib
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bursar.formats.file_text import read_bytes
from bursar.formats.trace_files import read_swf
from bursar.formats.wfformat import read_wfformat
from bursar.history.importing.formats import TEXT_READERS, LogFormat, guess_format
from bursar.history.importing.imported_log import ImportedLog
from bursar.history.importing.recorded import observe_trace, observe_workflow
from bursar.history.importing.snakemake import (
    read_snakemake_benchmark,
    read_snakemake_metadata,
)
from bursar.history.store import History
from bursar.model.errors import BursarError, InputError
from bursar.runs.folder import RunFolder
from bursar.runs.recording.history_recorder import observe_run
from bursar.runs.run_record import read_run

_BATCH = 10_000
"""Observations in one transaction."""

_BEGIN = 1 << 16
"""Bytes by which a format is recognised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTerms:
    """
    Terms on which files are read.

    Parameters
    ----------
    format
        Format of all files; None: as each looks.
    kind
        Kind of all tasks; None: as the files say.
    site, speed
        Name and speed of the site of all tasks; None: as the files say.
    """

    format: LogFormat | None = None
    kind: str | None = None
    site: str | None = None
    speed: float | None = None


def read_log(path: Path, terms: ImportTerms) -> tuple[LogFormat, ImportedLog]:
    """
    Read a file or folder that a history can import.

    Raises
    ------
    InputError
        When it cannot be read, or its format is not known or another one.
    """
    form = terms.format or _recognise(path)
    log = _read(path, form, terms)
    return form, log.at_site(terms.site, terms.speed).of_kind(terms.kind)


def add_log(history: History, log: ImportedLog) -> int:
    """
    Add a log to a history; return how many observations are new there.

    Raises
    ------
    BursarError
        When the history cannot be written.
    """
    before = history.total()
    executions = log.executions
    for start in range(0, len(log.observations), _BATCH):
        history.add(log.observations[start : start + _BATCH], executions)
        executions = []
    return max(0, history.total() - before)


def _recognise(path: Path) -> LogFormat:
    if path.is_dir():
        if (path / "run.json").is_file():
            return "run"
        if (path / ".snakemake" / "metadata").is_dir():
            return "snakemake-metadata"
        raise InputError(
            "is a folder of no known kind, expected a run or a Snakemake project", where=str(path)
        )
    begin = read_bytes(path)[:_BEGIN].decode("utf-8", errors="replace")
    form = guess_format(path.name, begin)
    if form is None:
        raise InputError(
            "is of no format that is recognised",
            where=str(path),
            hint="name the format: bursar history import FORMAT FILE",
        )
    return form


def _read(path: Path, form: LogFormat, terms: ImportTerms) -> ImportedLog:
    match form:
        case "run":
            folder = RunFolder.open(path.parent, path.name)
            if folder.read_info().history == "none":
                raise InputError("is a simulation, or a run without a history", where=str(path))
            observations, facts = observe_run(read_run(folder))
            return ImportedLog(observations=observations, executions=[facts])
        case "snakemake-metadata":
            return _snakemake_project(path)
        case "swf":
            return observe_trace(read_swf(path, width="allocated"), str(path))
        case "wfformat":
            digest = hashlib.sha256(read_bytes(path)).hexdigest()[:8]
            return observe_workflow(read_wfformat(path), str(path), digest)
        case "snakemake":
            modified = path.stat().st_mtime
            return read_snakemake_benchmark(
                _text(path), str(path.absolute()), modified=modified, rule=terms.kind
            )
        case _:
            return TEXT_READERS[form](_text(path), str(path))


def _text(path: Path) -> str:
    data = read_bytes(path)
    if b"\0" in data:
        raise InputError("is not a text", where=str(path))
    # One odd name in a log is no reason to lose the log.
    return data.decode("utf-8", errors="replace")


def _snakemake_project(path: Path) -> ImportedLog:
    folder = path / ".snakemake" / "metadata"
    if not folder.is_dir():
        raise InputError("has no folder .snakemake/metadata", where=str(path))
    files = []
    for top, _, names in os.walk(folder):
        for name in names:
            file = Path(top) / name
            files.append((str(file.relative_to(folder)), read_bytes(file)))

    def size_of(name: str) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return (path / name).stat().st_size
        return None

    return read_snakemake_metadata(files, str(path.absolute()), size_of)


def read_all(
    paths: Iterable[Path], terms: ImportTerms, *, skip_bad: bool
) -> list[tuple[Path, LogFormat, ImportedLog]]:
    """
    Read files; nothing is imported unless each can be read.

    Parameters
    ----------
    skip_bad
        Whether what cannot be read is left out, and counted.

    Raises
    ------
    InputError
        At the first bad row, with the number of the others.
    """
    found = []
    for path in paths:
        try:
            form, log = read_log(path, terms)
        except BursarError as error:
            if not skip_bad or not isinstance(error, InputError):
                raise
            found.append((path, terms.format or "bursar", ImportedLog(problems=[error])))
            continue
        if log.problems and not skip_bad:
            first, more = log.problems[0], len(log.problems) - 1
            others = f" (and {more} more)" if more else ""
            raise InputError(
                f"{first.message}{others}",
                where=first.where,
                hint=first.hint or "--skip-bad leaves such rows out; nothing was imported",
            )
        found.append((path, form, log))
    return found
