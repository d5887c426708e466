"""What a site keeps files in: a folder or a place with a URL."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from bursar.model.errors import InputError
from bursar.model.replica import Replica
from bursar.replicas.content import LogicalFileContent
from bursar.replicas.parts import CopySink
from bursar.replicas.urls import is_local, normalise_url, redact_url

MayGo = Callable[[str, str], bool]
"""Asked with name and place whether a cached file may go."""


class PendingFile(Protocol):
    """A file that is on its way into a store."""

    @property
    def sink(self) -> CopySink:
        """Where to write it."""

    def commit(self, content: LogicalFileContent, may_go: MayGo) -> None:
        """Puts it in its place, whole and on disk."""

    def close(self) -> None:
        """Gives it up for now; what is there may be gone on with."""

    def discard(self) -> None:
        """Gives it up; nothing is left of it."""


class SiteStorage(Protocol):
    """A folder, or a place with a URL."""

    def place_of(self, name: str) -> str:
        """Path or URL of a logical file, there or not."""

    def pin(self, wanted: Mapping[str, LogicalFileContent], job: str) -> Mapping[str, str]:
        """Of the files wanted those that are there, with their places; held for a job."""

    def release(self, job: str) -> None:
        """Lets go of what was held for a job."""

    def doubt(self, names: Sequence[str]) -> None:
        """Takes note that files may be damaged: they are read before they are used again."""

    def is_usable(self, replica: Replica) -> bool:
        """Whether a copy that is registered here can be read where it is."""

    def begin(
        self, name: str, content: LogicalFileContent, may_go: MayGo, *, keep: bool = False
    ) -> PendingFile | None:
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


def open_storage(place: str, *, limit: int | None = None) -> SiteStorage:
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
    from bursar.replicas.storage import FolderStorage
    from bursar.replicas.url_storage import UrlStorage

    place = normalise_url(place)
    if is_local(place):
        return FolderStorage(place, limit=limit)
    if limit is not None:
        raise InputError("a limit is kept in folders only", where=redact_url(place))
    return UrlStorage(place)
