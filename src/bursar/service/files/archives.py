"""
Unpacking of archives of input files, whose content is not trusted.

All members are unpacked beside the instance's files first and are moved into place only when every
one of them is valid, so that a refused archive leaves nothing.
"""

import gzip
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, NoReturn, cast

from bursar.dispatch.folders import remove_tree
from bursar.remote.messages import FileInfo
from bursar.remote.routes import GZIP, ZIP
from bursar.service.config import HttpLimits
from bursar.service.files.instance_files import (
    READ,
    UNFINISHED,
    create_upload,
    folder,
    inherit_owner,
    name_conflict,
    parse_name,
    translated_file_errors,
)
from bursar.service.interfaces import ServiceError
from bursar.worker.staging import shown

_PIECE = 1 << 18  # bytes read at a time
_LARGEST_HEADER = 1 << 20  # bytes; a member's own description in a tar file takes no more
_LARGEST_INDEX = 16 << 20  # bytes of a zip file's list of members
_SMALL_HEADERS = 4096  # bytes of a member's headers in a tar file, on average
_SMALL = 64 << 20  # bytes unpacked, up to which the ratio of compression does not matter


@dataclass(frozen=True, slots=True)
class _ArchiveMember:
    name: str
    size: int  # as the archive says; checked while reading
    executable: bool
    content: IO[bytes]


def largest(size: int, ratio: int) -> int:
    """Return the bytes that the files of an archive of ``size`` bytes may have together."""
    return max(_SMALL, ratio * size)


def unpack(
    archive: IO[bytes],
    size: int,
    kind: str,
    root: str,
    limits: HttpLimits,
    most: int,
    take: Callable[[int], None],
) -> list[FileInfo]:
    """
    Unpack an archive into a folder: all of its files, or none when anything is wrong.

    Parameters
    ----------
    archive
        Open file, positioned at its beginning.
    size
        Bytes of the packed archive.
    kind
        Media type: one of those that ``PUT_ARCHIVE`` takes (:mod:`bursar.remote.routes`).
    most
        Bytes of all unpacked files together.
    take
        Called with the number of bytes before they are written; raises ServiceError when they
        exceed a quota.

    Returns
    -------
    list of FileInfo
        In the archive's order.

    Raises
    ------
    ServiceError
        413 or 422, when the archive is damaged, too large, or has members that are neither plain
        files nor folders or whose names lead elsewhere; 507, when the disk is full.
    """
    with translated_file_errors(), folder(root, ()) as top:
        # In the instance's own folder, so that files are moved by renaming; under a reserved name,
        # which no listing shows and no client can ask for.
        staging = f"{UNFINISHED}{os.urandom(8).hex()}"
        os.mkdir(staging, 0o700, dir_fd=top)
        try:
            with folder(top, (staging,)) as stage:
                inherit_owner(stage, top)
                found = _unpack(archive, size, kind, stage, limits, most, take)
                _move(stage, top, found)
        finally:
            remove_tree(staging, dir_fd=top)
        return found


def _unpack(
    archive: IO[bytes],
    size: int,
    kind: str,
    stage: int,
    limits: HttpLimits,
    most: int,
    take: Callable[[int], None],
) -> list[FileInfo]:
    most = min(most, largest(size, limits.ratio))
    found: dict[str, FileInfo] = {}
    total = count = 0
    try:
        # Members are read one at a time and checked before they are unpacked: a bomb is refused
        # when it exceeds a limit, not when it has filled the disk.
        for member in _members(archive, kind, most + limits.members * _SMALL_HEADERS):
            count += 1
            if count > limits.members:
                raise _too_much(f"holds more than {limits.members:,} members")
            if member is None:  # a folder
                continue
            # By the size that the archive states, before a byte is unpacked. The true size is
            # counted below, as an archive may lie.
            if member.size > most - total:
                raise _too_much(f"comes to more than {most:,} bytes")
            parts = _parts_of(member.name)
            with create_upload(
                stage, parts, executable=member.executable, spare=limits.spare_bytes
            ) as file:
                while piece := member.content.read(_PIECE):
                    total += len(piece)
                    if total > most:
                        raise _too_much(f"comes to more than {most:,} bytes")
                    # Before the write: bytes on disk are never more than those counted.
                    take(len(piece))
                    file.write(piece)
                # Not synced one by one: _move() does that, when the kernel has written most of
                # them.
                info = file.finish(durable=False)
            name = "/".join(parts)
            found[name] = FileInfo(name=name, size=info.size, sha256=info.sha256)
    except _DAMAGED as error:
        _refuse(f"cannot be read: {error}")
    return list(found.values())


