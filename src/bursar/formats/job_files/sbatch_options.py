"""
The options of ``sbatch``, as they stand in ``#SBATCH`` lines and on command lines.

References
----------
.. [1] SchedMD. sbatch. Slurm workload manager, version 24.05, https://slurm.schedmd.com/sbatch.html
"""

import argparse
import re
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from bursar.model.errors import InputError, spelling_hint

T = TypeVar("T")

EVER = re.compile(r"UNLIMITED|INFINITE|NOT_SET|INVALID|PARTITION_LIMIT|N/A|NONE", re.IGNORECASE)
"""Words of Slurm for a time without an end."""

LARGEST_INDEX = 4_000_000
"""Largest index of an array job that Slurm can be set up for."""

_HONOURED = (
    ("array", "a"), ("chdir", "D"), ("cpus-per-task", "c"), ("error", "e"), ("export", ""),
    ("gpus", "G"), ("gpus-per-node", ""), ("gpus-per-task", ""), ("gres", ""), ("input", "i"),
    ("job-name", "J"), ("licenses", "L"), ("mem", ""), ("mem-per-cpu", ""), ("nodes", "N"),
    ("ntasks", "n"), ("ntasks-per-node", ""), ("open-mode", ""), ("output", "o"), ("time", "t"),
)  # fmt: skip
_OF_THE_QUEUE = (
    ("account", "A"), ("comment", ""), ("mail-type", ""), ("mail-user", ""), ("nice", ""),
    ("partition", "p"), ("priority", ""), ("qos", "q"), ("reservation", ""), ("requeue", ""),
    ("no-requeue", ""), ("time-min", ""), ("wckey", ""), ("verbose", "v"), ("quiet", "Q"),
    ("parsable", ""),
)  # fmt: skip
_REFUSED = (
    ("acctg-freq", ""), ("batch", ""), ("bb", ""), ("bbf", ""), ("begin", "b"),
    ("cluster-constraint", ""), ("clusters", "M"), ("constraint", "C"), ("container", ""),
    ("contiguous", ""), ("core-spec", "S"), ("cores-per-socket", ""), ("cpu-freq", ""),
    ("cpus-per-gpu", ""), ("deadline", ""), ("delay-boot", ""), ("dependency", "d"),
    ("distribution", "m"), ("exclude", "x"), ("exclusive", ""), ("export-file", ""),
    ("extra-node-info", "B"), ("get-user-env", ""), ("gid", ""), ("gpu-bind", ""),
    ("gpu-freq", ""), ("gpus-per-socket", ""), ("gres-flags", ""), ("hint", ""), ("hold", "H"),
    ("ignore-pbs", ""), ("kill-on-invalid-dep", ""), ("mem-bind", ""), ("mem-per-gpu", ""),
    ("mincpus", ""), ("network", ""), ("no-kill", "k"), ("nodefile", "F"), ("nodelist", "w"),
    ("ntasks-per-core", ""), ("ntasks-per-gpu", ""), ("ntasks-per-socket", ""),
    ("overcommit", "O"), ("oversubscribe", "s"), ("power", ""), ("prefer", ""), ("profile", ""),
    ("propagate", ""), ("reboot", ""), ("segment", ""), ("signal", ""), ("sockets-per-node", ""),
    ("spread-job", ""), ("stepmgr", ""), ("switches", ""), ("test-only", ""), ("thread-spec", ""),
    ("threads-per-core", ""), ("tmp", ""), ("tres-bind", ""), ("tres-per-task", ""), ("uid", ""),
    ("use-min-nodes", ""), ("wait", "W"), ("wait-all-nodes", ""), ("wrap", ""),
)  # fmt: skip
_WITHOUT_VALUE = frozenset(
    (
        "requeue", "no-requeue", "verbose", "quiet", "contiguous", "hold", "ignore-pbs", "no-kill",
        "overcommit", "oversubscribe", "reboot", "spread-job", "stepmgr", "test-only",
        "use-min-nodes", "wait", "parsable",
    )
)  # fmt: skip
_MAYBE_WITH_VALUE = frozenset(("exclusive", "get-user-env", "nice", "propagate"))

INSTEAD: Mapping[str, str] = {
    "begin": "start the run when it is to begin",
    "constraint": "give a sites file that has only the processors that are meant",
    "dependency": "state tasks and what they wait for in one campaign",
    "exclusive": "state the processors and the memory of a node",
    "nodes": "a task runs on one machine",
    "wrap": "put the command into the script",
}
"""What to do instead of an option that is refused."""

OF_THE_QUEUE = tuple(name for name, _ in _OF_THE_QUEUE)
"""Options about the queue that Bursar's own sites file states, or about notices and log lines."""


