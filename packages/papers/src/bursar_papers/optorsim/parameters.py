"""OptorSim's file of parameters: ``key = value`` lines, which name the other files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bursar.formats.file_text import read_text
from bursar.model.errors import InputError, spelling_hint
from bursar_papers.optorsim.lines import lines_of, number_in, shown, whole_in

_RANDOM = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptorSimParameters:
    """
    What a simulation of ours takes from the file; all of it stands in ``values``.

    Parameters
    ----------
    grid, jobs
        The configuration files.
    background
        The bandwidth configuration file; None: links are all there for the grid.
    measurements
        Folder of the files that the bandwidth configuration names; None without it.
    default_background
        Name of that for links of which nothing was measured.
    hour
        Time of day at which the simulation begins.
    number_of_jobs
        That are submitted.
    job_delay
        Mean seconds between two submissions.
    masters
        Numbers of the sites where all files are at first; empty: at random sites.
    values
        Every value of the file, by its key.
    """

    grid: Path
    jobs: Path
    background: Path | None
    measurements: Path | None
    default_background: str
    hour: float
    number_of_jobs: int
    job_delay: float
    masters: tuple[int, ...]
    values: Mapping[str, str]


def read_parameters(path: Path) -> OptorSimParameters:
    """
    A file of parameters.

    OptorSim is started in the folder above its examples, so that a file is looked for from
    the folder of this one, from that above it, and by its bare name beside this one.

    Raises
    ------
    InputError
        With the file, and the line where there is one.
    """
    entries = _ParameterEntries(path)
    hour = entries.number("time.of.day", "an hour", default="0", most=23.5)
    if hour * 2 != int(hour * 2):
        raise InputError(
            f"expected an hour or half-hour, got {hour:g}", where=entries.at("time.of.day")
        )
    varies = entries.truth("background.bandwidth")
    return OptorSimParameters(
        grid=entries.path("grid.configuration.file"),
        jobs=entries.path("job.configuration.file"),
        background=entries.path("bandwidth.configuration.file") if varies else None,
        measurements=entries.path("data.directory") if varies else None,
        default_background=entries.text("default.background") if varies else "",
        hour=hour,
        number_of_jobs=entries.count("number.jobs", "a number of jobs"),
        job_delay=entries.number("job.delay", "milliseconds", default="0") / 1000,
        masters=_masters(entries),
        values=entries.values,
    )


class _ParameterEntries:
    """The values of a file of parameters, asked for one by one, with errors at their lines."""

    def __init__(self, path: Path) -> None:
        self.values: dict[str, str] = {}
        self._lines: dict[str, int] = {}
        self._file = path
        for line, text in lines_of(read_text(path)):
            key, sign, value = text.partition("=")
            key = key.strip()
            if not sign or not key:
                raise InputError(
                    f'expected "key = value", got "{shown(text)}"', where=f"{path}:{line}"
                )
            self.values[key] = value.strip()
            self._lines[key] = line

    def at(self, key: str) -> str:
        """Return the place of a parameter in the file."""
        return f"{self._file}:{self._lines[key]}" if key in self._lines else str(self._file)

    def text(self, key: str) -> str:
        """A value that must be there."""
        if not self.values.get(key):
            raise InputError(
                f"has no {key}", where=self.at(key), hint=spelling_hint(key, self.values)
            )
        return self.values[key]

    def number(
        self, key: str, what: str, *, default: str | None = None, most: float = math.inf
    ) -> float:
        """A number, not negative."""
        word = self.text(key) if default is None else self.values.get(key, default)
        try:
            return number_in(word, what, most=most)
        except InputError as error:
            raise error.within(self.at(key)) from None

    def count(self, key: str, what: str) -> int:
        """A whole number that must be there."""
        try:
            return whole_in(self.text(key), what)
        except InputError as error:
            raise error if error.where else error.within(self.at(key)) from None

    def truth(self, key: str) -> bool:
        """Return whether a parameter is ``yes``; a missing one counts as ``no``."""
        word = self.values.get(key, "no").lower()
        if word not in ("yes", "no", "true", "false"):
            raise InputError(f'expected yes or no, got "{shown(word)}"', where=self.at(key))
        return word in ("yes", "true")

    def path(self, key: str) -> Path:
        """A file or folder that is there."""
        named = self.text(key)
        folder = self._file.parent
        for place in (folder / named, folder.parent / named, folder / Path(named).name):
            if named.isprintable() and place.exists():
                return place
        raise InputError(f'no file "{shown(named)}"', where=self.at(key))


def _masters(entries: _ParameterEntries) -> tuple[int, ...]:
    key = "initial.file.distribution"
    text = entries.values.get(key, _RANDOM)
    if text.lower() == _RANDOM:
        return ()
    try:
        return tuple(whole_in(word.strip(), "the number of a site") for word in text.split(","))
    except InputError as error:
        raise error.within(entries.at(key)) from None
