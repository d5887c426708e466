"""
Copies behind SSH (SFTP), through fsspec with hosts that are known only.

As with ``ssh``, keys come from the agent and ``~/.ssh``, names of hosts from
``~/.ssh/config``, and a host must be in ``~/.ssh/known_hosts``.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from bursar.model.errors import InputError
from bursar.replicas.content import (
    CancellationToken,
    SourceFailed,
    redact_url,
    redact_urls,
    split_url,
)
from bursar.replicas.schemes.source import failing

try:
    import paramiko
    from fsspec.implementations.sftp import SFTPFileSystem
except ImportError:  # pragma: no cover - told by a test in another process
    raise InputError("ssh copies need paramiko", hint="pip install 'bursar[ssh]'") from None

_BLOCK = 32 * 1024  # what servers give at most for one request
_MACHINE = re.compile(r"(\[[^\]]*\]|[^:]*)(?::(\d{1,5}))?")


class KnownHosts(SFTPFileSystem):  # type: ignore[misc]
    """fsspec's SFTP file system, which here refuses unknown hosts as ``ssh`` does in scripts."""

    protocol = ()  # not found by a URL
    cachable = False  # a connection is closed by who opened it

    def _connect(self) -> None:
        self.client = paramiko.SSHClient()
        known = os.path.expanduser("~/.ssh/known_hosts")
        if os.path.exists(known):
            self.client.load_system_host_keys(known)
        self.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        self.client.connect(self.host, **self.ssh_kwargs)
        self.ftp = self.client.open_sftp()


class SshSource:
    """
    Reads a copy from a file of another machine over SFTP.

    Parameters
    ----------
    offset
        Bytes to leave out; of a shorter file all of them.
    patience
        Seconds to wait for the connection.
    stop
        Cancels the reading from another thread.
    """

    chunk = 4 * 1024 * 1024

    def __init__(self, url: str, offset: int, patience: float, stop: CancellationToken) -> None:
        self._stop = stop
        self._system, path = _connect(url, patience)
        try:
            with _failing():
                about = self._system.ftp.stat(path)
                if not stat.S_ISREG(about.st_mode or stat.S_IFREG):
                    raise SourceFailed("is no regular file", bad=True)
                self._file = self._system.ftp.open(path, "rb")
        except SourceFailed:
            self.close()
            raise
        self.size: int = about.st_size or 0
        # SFTP has no version of a file; one that changed within a second at the same size is found
        # by its checksum only.
        self.tag = f"{about.st_mtime}-{about.st_size}"
        self.start = self._at = min(offset, self.size)

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        end = min(self._at + size, self.size)
        blocks = [(at, min(_BLOCK, end - at)) for at in range(self._at, end, _BLOCK)]
        if not blocks:
            return b""
        with self._stop.by(self.close), _failing():
            # All asked for at once, so that distance costs once for all of them.
            data = b"".join(self._file.readv(blocks))
        self._at += len(data)
        return data

    def close(self) -> None:
        """Close the connection."""
        self._system.client.close()


class SshUpload:
    """An upload of a file, under a temporary name until complete."""

    def __init__(self, url: str, patience: float) -> None:
        self._system, self._path = _connect(url, patience)
        self._fresh = f"{self._path}.part-{os.getpid()}"
        try:
            with _failing():
                self._system.makedirs(os.path.dirname(self._path), exist_ok=True)
                self._file = self._system.ftp.open(self._fresh, "wb")
                # Without waiting for the server's word on each block, which would cost a round trip
                # each.
                self._file.set_pipelined(True)
        except SourceFailed:
            self._system.client.close()
            raise

    def write(self, data: bytes) -> None:
        """Append bytes."""
        with _failing():
            self._file.write(data)

    def finish(self) -> None:
        """Rename the file to the final name."""
        with _failing():
            self._file.close()
            # OpenSSH's extension: SFTP's own rename fails where the target exists.
            self._system.ftp.posix_rename(self._fresh, self._path)
        self._system.client.close()

    def discard(self) -> None:
        """Delete the temporary file, as far as that is possible."""
        with contextlib.suppress(SourceFailed), _failing():
            self._file.close()
            self._system.ftp.remove(self._fresh)
        self._system.client.close()


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    try:
        with failing():
            yield
    except paramiko.BadHostKeyException:
        raise SourceFailed("has another key than ~/.ssh/known_hosts says") from None
    except paramiko.AuthenticationException:
        raise SourceFailed("does not accept our keys or password") from None
    except paramiko.SSHException as error:
        if "known_hosts" in str(error):
            raise SourceFailed("is no host that ~/.ssh/known_hosts knows") from None
        raise SourceFailed(f"broke off ({redact_urls(str(error))})", transient=True) from None


def _connect(url: str, patience: float) -> tuple[Any, str]:
    """Open a connection; return the file system and the path."""
    _, host, path = split_url(url)
    user, _, machine = host.rpartition("@")
    name, _, password = user.partition(":")
    match = _MACHINE.fullmatch(machine)
    if match is None or not path.strip("/"):
        raise InputError("expected ssh://host/path", where=redact_url(url))
    alias = _configured(match[1].strip("[]"))
    options = {
        "port": int(match[2] or alias.get("port", 22)),
        "username": unquote(name) or alias.get("user"),
        "password": unquote(password) or None,
        "key_filename": alias.get("identityfile"),
        "timeout": patience,
        "banner_timeout": patience,
        "auth_timeout": patience,
    }
    with _failing():
        system = KnownHosts(alias.get("hostname", match[1].strip("[]")), **options)
        system.ftp.get_channel().settimeout(patience)
    return system, path


def _configured(host: str) -> Any:
    """Return the user's SSH configuration of a host."""
    try:
        return paramiko.SSHConfig.from_path(os.path.expanduser("~/.ssh/config")).lookup(host)
    except (OSError, paramiko.ConfigParseError):
        return {}
