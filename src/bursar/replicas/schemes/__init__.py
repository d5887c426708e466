"""Opens copies for reading and writing, by the scheme of their URL."""

from bursar.model.errors import InputError
from bursar.replicas.content import CancellationToken, is_local, redact_url, split_url
from bursar.replicas.schemes.source import ReplicaSource, ReplicaUpload


def open_source(
    url: str, *, offset: int = 0, tag: str = "", patience: float, stop: CancellationToken
) -> ReplicaSource:
    """
    Open a copy for reading from an offset on.

    Parameters
    ----------
    offset
        Bytes to leave out. The source may begin earlier: see its ``start``.
    tag
        Tag of the version from which the bytes before the offset were read; empty: any.
    patience
        Seconds to wait for an answer.
    stop
        Cancels the copy from another thread.

    Raises
    ------
    SourceFailed
        When it cannot be read.
    InputError
        When an extra is missing.
    """
    if is_local(url):
        from bursar.replicas.schemes.source import LocalSource

        return LocalSource(url, offset)
    scheme, _, _ = split_url(url)
    if scheme in ("http", "https"):
        from bursar.replicas.schemes.http import HttpSource

        return HttpSource(url, offset, tag, patience, stop)
    if scheme == "s3":
        from bursar.replicas.schemes.s3 import S3Source

        return S3Source(url, offset, patience)
    from bursar.replicas.schemes.ssh import SshSource

    return SshSource(url, offset, patience, stop)


def open_upload(url: str, size: int | None, patience: float) -> ReplicaUpload:
    """
    Open a remote copy for writing, which becomes visible when finished.

    Raises
    ------
    SourceFailed
        When it cannot.
    InputError
        When nothing can be written by this scheme, or an extra is missing.
    """
    scheme, _, _ = split_url(url)
    if scheme == "s3":
        from bursar.replicas.schemes.s3 import S3Upload

        return S3Upload(url, size, patience)
    if scheme in ("ssh", "sftp"):
        from bursar.replicas.schemes.ssh import SshUpload

        return SshUpload(url, patience)
    raise InputError("cannot be written to; a folder, ssh or s3 can", where=redact_url(url))
