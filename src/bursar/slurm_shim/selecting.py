"""Which jobs a command line means: numbers of jobs, names, states and times."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from bursar.formats.job_files.sbatch_options import parse_array
from bursar.model.errors import InputError
from bursar.slurm_shim.jobs import COMPACT, JobElement, JobState

_ALL_STATES = frozenset(COMPACT)
_BY_WORD: dict[str, JobState] = {short: state for state, short in COMPACT.items()}
_BY_WORD |= {state: state for state in COMPACT}
_OTHER_STATES = frozenset(
    (
        "BF", "BOOT_FAIL", "CF", "CONFIGURING", "CG", "COMPLETING", "DL", "DEADLINE", "PR",
        "PREEMPTED", "RD", "RESV_DEL_HOLD", "RF", "REQUEUE_FED", "RH", "REQUEUE_HOLD", "RQ",
        "REQUEUED", "RS", "RESIZING", "RV", "REVOKED", "S", "SUSPENDED", "SE", "SPECIAL_EXIT", "SI",
        "SIGNALING", "SO", "STAGE_OUT", "ST", "STOPPED",
    )
)  # fmt: skip
"""States of Slurm's in which no job ever is here."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True)
class JobRange:
    """
    A job, or some of an array's elements.

    Parameters
    ----------
    word
        As stated.
    indices
        Indices of the elements; empty: the whole job.
    """

    word: str
    job: int
    indices: frozenset[int] = frozenset()

    def holds(self, element: JobElement) -> bool:
        """Whether an element is meant."""
        if not self.indices:
            return self.job in (element.job, element.number)
        return self.job == element.job and element.index in self.indices


def parse_jobs(text: str, where: str) -> list[JobRange]:
    """
    Parse numbers of jobs, as ``12``, ``13_4``, ``13_[1-5,7]``, with commas between.

    Raises
    ------
    InputError
        When one is none.
    """
    found = []
    for word in re.split(r",(?![^\[]*\])", text):
        match = re.fullmatch(
            r"\s*(\d{1,10})(?:_(?:(\d{1,9})|\[([\d,:-]+)(?:%\d+)?\]|\*))?(?:\.(?:batch|0))?\s*",
            word,
        )
        if match is None:
            raise InputError(f'expected numbers of jobs, got "{word}"', where=where)
        job, index, several = match.groups()
        try:
            indices = parse_array(index or several).indices if index or several else ()
        except ValueError as error:
            raise InputError(str(error), where=where) from None
        found.append(JobRange(word.strip(), int(job), frozenset(indices)))
    return found


def parse_states(text: str, where: str) -> Collection[JobState]:
    """
    Parse states, long or short, with commas between; ``all``: all of them.

    Raises
    ------
    InputError
        When one is none of Slurm's.
    """
    found: set[JobState] = set()
    for part in text.split(","):
        word = part.strip().upper()
        if word == "ALL":
            return _ALL_STATES
        if word in _BY_WORD:
            found.add(_BY_WORD[word])
        elif word not in _OTHER_STATES:
            raise InputError(f'expected states of jobs, got "{part}"', where=where)
    return found


def parse_moment(text: str, where: str, now: float) -> float:
    """
    Parse a moment, as ``2026-11-27T10:00``, ``10:00``, ``now-2days`` or ``midnight``.

    Raises
    ------
    InputError
        When it is none.
    """
    word = text.strip().lower()
    today = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    named = {"today": today, "midnight": today, "noon": today + timedelta(hours=12)}
    if word in named:
        return named[word].timestamp()
    if match := re.fullmatch(r"now(?:([+-])(\d{1,9})([smhdw]?)[a-z]*)?", word):
        sign, count, unit = match.groups()
        seconds = int(count or 0) * _UNITS[unit or "s"]
        return now + (seconds if sign == "+" else -seconds)
    if match := re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", word):
        hour, minute, second = (int(part or 0) for part in match.groups())
        if hour < 24 and minute < 60 and second < 60:
            return today.replace(hour=hour, minute=minute, second=second).timestamp()
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}(t\d{2}:\d{2}(:\d{2})?|t\d{2})?", word):
        try:
            return datetime.fromisoformat(word.upper()).timestamp()
        except (ValueError, OverflowError):
            pass
    raise InputError(
        f'expected a moment such as 2026-11-27T10:00 or now-2days, got "{text}"', where=where
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """
    Which elements a command means.

    Parameters
    ----------
    jobs, names, users, partitions, accounts, states
        Those that are meant; None: all.
    """

    jobs: Sequence[JobRange] | None = None
    names: Collection[str] | None = None
    users: Collection[str] | None = None
    partitions: Collection[str] | None = None
    accounts: Collection[str] | None = None
    states: Collection[JobState] | None = None

    def holds(self, element: JobElement) -> bool:
        """Whether an element is meant."""
        facts = element.facts
        return (
            (self.jobs is None or any(one.holds(element) for one in self.jobs))
            and _among(facts.name, self.names)
            and _among(facts.user, self.users)
            and _among(facts.partition, self.partitions)
            and _among(facts.account, self.accounts)
            and _among(element.state, self.states)
        )


def _among(word: str, wanted: Collection[str] | None) -> bool:
    return wanted is None or word in wanted
