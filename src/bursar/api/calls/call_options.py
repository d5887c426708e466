"""What calls of an executor need: processors, memory, GPUs, run time, and limits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from bursar.formats.units import parse_duration, parse_size, rounded_size
from bursar.model.errors import InputError, spelling_hint
from bursar.model.matching import Matching
from bursar.model.site import SiteFacts
from bursar.model.task import GPU, Call, Task

_ANYWHERE = Matching()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """
    What each call needs, in the model's units.

    Parameters
    ----------
    processors
        Processors of one worker that a call holds. Positive.
    memory
        Bytes that a call may use; None: not stated.
    runtime
        Estimated seconds of a call at speed 1; None: unknown.
    wall_limit
        Seconds after which a call is killed; None: no limit.
    resources
        Countable resources of the site that a call holds, GPUs among them, by name.
    retries
        Number of further tries of a call whose worker died.
    name
        Name of the calls' kind in history and bill; empty: the function's.
    """

    processors: int = 1
    memory: int | None = None
    runtime: float | None = None
    wall_limit: float | None = None
    resources: Mapping[str, int] = field(default_factory=dict)
    retries: int = 0
    name: str = ""

    def changed(self, words: Mapping[str, Any]) -> Self:
        """
        Return these options with some replaced, as users write them.

        Raises
        ------
        InputError
            When one is unknown or out of range.
        """
        changes: dict[str, Any] = {}
        resources = dict(self.resources)
        for word, value in words.items():
            read = _READERS.get(word)
            if read is None:
                hint = spelling_hint(word, _READERS)
                raise InputError(
                    f'"{word}" is no option of a call',
                    hint=hint or f"there are {', '.join(_READERS)}",
                )
            found = _read(word, read, value)
            if word == "gpus":
                resources.pop(GPU, None)
                resources.update({GPU: found} if found else {})
            elif word == "resources":
                kept = {GPU: resources[GPU]} if GPU in resources and "gpus" in words else {}
                resources = {**found, **kept}
            else:
                changes[word] = found
        return replace(self, resources=resources, **changes)

    def check_room(self, sites: Sequence[SiteFacts], widest: Mapping[str, int]) -> None:
        """
        Refuse what no site could ever run.

        Parameters
        ----------
        widest
            Processors of the largest worker, by site.

        Raises
        ------
        InputError
            Naming what is lacking, and the most that there is.
        """
        most = max(widest.values())
        if self.processors > most:
            raise InputError(
                f"a call may hold {most} processors at most, which one worker has, "
                f"got {self.processors}",
                where="processors",
            )
        sizes = [site.memory for site in sites if site.memory is not None]
        if self.memory is not None and len(sizes) == len(sites) and self.memory > max(sizes):
            asked, had = rounded_size(self.memory), rounded_size(max(sizes))
            raise InputError(f"no site has {asked}; the largest has {had}", where="memory")
        for name, count in self.resources.items():
            most = max(site.resources.get(name, 0) for site in sites)
            if most < count:
                raise InputError(
                    f'no site has {count} of "{name}"; the most is {most}',
                    where="gpus" if name == GPU else "resources",
                    hint=f"resources = {{ {name} = {count} }} of the site, in the sites file",
                )
        if not any(self._fits(site, widest[site.name]) for site in sites):
            raise InputError("no single site has all that a call needs", where="options")

    def _fits(self, site: SiteFacts, widest: int) -> bool:
        has_memory = None in (self.memory, site.memory) or (self.memory or 0) <= (site.memory or 0)
        had = site.resources
        return (
            self.processors <= widest
            and has_memory
            and all(had.get(name, 0) >= count for name, count in self.resources.items())
        )

    def task(self, number: str, kind: str, payload: bytes, *, as_data: bool) -> Task:
        """Return the task of a call; ``kind`` names it where these options do not."""
        return Task(
            id=number,
            name=self.name or kind,
            steps=(Call(payload, as_data=as_data),),
            processors=self.processors,
            memory=self.memory,
            runtime=self.runtime,
            wall_limit=self.wall_limit,
            resources=self.resources,
            retries=self.retries,
            matching=_ANYWHERE,
        )


def _read(word: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except InputError as error:
        raise InputError(error.message, where=word, hint=error.hint) from None


def _count(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"expected a whole number, got {value!r:.60}")
        if value < least:
            bound = "must not be negative" if least == 0 else f"must be at least {least}"
            raise InputError(f"{bound}, got {value}")
        return value

    return read


def _duration(value: Any) -> float | None:
    return None if value is None else parse_duration(value)


def _limit(value: Any) -> float | None:
    seconds = _duration(value)
    if seconds is not None and not seconds > 0:
        raise InputError(f"must be positive, got {value}")
    return seconds


def _size(value: Any) -> int | None:
    size = None if value is None else parse_size(value)
    if size == 0:
        raise InputError(f"must be positive, got {value}")
    return size


def _resources(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InputError(f"expected numbers by name, got {value!r:.60}")
    counted = {name: _count(0)(count) for name, count in value.items()}
    return {name: count for name, count in counted.items() if count}


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"expected a text, got {value!r:.60}")
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "processors": _count(1),
    "memory": _size,
    "runtime": _duration,
    "gpus": _count(0),
    "resources": _resources,
    "wall_limit": _limit,
    "retries": _count(0),
    "name": _name,
}
"""How each option is read that users state."""