@dataclass(frozen=True, slots=True)
class StatedOption:
    """
    The value of an option, and where it stands.

    Parameters
    ----------
    value
        As written; empty for an option without a value.
    where
        File and line; ``--NAME`` on a command line.
    """

    name: str
    value: str
    where: str

    def error(self, message: str, hint: str | None = None) -> InputError:
        """Return an error that names the option and its place."""
        return InputError(f"--{self.name}: {message}", where=self.where, hint=hint)

    def read(self, parse: Callable[[str], T]) -> T:
        """
        Parse the value.

        Raises
        ------
        InputError
            In place of a ValueError of ``parse``, at the option.
        """
        try:
            return parse(self.value)
        except ValueError as error:
            raise self.error(str(error)) from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name, letter in (*_HONOURED, *_OF_THE_QUEUE, *_REFUSED):
        names = [f"-{letter}", f"--{name}"] if letter else [f"--{name}"]
        more: dict[str, Any] = {"dest": name}
        if name in _WITHOUT_VALUE:
            more |= {"action": "store_const", "const": ""}
        elif name in _MAYBE_WITH_VALUE:
            more |= {"nargs": "?", "const": ""}
        parser.add_argument(*names, **more)
    return parser


_PARSER = _parser()


def parse_options(
    words: Sequence[str], where: str, also: Collection[str] = ()
) -> dict[str, StatedOption]:
    """
    Parse the options of one ``#SBATCH`` line; of an option given twice, the last.

    Parameters
    ----------
    also
        Options that are honoured besides those that a campaign honours.

    Raises
    ------
    InputError
        When an option is unknown, lacks its value, or is not honoured; names the option.
    """
    try:
        found, unknown = _PARSER.parse_known_args(words)
    except ValueError as error:
        raise InputError(_in_our_words(str(error)), where=where) from None
    if unknown:
        word = unknown[0]
        if not word.startswith("-"):
            raise InputError(f'expected options, got "{word}"', where=where)
        name = word.partition("=")[0]
        known = [f"--{one}" for one, _ in (*_HONOURED, *_OF_THE_QUEUE, *_REFUSED)]
        raise InputError(
            f"{name} is no option of sbatch that is known here",
            where=where,
            hint=spelling_hint(name, known),
        )
    stated = {name: StatedOption(name, str(value), where) for name, value in vars(found).items()}
    for name, _ in _REFUSED:
        if name in stated and name not in also:
            raise stated[name].error("is not honoured", INSTEAD.get(name))
    return stated


def parse_command_line(
    words: Sequence[str], also: Collection[str] = ()
) -> tuple[dict[str, StatedOption], list[str]]:
    """
    Parse a command line of ``sbatch``: its options, and the script with the script's arguments.

    Parameters
    ----------
    also
        As of :func:`parse_options`.

    Raises
    ------
    InputError
        As of :func:`parse_options`.
    """
    parser = _parser()
    parser.add_argument("script", nargs=argparse.REMAINDER)
    # What may have a value has it behind "=" only: else the script would be taken for it.
    bare = {f"--{name}" for name in _MAYBE_WITH_VALUE}
    try:
        found, _ = parser.parse_known_args([f"{w}=" if w in bare else w for w in words])
    except ValueError as error:
        raise InputError(_in_our_words(str(error)), where="sbatch") from None
    rest = list(found.script)
    options = parse_options(words[: len(words) - len(rest)], "sbatch", also)
    return options, rest[1:] if rest[:1] == ["--"] else rest


def _in_our_words(message: str) -> str:
    """Return what argparse says of an option, as Bursar says it."""
    match = re.fullmatch(r"argument (?:-\w/)?(--[\w-]+): (.*)", message)
    if match is None:
        return message
    name, said = match.groups()
    said = said.replace("expected one argument", "expected a value")
    return f"{name}: {said}"


# Values of options.


def parse_time_limit(word: str) -> float | None:
    """
    Parse a time limit like ``2-03:00:00`` or ``1:30`` (minutes first) to seconds; None: no limit.

    Raises
    ------
    ValueError
        When it is neither.
    """
    word = word.strip()
    if EVER.fullmatch(word):
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", word)
    if match is None:
        raise ValueError(f'expected a time limit such as 90, 1:30:00 or 2-12:00, got "{word}"')
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:  # days-hours[:minutes[:seconds]]
        parts += [0] * (3 - len(parts))
    elif len(parts) == 1:  # minutes
        parts = [0, parts[0], 0]
    elif len(parts) == 2:
        parts = [0, *parts]
    hours, minutes, seconds = parts
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def parse_count(word: str) -> int:
    """
    Parse a positive number.

    Raises
    ------
    ValueError
        When it is none.
    """
    if not re.fullmatch(r"\d{1,9}", word) or not int(word):
        raise ValueError(f'expected a positive number, got "{word}"')
    return int(word)


