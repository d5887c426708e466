"""What a reader of another tool's log returns, and how readers tell bad rows from good ones."""

import hashlib
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from bursar.history.observation import TaskObservation
from bursar.history.writing import ExecutionFacts
from bursar.model.errors import InputError
from bursar.model.task import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedLog:
    """
    Observations and executions of a log.

    Parameters
    ----------
    observations
        Tasks that ended, in the order of the log.
    executions
        Facts of the executions, as far as the log tells them.
    problems
        Rows that cannot be read, each with file, line and field.
    passed_over
        Numbers of sound rows that tell nothing of a run time, by the reason.
    """

    observations: list[TaskObservation] = field(default_factory=list)
    executions: list[ExecutionFacts] = field(default_factory=list)
    problems: list[InputError] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)

    def at_site(self, site: str | None, speed: float | None) -> "ImportedLog":
        """Return the log with observations at a site of that name and speed; None: as it says."""
        changes: dict[str, object] = {}
        if site is not None:
            changes["site"] = site
        if speed is not None:
            changes["speed"] = speed
        if not changes:
            return self
        changed = [msgspec.structs.replace(one, **changes) for one in self.observations]
        return replace(self, observations=changed)

    def of_kind(self, kind: str | None) -> "ImportedLog":
        """Return the log with all observations of one kind; None: as it says."""
        if kind is None:
            return self
        changed = [msgspec.structs.replace(one, kind=kind) for one in self.observations]
        return replace(self, observations=changed)


class PassedOver(Exception):
    """A sound row tells nothing of a run time; the text says why."""


def collect(
    rows: Iterable[tuple[str, Mapping[str, str]]],
    observe: Callable[[Mapping[str, str]], TaskObservation],
) -> ImportedLog:
    """
    Observe rows one by one; a bad one spoils no other.

    Parameters
    ----------
    rows
        Where each row stands, and its fields by name.
    observe
        Returns the observation of a row. Raises :class:`PassedOver`, InputError at the field, or
        ValueError when a value is out of range.
    """
    log = ImportedLog()
    for where, row in rows:
        try:
            log.observations.append(observe(row))
        except PassedOver as reason:
            log.passed_over[str(reason)] += 1
        except InputError as error:
            log.problems.append(error.within(where))
        except (ValueError, OverflowError) as error:
            log.problems.append(InputError(str(error), where=where))
    return log


