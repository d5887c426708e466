"""The interface of a site's storage: a folder or a remote store with a URL."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from bursar.model.replica import Replica
from bursar.replicas.content import LogicalFileContent
from bursar.replicas.parts import CopySink

MayGo = Callable[[str, str], bool]
"""Asked with name and place whether a cached file may go."""


class PendingFile(Protocol):
    """A file that is being written into a storage."""

    @property
    def sink(self) -> CopySink:
        """Target of the file's bytes."""

    def commit(self, content: LogicalFileContent, may_go: MayGo) -> None:
        """Make the complete file visible, durably."""

    def close(self) -> None:
        """Stop writing; the arrived bytes may be continued later."""

    def discard(self) -> None:
        """Stop writing and delete the arrived bytes."""


class SiteStorage(Protocol):
    """A site's storage: a folder or a remote store with a URL."""

    def place_of(self, name: str) -> str:
        """Return path or URL of a logical file, existing or not."""

    def pin(self, wanted: Mapping[str, LogicalFileContent], job: str) -> Mapping[str, str]:
        """Pin the wanted files that are there for a job; return the places by name."""

    def release(self, job: str) -> None:
        """Release the pins of a job."""

    def doubt(self, names: Sequence[str]) -> None:
        """Mark files as possibly damaged: they are read before they are used again."""

    def is_usable(self, replica: Replica) -> bool:
        """Return whether a copy that is registered at the site can be read in place."""

    def begin(
        self, name: str, content: LogicalFileContent, may_go: MayGo, *, keep: bool = False
    ) -> PendingFile | None:
        """
        Begin to write a file, kept or cached; None: the file is there already.

        Raises
        ------
        FileInUse
            When another process brings it.
        TargetFailed, InputError
            When it cannot be put there.
        """

    def close(self) -> None:
        """Release all pins and close the storage."""