def parse_nodes(word: str) -> int:
    """
    Parse a number of nodes, or ``least-most``, of which the least counts.

    Raises
    ------
    ValueError
        When it is neither.
    """
    least, dash, most = word.partition("-")
    if dash and parse_count(most) < parse_count(least):
        raise ValueError(f'expected the least number first, got "{word}"')
    return parse_count(least)


_UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_memory(word: str) -> int:
    """
    Parse an amount of memory such as ``4G``, megabytes without a unit, to bytes.

    Raises
    ------
    ValueError
        When it is none, or 0, which means all that a node has.
    """
    match = re.fullmatch(r"(\d{1,12})([KMGT]?)B?", word.strip().upper())
    if match is None:
        raise ValueError(f'expected an amount such as 4000M or 4G, got "{word}"')
    amount = int(match[1]) * _UNITS[match[2]]
    if not amount:
        raise ValueError("0, all that a node has, is not honoured: state an amount")
    return amount


@dataclass(frozen=True, slots=True)
class ArrayIndices:
    """
    The indices of an array job.

    Parameters
    ----------
    indices
        Ascending, each once.
    step
        The step that was stated, for a single range; else 1.
    at_once
        Number of elements that may run at a time; None: any.
    """

    indices: tuple[int, ...]
    step: int = 1
    at_once: int | None = None


def parse_array(word: str) -> ArrayIndices:
    """
    Parse the indices of an array, as ``1-100:2%5`` or ``0,6,16-32``.

    Raises
    ------
    ValueError
        When they are none.
    """
    form = f'expected indices such as 0-15, 1,3,5-9 or 0-100:10%4, got "{word}"'
    listed, percent, limit = word.partition("%")
    if percent and not re.fullmatch(r"[1-9]\d{0,8}", limit):
        raise ValueError(form)
    found: set[int] = set()
    steps = []
    for part in listed.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part.strip())
        if match is None:
            raise ValueError(form)
        first, last, step = (None if one is None else int(one) for one in match.groups())
        assert first is not None
        last = first if last is None else last
        if last < first or step == 0:
            raise ValueError(form)
        if last > LARGEST_INDEX:
            raise ValueError(f"indices may not be above {LARGEST_INDEX:,}, got {last:,}")
        found.update(range(first, last + 1, step or 1))
        steps.append(step or 1)
    return ArrayIndices(
        indices=tuple(sorted(found)),
        step=steps[0] if len(steps) == 1 else 1,
        at_once=int(limit) if percent else None,
    )


@dataclass(frozen=True, slots=True)
class EarlySignal:
    """
    A signal that a job gets some seconds before its limit.

    Parameters
    ----------
    is_for_script
        Whether the script gets the signal, and not the steps that ``srun`` has started.
    """

    name: str
    seconds: int
    is_for_script: bool = True


def parse_signal(word: str) -> EarlySignal:
    """
    Parse a signal for the steps of a job, as ``USR2@90``, or for the script, as ``B:USR1@60``.

    Raises
    ------
    ValueError
        When it is none.
    """
    match = re.fullmatch(r"(R?B:|B:R:?|R:)?(?:SIG)?([A-Z0-9]{1,9})(?:@(\d{1,5}))?", word.upper())
    if match is None or not is_signal(match[2]):
        raise ValueError(f'expected SIGNAL@SECONDS or B:SIGNAL@SECONDS, got "{word}"')
    return EarlySignal(match[2], int(match[3] or 60), "B" in (match[1] or ""))


def is_signal(word: str) -> bool:
    """Return whether a word is a signal, by number or by name without ``SIG``."""
    if word.isdigit():
        return 0 < int(word) < signal.NSIG
    return f"SIG{word}" in signal.Signals.__members__


def parse_counted(word: str) -> dict[str, int]:
    """
    Parse licences such as ``matlab:2,ansys`` to numbers by name.

    Raises
    ------
    ValueError
        When it is none.
    """
    found: dict[str, int] = {}
    for part in word.split(","):
        match = re.fullmatch(r"([A-Za-z_][\w.@-]*)(?:[:*](\d{1,6}))?", part.strip())
        if match is None or match[2] == "0":
            raise ValueError(f'expected NAME or NAME:NUMBER, got "{part}"')
        found[match[1]] = found.get(match[1], 0) + int(match[2] or 1)
    return found


def parse_gpus(word: str) -> int:
    """
    Parse a number of GPUs, ``2`` or ``gpu:2``.

    Raises
    ------
    ValueError
        When it is none, or names a type or another generic resource.
    """
    match = re.fullmatch(r"(?:gpu:)?(\d{1,4})|gpu", word.strip())
    if match is None:
        raise ValueError(f'expected a number of GPUs, as 2 or gpu:2, without a type, got "{word}"')
    return int(match[1] or 1)
