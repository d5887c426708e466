"""OptorSim's job configuration: files, jobs and the files they read, and where each may run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bursar.formats.file_text import read_text
from bursar.model.errors import InputError, spelling_hint
from bursar_papers.optorsim.lines import MEGABYTE, at, lines_of, number_in, shown, whole_in


@dataclass(frozen=True, slots=True, kw_only=True)
class OptorSimJobKind:
    """
    Jobs that read the same files.

    Parameters
    ----------
    files
        Logical names, in the order in which they are listed.
    probability
        With which a job is of this kind, over the sum of all kinds'.
    latency
        Work that each job takes besides its files, kSI2000-seconds.
    linear
        Work for each MB that it reads, kSI2000-seconds.
    fraction
        Of its files that one job reads, from 0 to 1.
    """

    name: str
    files: tuple[str, ...]
    probability: float
    latency: float
    linear: float
    fraction: float

    def work(self, size: float) -> float:
        """Return the work of a job that reads ``size`` bytes, kSI2000-seconds."""
        return self.latency + self.linear * size / MEGABYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class OptorSimJobs:
    """
    The jobs and files of an OptorSim configuration.

    Parameters
    ----------
    sizes
        Size of each file, bytes, by logical name.
    indices
        Index of each file in the file table, which access patterns use.
    kinds
        Kinds of jobs, in the order of the job table.
    accepts
        Names of the kinds that each site runs, by the site's number; a missing site runs none.
    """

    sizes: Mapping[str, int]
    indices: Mapping[str, int]
    kinds: tuple[OptorSimJobKind, ...]
    accepts: Mapping[int, tuple[str, ...]]


_Rows = list[tuple[int, list[str]]]

_TABLES = (
    "filetable",
    "jobtable",
    "cescheduletable",
    "jobselectionprobability",
    "jobexecutiontime",
    "filesetfraction",
)
_NEEDED = _TABLES[:4]
_FACTORS = ("kSI2000-seconds", "kSI2000-seconds for each MB")


def read_jobs(path: Path) -> OptorSimJobs:
    r"""
    Read a job configuration file: tables from ``\begin{name}`` to ``\end``.

    Without the tables ``jobexecutiontime`` and ``filesetfraction``, jobs take no time and
    read all their files.

    Raises
    ------
    InputError
        With the file and the line.
    """
    tables = _tables(path)
    for name in _NEEDED:
        if name not in tables:
            raise InputError(f"has no table \\begin{{{name}}}", where=str(path))
    sizes, indices = _files(path, tables["filetable"])
    reads = _reads(path, tables["jobtable"], sizes)
    probability = _numbers(path, tables["jobselectionprobability"], reads, ("a probability",), 1.0)
    work = _numbers(path, tables.get("jobexecutiontime", []), reads, _FACTORS, math.inf)
    fraction = _numbers(path, tables.get("filesetfraction", []), reads, ("a fraction",), 1.0)
    for name in reads:
        if name not in probability:
            raise InputError(f'job "{shown(name)}" has no probability', where=str(path))
    if not any(share for (share,) in probability.values()):
        raise InputError("no job has a probability above 0", where=str(path))
    kinds = []
    for name, files in reads.items():
        latency, linear = work.get(name, (0.0, 0.0))
        kinds.append(
            OptorSimJobKind(
                name=name,
                files=files,
                probability=probability[name][0],
                latency=latency,
                linear=linear,
                fraction=fraction.get(name, (1.0,))[0],
            )
        )
    return OptorSimJobs(
        sizes=sizes,
        indices=indices,
        kinds=tuple(kinds),
        accepts=_accepts(path, tables["cescheduletable"], reads),
    )


def _files(path: Path, rows: _Rows) -> tuple[dict[str, int], dict[str, int]]:
    sizes: dict[str, int] = {}
    indices: dict[str, int] = {}
    for line, words in rows:
        with at(path, line):
            if len(words) != 3:
                raise InputError(f"expected a file, its MB and its index, got {_all(words)}")
            name = _once(words[0], sizes)
            sizes[name] = whole_in(words[1], "a size in MB") * MEGABYTE
            indices[name] = whole_in(words[2], "an index")
    return sizes, indices


def _reads(path: Path, rows: _Rows, sizes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    reads: dict[str, tuple[str, ...]] = {}
    for line, words in rows:
        with at(path, line):
            files = tuple(_known(word, sizes, "file") for word in words[1:])
            reads[_once(words[0], reads)] = files
    return reads


def _accepts(path: Path, rows: _Rows, jobs: Mapping[str, object]) -> dict[int, tuple[str, ...]]:
    accepts: dict[int, tuple[str, ...]] = {}
    for line, words in rows:
        with at(path, line):
            site = whole_in(words[0], "the number of a site")
            if site in accepts:
                raise InputError(f"site {site} stands here twice")
            accepts[site] = tuple(_known(word, jobs, "job") for word in words[1:])
    return accepts


def _numbers(
    path: Path, rows: _Rows, jobs: Mapping[str, object], what: tuple[str, ...], most: float
) -> dict[str, tuple[float, ...]]:
    """Read a table with a job and numbers in each row."""
    found: dict[str, tuple[float, ...]] = {}
    for line, words in rows:
        with at(path, line):
            if len(words) != 1 + len(what):
                raise InputError(f"expected a job and {' and '.join(what)}, got {_all(words)}")
            name = _once(_known(words[0], jobs, "job"), found)
            found[name] = tuple(
                number_in(word, one, most=most) for word, one in zip(words[1:], what, strict=True)
            )
    return found


def _tables(path: Path) -> dict[str, _Rows]:
    tables: dict[str, _Rows] = {}
    current: str | None = None
    line = 0
    for line, text in lines_of(read_text(path)):
        where = f"{path}:{line}"
        if text.startswith("\\begin"):
            name = text.removeprefix("\\begin").strip()
            if current is not None:
                raise InputError(f"expected \\end of {current} before", where=where)
            if not (name.startswith("{") and name.endswith("}")) or name[1:-1] not in _TABLES:
                raise InputError(
                    f'expected \\begin{{...}} of {", ".join(_TABLES)}, got "{shown(text)}"',
                    where=where,
                    hint=spelling_hint(name.strip("{}"), _TABLES),
                )
            current = name[1:-1]
            if current in tables:
                raise InputError(f"has a second table {current}", where=where)
            tables[current] = []
        elif text.startswith("\\"):
            if text.split("{")[0].strip() != "\\end" or current is None:
                raise InputError(f'expected \\begin{{...}}, got "{shown(text)}"', where=where)
            current = None
        elif current is None:
            raise InputError(f'expected \\begin{{...}}, got "{shown(text)}"', where=where)
        else:
            tables[current].append((line, text.split()))
    if current is not None:
        raise InputError(f"expected \\end of {current}, got the end", where=f"{path}:{line}")
    return tables


def _once(name: str, seen: Mapping[str, object]) -> str:
    if name in seen:
        raise InputError(f'"{shown(name)}" stands here twice')
    return name


def _known(name: str, known: Mapping[str, object], what: str) -> str:
    if name not in known:
        raise InputError(f'no {what} "{shown(name)}"', hint=spelling_hint(name, known))
    return name


def _all(words: list[str]) -> str:
    return f'"{shown(" ".join(words))}"'
