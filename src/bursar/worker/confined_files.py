"""
Access to files below a folder whose content is not trusted.

Tasks own an instance's folders: they may leave links there that lead to other people's files,
pipes that nobody writes to, folders without a bottom. Here every step down is taken by a
descriptor and follows no link, so that what a name means cannot change while it is looked up.

Every error is a :class:`StagingError`: one line, for the user who gave the name.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from bursar.worker.staging import AbsentFileError, StagingError, kind_of, shown

DEEPEST = 100
"""Levels of folders that an output may have, at most."""

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags for opening folders, never through a link."""

PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
"""Flags for opening files: without O_NONBLOCK opening a named pipe would wait for ever."""


def parts_of(name: str) -> list[str]:
    """
    Return the steps of a relative name.

    Raises
    ------
    StagingError
        When the name is not that of something below a folder.
    """
    parts = _steps_of(name)
    if not parts:
        raise StagingError(f'"{shown(name)}" is no name of a file')
    return parts


def open_folder(folder: str, parts: list[str], *, owner: tuple[int, int] | None = None) -> int:
    """
    Open a folder below another one, and return the descriptor; missing folders are made.

    Parameters
    ----------
    folder
        Path of the upper folder, which is trusted: links in it are followed.
    owner
        User and group that folders made here are to belong to; None: this process's own.

    Raises
    ------
    StagingError
        When a step is a link, or no folder, or cannot be taken.
    """
    return _descend(folder, parts, make=True, owner=owner)


def descend(at: int, steps: Iterable[str], enter: Callable[[int, str], int]) -> int:
    """
    Return a descriptor of a folder below another one, reached step by step.

    Parameters
    ----------
    at
        Descriptor of the folder to begin at; closed here in any case.
    enter
        Opens a folder of a folder, as :data:`FOLDER` has it; may make it before.
    """
    for step in steps:
        try:
            below = enter(at, step)
        finally:
            os.close(at)
        at = below
    return at