_DAMAGED = (
    EOFError,
    NotImplementedError,
    OverflowError,
    RecursionError,  # nested extended headers
    ValueError,
    gzip.BadGzipFile,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


def _move(stage: int, top: int, found: list[FileInfo]) -> None:
    """Move all files durably from the staging folder to the instance's files."""
    folders = {}
    for info in found:
        parts = tuple(info.name.split("/"))
        with folder(stage, parts[:-1]) as source, folder(top, parts[:-1], make=True) as target:
            # A task may have replaced the file; opening a pipe would block for ever.
            file = os.open(parts[-1], READ, dir_fd=source)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise name_conflict(f'"{info.name}" was taken away while it was unpacked')
                os.fsync(file)  # the first sync writes most of all files, so the others are short
            finally:
                os.close(file)
            try:
                os.rename(parts[-1], parts[-1], src_dir_fd=source, dst_dir_fd=target)
            except IsADirectoryError:
                raise name_conflict(f'"{info.name}" is there, and a folder') from None
        folders[parts[:-1]] = True
    # Names are durable when their folder is; each folder once, however many files it got.
    for parts in folders:
        with folder(top, parts) as target:
            os.fsync(target)


def _members(archive: IO[bytes], kind: str, most: int) -> Iterator[_ArchiveMember | None]:
    """
    Yield the members of an archive in turn; None for a folder.

    Parameters
    ----------
    most
        Position, in bytes of the unpacked tar file, beyond which nothing is read. Members of a
        zip file are not limited here: the caller counts their bytes.
    """
    if kind == ZIP:
        yield from _zipped(archive)
    elif kind == GZIP:
        with gzip.GzipFile(fileobj=archive, mode="rb") as plain:
            yield from _tarred(cast(IO[bytes], plain), most)
    else:
        yield from _tarred(archive, most)


def _parts_of(name: str) -> tuple[str, ...]:
    """Split a member's name into parts; refuse backslashes, which some archivers write for "/"."""
    if "\\" in name:
        _refuse("a name in it holds a backslash")
    return parse_name(name, "archive")


def _zipped(archive: IO[bytes]) -> Iterator[_ArchiveMember | None]:
    """Yield the files of a zip archive, None for a folder; refuse links, devices, encryption."""
    with zipfile.ZipFile(cast(IO[bytes], _BoundedReader(archive, _LARGEST_INDEX))) as opened:
        for entry in opened.infolist():
            mode = entry.external_attr >> 16
            if "\0" in entry.orig_filename:
                _refuse("a name in it holds a NUL")  # zipfile cuts names off there
            if entry.is_dir():
                _parts_of(entry.filename.rstrip("/"))
                yield None
                continue
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                _refuse(f'"{shown(entry.filename)}" is neither a file nor a folder')
            if entry.flag_bits & 1:
                _refuse(f'"{shown(entry.filename)}" is encrypted')
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                _refuse(f'"{shown(entry.filename)}" is packed in a way that is not known here')
            with opened.open(entry) as content:
                yield _ArchiveMember(entry.filename, entry.file_size, bool(mode & 0o100), content)


def _tarred(archive: IO[bytes], most: int) -> Iterator[_ArchiveMember | None]:
    wary = cast(IO[bytes], _BoundedReader(archive, _LARGEST_HEADER, onwards_to=most))
    with tarfile.open(fileobj=wary, mode="r:") as opened:
        while (entry := opened.next()) is not None:
            opened.members.clear()  # type: ignore[attr-defined] # tarfile would keep all members in memory
            name = entry.name.removeprefix("./")
            if entry.size < 0:
                _refuse(f'"{shown(entry.name)}" is said to have {entry.size} bytes')
            if entry.isdir():
                if name not in ("", "."):
                    _parts_of(name)
                yield None
                continue
            # Not entry.isreg(): tarfile counts contiguous files as plain, and reads unknown
            # types as plain files.
            plain = entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not entry.issparse()
            content = opened.extractfile(entry) if plain else None
            if content is None:
                _refuse(f'"{shown(entry.name)}" is neither a plain file nor a folder')
            with content:
                yield _ArchiveMember(name, entry.size, bool(entry.mode & 0o100), content)


class _BoundedReader:
    """
    A file that refuses to be read in pieces larger than any valid archive needs.

    Parameters
    ----------
    largest
        Bytes of the largest piece.
    onwards_to
        Last position to which a tar file is read. It is never read backwards, as a negative length
        would lead to the same header again and again. None: not a tar file.
    """

    def __init__(self, archive: IO[bytes], largest: int, onwards_to: int | None = None) -> None:
        self._archive = archive
        self._largest = largest
        self._onwards_to = onwards_to

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._archive.tell()

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        if self._onwards_to is not None:
            # One block back is allowed, as tarfile itself steps back by a byte before it reads on;
            # only a forged header leads further back.
            here = self._archive.tell()
            if not here - tarfile.BLOCKSIZE <= place <= self._onwards_to:
                raise ValueError("it leads astray")
        try:
            return self._archive.seek(place, whence)
        except OSError:
            raise ValueError("it leads nowhere") from None

    def read(self, size: int = -1) -> bytes:
        if size > self._largest:
            raise ValueError("a part of its index is too large")
        if size < 0 and self._onwards_to is not None:
            raise ValueError("a header in it has a negative length")
        if self._onwards_to is not None and self._archive.tell() > self._onwards_to:
            raise ValueError("its headers are too much")
        piece = self._archive.read(size if size >= 0 else self._largest + 1)
        if len(piece) > self._largest:
            raise ValueError("a part of its index is too large")
        return piece


def _refuse(why: str) -> NoReturn:
    raise ServiceError("bad-archive", 422, why, where="archive")


def _too_much(why: str) -> ServiceError:
    return ServiceError("too-large", 413, why, where="archive")
