"""The interface of a site's storage, and a remote store with a URL."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from bursar.model.errors import InputError
from bursar.model.matching import Replica
from bursar.replicas.content import (
    CancellationToken,
    LogicalFileContent,
    SourceFailed,
    TargetFailed,
    checksum_of,
    join_url,
    logical,
    new_digest,
    redact_url,
)
from bursar.replicas.copying import PATIENCE, read_content
from bursar.replicas.parts import CopyOrigin, CopySink
from bursar.replicas.schemes import open_upload
from bursar.replicas.schemes.source import ReplicaUpload

# The interface of a site's storage: a folder or a remote store with a URL.

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
        self,
        name: str,
        content: LogicalFileContent,
        may_go: MayGo,
        *,
        keep: bool = False,
        job: str | None = None,
    ) -> PendingFile | None:
        """
        Begin to write a file, kept or cached; None: the file is there already.

        A file in a folder is pinned for ``job``, if one is given, from the moment at which the
        file is there.

        Raises
        ------
        FileInUse
            When another process brings it.
        TargetFailed, InputError
            When it cannot be put there.
        """

    def close(self) -> None:
        """Release all pins and close the storage."""


# A remote store with a URL in which a site keeps logical files, without a limit.

T = TypeVar("T")


class UrlStorage:
    """
    A remote store, whose files the catalogue lists; nothing is ever deleted.

    Parameters
    ----------
    place
        URL of the store: ``s3://bucket/folder``, ``ssh://host/folder``.
    patience
        Seconds to wait for an answer.
    """

    def __init__(self, place: str, *, patience: float = PATIENCE) -> None:
        self._place = place
        self._patience = patience

    def place_of(self, name: str) -> str:
        """Return the URL of a logical file, existing or not."""
        return join_url(self._place, logical(name))

    def pin(self, wanted: Mapping[str, LogicalFileContent], job: str) -> Mapping[str, str]:
        """Pin nothing and return no files: copies are read in place, see :meth:`is_usable`."""
        return {}

    def release(self, job: str) -> None:
        """Do nothing: there are no pins."""

    def doubt(self, names: Sequence[str]) -> None:
        """Do nothing: bad copies are unused until the catalogue calls them good again."""

    def is_usable(self, replica: Replica) -> bool:
        """Return whether a copy is in this store."""
        return replica.url == self.place_of(replica.name)

    def begin(
        self,
        name: str,
        content: LogicalFileContent,
        may_go: MayGo,
        *,
        keep: bool = False,
        job: str | None = None,
    ) -> "PendingUpload | None":
        """
        Begin to write a file; None: a read shows that it is there already.

        Raises
        ------
        TargetFailed
            When it cannot be written.
        InputError
            When there is another file by this name, or nothing can be written there.
        """
        url = self.place_of(name)
        try:
            found = read_content(url, stop=CancellationToken(), patience=self._patience)
        except SourceFailed as failure:
            # Only a missing or wrong file is written anew; a store that does not answer would not
            # take it either.
            if not failure.bad:
                raise _target_failed(url, failure) from None
            return PendingUpload(url, content.size, self._patience)
        # Without a checksum, equal sizes are no proof that the file which is there is the one.
        if content.checksum is None or not found.agrees_with(content):
            raise InputError(f"is there already, with {found}", where=redact_url(url))
        return None

    def close(self) -> None:
        """Do nothing: no connection is held."""


class PendingUpload:
    """A file that is being uploaded: pending file and sink in one, never continued."""

    def __init__(self, url: str, size: int | None, patience: float) -> None:
        self._url = url
        self._open = lambda: open_upload(url, size, patience)
        self._upload: ReplicaUpload | None = None
        self.begin_anew()

    @property
    def sink(self) -> "PendingUpload":
        """The upload itself, as target of the file's bytes."""
        return self

    @property
    def length(self) -> int:
        """Bytes that were sent."""
        return self._length

    @property
    def origin(self) -> CopyOrigin:
        """Source from which the sent bytes were read."""
        return self._origin

    @property
    def checksum(self) -> str:
        """SHA-256 checksum of the sent bytes."""
        return checksum_of(self._digest)

    def set_origin(self, origin: CopyOrigin) -> None:
        """Record the source of the bytes that follow."""
        self._origin = origin

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._upload is None:
            self._upload = self._trying(self._open)
        upload = self._upload
        self._trying(lambda: upload.write(data))
        self._digest.update(data)
        self._length += len(data)

    def begin_anew(self) -> None:
        """Discard the sent bytes."""
        self.close()
        self._digest, self._length, self._origin = new_digest(), 0, CopyOrigin()

    def commit(self, content: LogicalFileContent, may_go: MayGo) -> None:
        """Complete the upload, so that the file becomes visible."""
        if self._upload is None:  # an empty file
            self._upload = self._trying(self._open)
        self._trying(self._upload.finish)
        self._upload = None

    def close(self) -> None:
        """Abort the upload and delete what was sent."""
        if self._upload is not None:
            self._upload.discard()
            self._upload = None

    discard = close

    def _trying(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except SourceFailed as failure:
            raise _target_failed(self._url, failure) from None


def _target_failed(url: str, failure: SourceFailed) -> TargetFailed:
    return TargetFailed(f"{redact_url(url)} {failure.reason}", transient=failure.transient)