class ConfinedFiles:
    """
    The files of an instance: inputs and outputs of the instance's tasks.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find(self, name: str) -> str:
        """Return the path to read ``name`` from; links that stay inside are followed."""
        # A name for reading may pass through links of the user's own, as long as they stay inside.
        path = os.path.realpath(os.path.join(self.folder, *parts_of(name)))
        if not _is_below(path, self.folder):
            raise StagingError(f'"{shown(name)}" leads out of the instance\'s files')
        if not os.path.lexists(path):
            raise AbsentFileError(f'"{shown(name)}" is not among the instance\'s files')
        return path

    def target(self, name: str) -> str:
        """
        Return the path to write a file of an instance to; make the folders that lead there.

        Raises
        ------
        StagingError
            When a link has the name: writing would follow it out of the folder.
        """
        parts = parts_of(name)
        os.close(open_folder(self.folder, parts[:-1]))
        path = os.path.join(self.folder, *parts)
        if os.path.islink(path):
            raise StagingError(f'"{shown(name)}" is a link')
        return path

    def directory(self, name: str) -> str:
        """Path of a folder that a task is to run in, made; ``"."``: that of all files."""
        parts = _steps_of(name)
        os.close(open_folder(self.folder, parts))
        return os.path.join(self.folder, *parts)

    def stage_in(self, folder: str, name: str) -> None:
        """Puts an input into a working directory: a further name of it, or a link to a folder."""
        source = self.find(name)
        found = os.lstat(source)
        parts = parts_of(name)
        if os.path.realpath(os.path.join(folder, *parts)) == source:
            return  # as part of a folder, or since the task runs where the files are
        parent = open_folder(folder, parts[:-1])
        try:
            if stat.S_ISREG(found.st_mode):
                _put(source, found, parts[-1], parent)
            elif stat.S_ISDIR(found.st_mode):
                _put_link(source, found, parts[-1], parent)
            else:
                raise _of_no_use(name, found)
        except OSError as error:
            raise _refused(name, error) from None
        finally:
            os.close(parent)

    def make_room(self, folder: str, name: str) -> None:
        """Make the parent folder of a file in a working directory."""
        parts = parts_of(name)
        # An input that is a folder is a link there, and may take outputs.
        if len(parts) > 1 and not os.path.isdir(os.path.join(folder, *parts[:-1])):
            os.close(open_folder(folder, parts[:-1]))

    def publish(self, folder: str, name: str, *, stays: bool) -> None:
        """
        Puts an output among the instance's files, each file whole or not at all.

        Parameters
        ----------
        stays
            The working directory goes on to be used: what lies there must not be the same file.
        """
        parts = parts_of(name)
        path = os.path.join(folder, *parts)
        source = os.path.realpath(path)
        if not os.path.lexists(source):
            raise StagingError(f'output "{shown(name)}" was not made')
        if not (_is_below(source, folder) or _is_below(source, self.folder)):
            raise StagingError(f'output "{shown(name)}" leads out of the task\'s folder')
        # An output may be a link to an input of the instance, which is then published as it is.
        base = folder if _is_below(source, folder) else self.folder
        steps = os.path.relpath(source, os.path.realpath(base)).split("/")
        # Taken again step by step: since realpath() a process of the task may have put a link in
        # the way.
        at, into = _descend(base, steps[:-1]), -1
        try:
            into = open_folder(self.folder, parts[:-1])
            _publish(at, steps[-1], into, parts[-1], stays, DEEPEST)
        except OSError as error:
            raise _refused(name, error) from None
        finally:
            os.close(at)
            if into >= 0:
                os.close(into)


def _steps_of(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise StagingError(f'"{shown(name)}" is not below the folder it should be in')
    return parts


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.realpath(folder) + os.sep)


def _descend(
    folder: str, parts: list[str], *, make: bool = False, owner: tuple[int, int] | None = None
) -> int:
    # The service made this folder; only what lies below is a task's.
    top = os.open(folder, FOLDER & ~os.O_NOFOLLOW)
    try:
        return descend(top, parts, partial(_step, make=make, owner=owner))
    except OSError as error:
        raise _refused("/".join(parts), error) from None


def _step(at: int, part: str, *, make: bool, owner: tuple[int, int] | None) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            # Made first and opened then, whether it was there or not: to look before would be a
            # race.
            os.mkdir(part, dir_fd=at)
            if owner is not None:
                # Only of a folder made here: one that was there belongs to whom it belongs.
                os.chown(part, *owner, dir_fd=at, follow_symlinks=False)
    return os.open(part, FOLDER, dir_fd=at)


def _put(source: str, found: os.stat_result, name: str, parent: int) -> None:
    """Give a plain file a further name, in place of any other file of that name."""
    try:
        os.link(source, name, dst_dir_fd=parent, follow_symlinks=False)
    except FileExistsError:
        # Of two names of one file nothing need be replaced.
        if not os.path.samestat(found, os.stat(name, dir_fd=parent, follow_symlinks=False)):
            os.unlink(name, dir_fd=parent)
            _put(source, found, name, parent)
    except OSError:  # another device, or no hard links here
        os.symlink(source, name, dir_fd=parent)


def _put_link(source: str, found: os.stat_result, name: str, parent: int) -> None:
    """Make a link to a folder, in place of any other link of that name."""
    try:
        os.symlink(source, name, dir_fd=parent)
    except FileExistsError:
        if not os.path.samestat(found, os.stat(name, dir_fd=parent, follow_symlinks=False)):
            os.unlink(name, dir_fd=parent)
            os.symlink(source, name, dir_fd=parent)


def _publish(at: int, name: str, into: int, goal: str, stays: bool, depth: int) -> None:
    """Publish one file or folder from folder to folder; links within a folder stay links."""
    found = os.stat(name, dir_fd=at, follow_symlinks=False)
    # A rename of one name of a file over another does nothing, and the first would stay behind.
    if _is_at(found, goal, into):
        return
    if stat.S_ISDIR(found.st_mode):
        _publish_folder(at, name, into, goal, stays, depth)
    elif stat.S_ISREG(found.st_mode):
        with _in_one_step(into, goal) as fresh:
            _give_name(at, name, into, fresh, stays)
    elif stat.S_ISLNK(found.st_mode):
        with _in_one_step(into, goal) as fresh:
            os.symlink(os.readlink(name, dir_fd=at), fresh, dir_fd=into)
    else:
        raise _of_no_use(name, found)


def _publish_folder(at: int, name: str, into: int, goal: str, stays: bool, depth: int) -> None:
    # Each level holds two descriptors; a folder without a bottom must not use them all up.
    if not depth:
        raise StagingError(f"there are more than {DEEPEST} folders in folders")
    source, target = os.open(name, FOLDER, dir_fd=at), -1
    try:
        target = _step(into, goal, make=True, owner=None)
        for entry in os.listdir(source):
            _publish(source, entry, target, entry, stays, depth - 1)
    finally:
        os.close(source)
        if target >= 0:
            os.close(target)


@contextlib.contextmanager
def _in_one_step(into: int, goal: str) -> Iterator[str]:
    """Yield a temporary name; on success the file there is renamed to the final name."""
    # A worker puts one file in place at a time; the name of another worker is another.
    fresh = f".part-{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh, dir_fd=into)
    try:
        yield fresh
        os.rename(fresh, goal, src_dir_fd=into, dst_dir_fd=into)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh, dir_fd=into)
        raise


def _give_name(at: int, name: str, into: int, fresh: str, stays: bool) -> None:
    if not stays:
        with contextlib.suppress(OSError):  # another device, or no hard links here
            os.link(name, fresh, src_dir_fd=at, dst_dir_fd=into, follow_symlinks=False)
            return
    # A copy where the task may go on to write: with a hard link it would change what was published.
    with open(os.open(name, os.O_RDONLY | PLAIN, dir_fd=at), "rb") as source:
        mode = stat.S_IMODE(os.fstat(source.fileno()).st_mode) & 0o777
        made = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | PLAIN, mode, dir_fd=into)
        with open(made, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)


def _is_at(found: os.stat_result, name: str, parent: int) -> bool:
    """Whether that very file or folder has the name already."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(found, os.stat(name, dir_fd=parent, follow_symlinks=False))
    return False


def _of_no_use(name: str, found: os.stat_result) -> StagingError:
    kind = kind_of(found.st_mode)
    return StagingError(f'"{shown(name)}" is {kind}, neither a plain file nor a folder')


def _refused(name: str, error: OSError) -> StagingError:
    reason = _REASONS.get(error.errno or 0, error.strerror)
    return StagingError(f'"{shown(name)}" {reason}')


_REASONS = {
    errno.ENOENT: "does not exist",
    errno.ELOOP: "is a link",
    errno.ENOTDIR: "leads through a link, or through what is no folder",
    errno.EISDIR: "is a folder",
}
