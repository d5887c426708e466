"""Bandwidth that background traffic leaves on OptorSim's links, over the hours of a day."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bursar.formats.file_text import read_text
from bursar.model.errors import InputError
from bursar.model.network import BandwidthProfile
from bursar_papers.optorsim.lines import at, lines_of, number_in, shown

if TYPE_CHECKING:
    import numpy as np

STEPS = 48
"""Half-hours of a day."""
STEP = 1800.0
"""Seconds."""

NONE = "-"
"""In place of a file: nothing was measured, the default is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBandwidth:
    """
    Measured shares of a link's bandwidth, for each half-hour from midnight.

    Parameters
    ----------
    mean
        Mean share of the bandwidth that was left, for each half-hour.
    deviation
        Standard deviation of the share.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundTraffic:
    """
    Share of each link's bandwidth that background traffic leaves, by the time of day.

    Parameters
    ----------
    measured
        Measured shares by the numbers of the link's two nodes, the file's row and column.
    zone
        Hours, for the same pairs, to add to the user's time of day for that at the row's node.
    """

    measured: Mapping[tuple[int, int], MeasuredBandwidth]
    zone: Mapping[tuple[int, int], int]

    def profiles(
        self,
        *,
        hour: float = 0.0,
        rng: "np.random.Generator | None" = None,
        days: int = 1,
    ) -> dict[tuple[int, int], BandwidthProfile]:
        """
        Return the share of each link over time, for :meth:`OptorSimGrid.topology`.

        Parameters
        ----------
        hour
            Time of day at which the simulation begins, on the hour or half-hour.
        rng
            Draws each half-hour's share from a normal distribution, again when it does not
            lie above 0 and up to 1. (OptorSim draws one at each question, from Landau's
            distribution.) None: the means.
        days
            Number of days that are drawn; afterwards they come again. Without ``rng`` of no effect.

        Raises
        ------
        ValueError
            When the hour lies between half-hours.
        """
        half_hours = hour * 2
        if half_hours != int(half_hours):
            raise ValueError(f"expected an hour or half-hour, got {hour:g}")
        found: dict[tuple[int, int], BandwidthProfile] = {}
        for pair, measured in self.measured.items():
            first = int(half_hours) + 2 * self.zone[pair]
            # Each node's traffic follows its own time of day.
            order = [(first + k) % STEPS for k in range(STEPS)]
            mean = [measured.mean[k] for k in order]
            if rng is not None:
                deviation = [measured.deviation[k] for k in order]
                mean = _drawn(mean * days, deviation * days, rng)
            found[pair] = BandwidthProfile(shares=tuple(mean), step=STEP)
        return found


def _drawn(mean: list[float], deviation: list[float], rng: "np.random.Generator") -> list[float]:
    import numpy as np

    means, deviations = np.array(mean), np.array(deviation)
    shares = rng.normal(means, deviations)
    # Drawn again, not cut off: cut values would pile up at 0, where a transfer never ends.
    while (outside := (shares <= 0) | (shares > 1)).any():
        shares[outside] = rng.normal(means[outside], deviations[outside])
    return [float(share) for share in shares]


def read_measured(path: Path) -> MeasuredBandwidth:
    """
    Read a file of measurements: ``hour,mean,deviation`` for each half-hour of a day, in order.

    As in OptorSim the half-hour is that of the line, whatever hour it says: two of the files
    for the EDG testbed have whole hours first and some half-hours after them.

    Raises
    ------
    InputError
        With the file and the line.
    """
    mean: list[float] = []
    deviation: list[float] = []
    for line, text in lines_of(read_text(path)):
        with at(path, line):
            words = text.split(",")
            if len(words) != 3:
                raise InputError(f'expected "hour,mean,deviation", got "{shown(text)}"')
            if len(mean) == STEPS:
                raise InputError(f"expected the end after {STEPS} half-hours")
            number_in(words[0].strip(), "an hour", most=24.0)
            mean.append(_share(words[1].strip()))
            deviation.append(number_in(words[2].strip(), "a deviation", most=1.0))
    if len(mean) < STEPS:
        raise InputError(f"has {len(mean)} half-hours, expected {STEPS}", where=str(path))
    return MeasuredBandwidth(mean=tuple(mean), deviation=tuple(deviation))


def _share(word: str) -> float:
    share = number_in(word, "a mean share of the bandwidth", most=1.0)
    if not share:
        raise InputError("expected a mean share above 0, got 0")
    return share


def read_background(path: Path, *, folder: Path, default: str) -> BackgroundTraffic:
    """
    Read a bandwidth configuration file and the measurements named there.

    The file has a line for each node with a word for each node, ``file,zone``: the measurements
    of the link between both, or ``-``, and the hours by which the row's node is ahead.

    Parameters
    ----------
    folder
        Folder of the measurements.
    default
        File of the measurements that are taken where there are none.

    Raises
    ------
    InputError
        With the file and the line.
    """
    rows = list(lines_of(read_text(path)))
    read: dict[str, MeasuredBandwidth] = {}
    measured: dict[tuple[int, int], MeasuredBandwidth] = {}
    zones: dict[tuple[int, int], int] = {}
    for i, (line, text) in enumerate(rows):
        words = text.split()
        with at(path, line):
            if len(words) != len(rows):
                raise InputError(f"has {len(words)} links, expected {len(rows)}, as many as lines")
            for j, word in enumerate(words):
                if i == j:
                    continue
                name, zone = _entry(word)
                name = default if name == NONE else name
                if name not in read:
                    read[name] = read_measured(_within(folder, name))
                measured[i, j] = read[name]
                zones[i, j] = zone
    if not rows:
        raise InputError("has no line", where=str(path))
    return BackgroundTraffic(measured=measured, zone=zones)


def _entry(word: str) -> tuple[str, int]:
    name, comma, zone = word.rpartition(",")
    if not comma or not name:
        raise InputError(f'expected "file,zone", got "{shown(word)}"')
    hours = number_in(zone, "hours of difference", least=-24, most=24)
    if hours != int(hours):
        raise InputError(f'expected whole hours of difference, got "{shown(zone)}"')
    return name, int(hours)


def _within(folder: Path, name: str) -> Path:
    if "/" in name or name == ".." or not name.isprintable():
        raise InputError(f'expected the name of a file in {folder}, got "{shown(name)}"')
    return folder / name
