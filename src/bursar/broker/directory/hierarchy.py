"""Indexes read indexes, from the sites up to the one that all consumers may read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bursar.broker.directory.information_index import EXPIRY, InformationIndex, Source
from bursar.model.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLevel:
    """
    Settings of the indexes on one level of a hierarchy.

    Parameters
    ----------
    every
        Seconds between two rounds of asking the level below, the time to live of values.
    delay
        Seconds from the publication of a status below to its availability here.
    first
        When the first round is, seconds.
    """

    every: float
    delay: float = 0.0
    first: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHierarchy:
    """
    Indexes by level, from the lowest up, and by name.

    Parameters
    ----------
    levels
        Levels from the lowest up; the last has one index, which covers all sites.
    """

    levels: tuple[Mapping[str, InformationIndex], ...]

    @property
    def top(self) -> InformationIndex:
        """Index that covers all sites."""
        return next(iter(self.levels[-1].values()))


def build_hierarchy(
    levels: Sequence[IndexLevel],
    sources: Mapping[str, Source],
    *,
    clock: Callable[[], float],
    places: Mapping[str, Sequence[str]] | None = None,
    expiry: float = EXPIRY,
    on_fault: Callable[[str, str], None] | None = None,
) -> IndexHierarchy:
    """
    Build a tree of indexes: resource, site, country or organisation, and so on to the top.

    To keep the tree up to date, refresh the top whenever it is due; the levels below follow.

    Parameters
    ----------
    levels
        Levels from the lowest up. The last has one index, which has no name.
    sources
        Sites that are asked, by name.
    clock
        The present time, seconds.
    places
        For each site, the index that it belongs to on each level but the last, from the
        lowest up; None: there is one on every level.
    expiry, on_fault
        See :class:`bursar.broker.directory.information_index.InformationIndex`.

    Raises
    ------
    InputError
        When there is no level, a site has no place or one of another depth, an index would
        belong to two, or what answers all the time would expire on a level.
    """
    if not levels or not sources:
        raise InputError("a hierarchy has at least one level, and one site")
    paths = {site: _path(site, places, len(levels) - 1) for site in sources}
    below: dict[str, list[InformationIndex]] = {}
    made: list[dict[str, InformationIndex]] = []
    for height, level in enumerate(levels):
        asked: dict[str, dict[str, Source]] = {}
        if not height:
            for site, path in paths.items():
                asked.setdefault(path[0], {})[site] = sources[site]
        made.append(
            {
                name: InformationIndex(
                    clock=clock,
                    expiry=expiry,
                    sources=asked.get(name),
                    below=below.get(name, ()),
                    every=level.every,
                    delay=level.delay,
                    first=level.first,
                    on_fault=on_fault,
                )
                for name in asked or below
            }
        )
        below = _by_parent(made[-1], paths, height)
    return IndexHierarchy(levels=tuple(made))


def _path(site: str, places: Mapping[str, Sequence[str]] | None, depth: int) -> tuple[str, ...]:
    """Names of the indexes over a site, from the lowest to the top."""
    if places is None:
        return ("",) * (depth + 1)
    if site not in places:
        raise InputError("has no place in the hierarchy", where=site)
    place = tuple(places[site])
    if len(place) != depth:
        raise InputError(f"expected a place on {depth} levels, got {len(place)}", where=site)
    return (*place, "")


def _by_parent(
    indexes: Mapping[str, InformationIndex], paths: Mapping[str, tuple[str, ...]], height: int
) -> dict[str, list[InformationIndex]]:
    """Indexes of one level by the name of the one above."""
    parents: dict[str, str] = {}
    for site, path in paths.items():
        if height + 1 == len(path):
            return {}
        name, above = path[height], path[height + 1]
        if parents.setdefault(name, above) != above:
            raise InputError(f'"{name}" belongs to "{parents[name]}" and "{above}"', where=site)
    found: dict[str, list[InformationIndex]] = {}
    for name, above in parents.items():
        found.setdefault(above, []).append(indexes[name])
    return found
