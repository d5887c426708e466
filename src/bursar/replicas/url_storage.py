"""A place with a URL in which a site keeps logical files: whole ones, without a limit."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from bursar.model.errors import InputError
from bursar.model.replica import Replica
from bursar.replicas.content import LogicalFileContent, checksum_of, logical, new_digest
from bursar.replicas.copying import PATIENCE, read_content
from bursar.replicas.failures import CancellationToken, SourceFailed, TargetFailed
from bursar.replicas.parts import CopyOrigin
from bursar.replicas.schemes import open_upload
from bursar.replicas.schemes.source import ReplicaUpload
from bursar.replicas.site_storage import MayGo
from bursar.replicas.urls import join_url, redact_url

T = TypeVar("T")


class UrlStorage:
    """
    A store behind a URL. What is there, the catalogue says; nothing is ever deleted.

    Parameters
    ----------
    place
        Of the files: ``s3://bucket/folder``, ``ssh://host/folder``.
    patience
        Seconds to wait for an answer.
    """

    def __init__(self, place: str, *, patience: float = PATIENCE) -> None:
        self._place = place
        self._patience = patience

    def place_of(self, name: str) -> str:
        """URL of a logical file, there or not."""
        return join_url(self._place, logical(name))

    def pin(self, wanted: Mapping[str, LogicalFileContent], job: str) -> Mapping[str, str]:
        """None: see :meth:`is_usable`."""
        return {}

    def release(self, job: str) -> None:
        """Nothing was held."""

    def doubt(self, names: Sequence[str]) -> None:
        """They are not used anyhow, until the catalogue calls them good again."""

    def is_usable(self, replica: Replica) -> bool:
        """Whether it is of this depot."""
        return replica.url == self.place_of(replica.name)

    def begin(
        self, name: str, content: LogicalFileContent, may_go: MayGo, *, keep: bool = False
    ) -> "PendingUpload | None":
        """
        Begins to write a file; None when it is there, which is read to know.

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
            if not failure.bad:
                raise _target_failed(url, failure) from None
            return PendingUpload(url, content.size, self._patience)
        if content.checksum is None or not found.agrees_with(content):
            raise InputError(f"is there already, with {found}", where=redact_url(url))
        return None

    def close(self) -> None:
        """Nothing is held."""


class PendingUpload:
    """A file on its way to a URL: sink and incoming in one, always from its beginning on."""

    def __init__(self, url: str, size: int | None, patience: float) -> None:
        self._url = url
        self._open = lambda: open_upload(url, size, patience)
        self._upload: ReplicaUpload | None = None
        self.begin_anew()

    @property
    def sink(self) -> "PendingUpload":
        """Itself."""
        return self

    @property
    def length(self) -> int:
        """Bytes that were sent."""
        return self._length

    @property
    def origin(self) -> CopyOrigin:
        """Of these bytes."""
        return self._origin

    @property
    def checksum(self) -> str:
        """Of these bytes."""
        return checksum_of(self._digest)

    def come_from(self, origin: CopyOrigin) -> None:
        """Notes where the bytes that follow are read."""
        self._origin = origin

    def write(self, data: bytes) -> None:
        """Sends bytes."""
        if self._upload is None:
            self._upload = self._trying(self._open)
        upload = self._upload
        self._trying(lambda: upload.write(data))
        self._digest.update(data)
        self._length += len(data)

    def begin_anew(self) -> None:
        """Forgets what was sent."""
        self.close()
        self._digest, self._length, self._origin = new_digest(), 0, CopyOrigin()

    def commit(self, content: LogicalFileContent, may_go: MayGo) -> None:
        """Lets it be seen."""
        if self._upload is None:  # an empty file
            self._upload = self._trying(self._open)
        self._trying(self._upload.finish)
        self._upload = None

    def close(self) -> None:
        """Leaves nothing of it behind."""
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