def table_rows(
    text: str, path: str, *, separator: str, needed: Sequence[str], what: str
) -> tuple[Sequence[str], list[tuple[str, Mapping[str, str]]], list[InputError]]:
    """
    Split a table with a header line.

    Parameters
    ----------
    needed
        Columns that must be there.
    what
        What the table should be, for people.

    Returns
    -------
    tuple
        Names of the columns, the sound rows with their places, and rows of another length.

    Raises
    ------
    InputError
        When there is no header, or it lacks a column.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.strip()), None)
    if start is None:
        raise InputError(f"is empty, expected {what}", where=path)
    names = [name.strip() for name in lines[start].removeprefix("\ufeff").split(separator)]
    for column in needed:
        if column not in names:
            raise InputError(
                f'has no column "{column}", expected {what}', where=f"{path}:{start + 1}"
            )
    rows: list[tuple[str, Mapping[str, str]]] = []
    problems = []
    for number, line in enumerate(lines[start + 1 :], start=start + 2):
        if not line.strip():
            continue
        fields = line.split(separator)
        where = f"{path}:{number}"
        if len(fields) != len(names):
            found = f"expected {len(names)} fields, got {len(fields)}"
            problems.append(InputError(found, where=where))
        else:
            rows.append((where, dict(zip(names, map(str.strip, fields), strict=True))))
    return names, rows, problems


# Values of fields, each with its name in what is wrong with it.

_ABSENT = frozenset({"", "-", "NA", "n/a", "null", "None", "Unknown", "nan", "NaN"})


def is_absent(text: str | None) -> bool:
    """Return whether a field tells nothing."""
    return text is None or text.strip() in _ABSENT


def stated(row: Mapping[str, str], name: str) -> str | None:
    """Return the text of a field; None where the field is missing or tells nothing."""
    text = row.get(name)
    return None if is_absent(text) else text


def bad_field(name: str, text: str, expected: str) -> InputError:
    """Return the error of a field that holds something else."""
    return InputError(f'expected {expected}, got "{text[:40]}"', where=name)


def number_of(row: Mapping[str, str], name: str) -> float | None:
    """
    Return the number in a field; None: the field tells nothing.

    Raises
    ------
    InputError
        When the field holds something else.
    """
    if (text := stated(row, name)) is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise bad_field(name, text, "a number")
    return value


_SIZE = re.compile(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*([KMGTPE]?)i?(B?)", re.IGNORECASE)


def size_of(row: Mapping[str, str], name: str) -> int | None:
    """
    Return the bytes in a field such as ``6.3 MB`` or ``120K``, in powers of 1024; None: absent.

    Raises
    ------
    InputError
        When the field holds something else.
    """
    if (text := stated(row, name)) is None:
        return None
    match = _SIZE.fullmatch(text)
    if match is None:
        raise bad_field(name, text, "a size such as 6.3 MB")
    power = " KMGTPE".index(match[2].upper() or " ")
    size: float = float(match[1]) * 1024.0**power
    if not math.isfinite(size):
        raise bad_field(name, text, "a size such as 6.3 MB")
    return round(size)


def moment_of(row: Mapping[str, str], name: str) -> float | None:
    """
    Return the seconds since the epoch of a date in ISO 8601, local without a zone; None: absent.

    Raises
    ------
    InputError
        When the field holds something else.
    """
    if (text := stated(row, name)) is None:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise bad_field(name, text, "a date such as 2026-11-27 07:30:00") from None


_CLOCK = re.compile(r"(?:(\d+)-|(\d+) days?, )?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")


def clock_of(row: Mapping[str, str], name: str) -> float | None:
    """
    Return the seconds of a time such as ``1-02:03:04``, ``02:03:04`` or ``03:04.5``; None: absent.

    Raises
    ------
    InputError
        When the field holds something else.
    """
    if (text := stated(row, name)) is None:
        return None
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise bad_field(name, text, "a time such as 02:03:04")
    days, more_days, hours, minutes, seconds = match.groups()
    return (
        86400 * int(days or more_days or 0)
        + 3600 * int(hours or 0)
        + 60 * int(minutes)
        + float(seconds)
    )


# Names.

_NUMBERING = re.compile(r"(?:[-_.#\[(]*(?:ID)?\d+[\])]?)+$", re.IGNORECASE)

_CARRIERS = frozenset(
    {"bash", "sh", "zsh", "perl", "Rscript", "julia", "java", "env", "nice", "time", "timeout"}
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def without_numbering(name: str) -> str:
    """Return the name of a kind: ``align_ID0000012`` and ``align-3`` are ``align``."""
    return _NUMBERING.sub("", name.strip()) or name.strip()


def program_of(command: str) -> str:
    """Return the program of a command line; an interpreter with the script that it runs."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote without its end
        words = command.split()
    words = [word for word in words if not _ASSIGNMENT.fullmatch(word)]
    if not words:
        return "command"
    first = os.path.basename(words[0].rstrip(";")) or words[0]
    if first in _CARRIERS or re.fullmatch(r"(i?python|pypy)[\d.]*", first):
        script = next((word for word in words[1:] if not word.startswith("-")), "")
        return f"{first} {os.path.basename(script.rstrip(';'))}".strip()
    return first


def fingerprint(text: str | bytes) -> str:
    """Return eight digits that tell texts apart."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:8]


def file_stem(path: str) -> str:
    """Return a file's name without endings of its format and packing."""
    name = path.replace("\\", "/").rstrip("/").rpartition("/")[2]
    for ending in (".gz", ".xz", ".txt", ".tsv", ".csv", ".json", ".jsonl", ".log", ".swf"):
        name = name.removesuffix(ending)
    return name or "log"


def plain_value(text: str) -> Value:
    """Return a number where a text is one, so that its effect can be learned; else the text."""
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if math.isfinite(value) and abs(value) < 2**63:
            return value
    return text
