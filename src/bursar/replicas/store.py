"""What a site keeps files in: a folder or a place with a URL."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from bursar.model.errors import InputError
from bursar.model.replica import Replica
from bursar.replicas.content import Content
from bursar.replicas.parts import Sink
from bursar.replicas.urls import is_local, normal, shown

MayGo = Callable[[str, str], bool]
"""Asked with name and place whether a cached file may go."""


class Incoming(Protocol):
    """A file that is on its way into a store."""

    @property
    def sink(self) -> Sink:
        """Where to write it."""

    def commit(self, content: Content, may_go: MayGo) -> None:
        """Puts it in its place, whole and on disk."""

    def close(self) -> None:
        """Gives it up for now; what is there may be gone on with."""

    def discard(self) -> None:
        """Gives it up; nothing is left of it."""


class Store(Protocol):
    """A folder, or a place with a URL."""

    def place_of(self, name: str) -> str:
        """Path or URL of a logical file, there or not."""

    def pin(self, wanted: Mapping[str, Content], job: str) -> Mapping[str, str]:
        """Of the files wanted those that are there, with their places; held for a job."""

    def release(self, job: str) -> None:
        """Lets go of what was held for a job."""

    def doubt(self, names: Sequence[str]) -> None:
        """Takes note that files may be damaged: they are read before they are used again."""

    def is_usable(self, replica: Replica) -> bool:
        """Whether a copy that is registered here can be read where it is."""

    def begin(
        self, name: str, content: Content, may_go: MayGo, *, keep: bool = False
    ) -> Incoming | None:
        """
        Begins to bring a file, to keep it or not; None when it is there.

        Raises
        ------
        Busy
            When somebody else brings it.
        TargetFailed, InputError
            When it cannot be put there.
        """

    def close(self) -> None:
        """Lets go of everything."""


def open_store(place: str, *, limit: int | None = None) -> Store:
    """
    What a site's ``storage`` names.

    Parameters
    ----------
    limit
        Bytes that files brought there may take; None: as many as there are.

    Raises
    ------
    InputError
        When it cannot be used, or a limit is given for what has a URL.
    """
    from bursar.replicas.depot import Depot
    from bursar.replicas.storage import Storage

    place = normal(place)
    if is_local(place):
        return Storage(place, limit=limit)
    if limit is not None:
        raise InputError("a limit is kept in folders only", where=shown(place))
    return Depot(place)
