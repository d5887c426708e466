"""Files between the run's root name space and a task's working directory."""

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from bursar.dispatch.wire import WireJob
from bursar.model.task import INPUTS_FILE, Copy, gathering_variables


class StagingError(Exception):
    """A file is missing or cannot be staged: the attempt fails with this one-line message."""


class FileNamespace(Protocol):
    """
    Files that tasks take from and add to.

    All methods raise :class:`StagingError` when that cannot be.
    """

    def find(self, name: str) -> str:
        """Return the path to read ``name`` from."""

    def target(self, name: str) -> str:
        """Return the path to write ``name`` to, and make the folder."""

    def directory(self, name: str) -> str:
        """Make a folder among the files, and return the path."""

    def stage_in(self, folder: str, name: str) -> None:
        """Put an input into a working directory."""

    def make_room(self, folder: str, name: str) -> None:
        """Make the parent folder of a file in a working directory."""

    def publish(self, folder: str, name: str, *, stays: bool) -> None:
        """
        Puts an output of a working directory among the files.

        Parameters
        ----------
        stays
            The working directory goes on to be used, and what lies there may change.
        """


class AbsentFileError(StagingError):
    """A file that a task reads is not there."""


class RootNamespace(NamedTuple):
    """
    The run's root name space.

    Parameters
    ----------
    campaign
        The campaign's folder; only read.
    files
        The run's own; shadows the campaign's, and takes everything written.
    """

    campaign: str
    files: str

    def find(self, name: str) -> str:
        """
        Return the path to read ``name`` from.

        Raises
        ------
        StagingError
            When the file is in neither folder.
        """
        # The run's own first: a task may have made a newer file of that name.
        for folder in (self.files, self.campaign):
            path = os.path.join(folder, name)
            if os.path.lexists(path):
                return path
        raise AbsentFileError(f'"{name}" is neither in the campaign\'s folder nor made by the run')

    def target(self, name: str) -> str:
        """
        Return the path to write ``name`` to, and make the folder.

        Raises
        ------
        StagingError
            When the path would leave the run's files.
        """
        path = os.path.normpath(os.path.join(self.files, name))
        # Where it leads counts, not how it is spelled: a task may have made a link.
        inside = os.path.realpath(self.files) + os.sep
        folder = os.path.realpath(os.path.dirname(path)) + os.sep
        if not path.startswith(self.files + os.sep) or not folder.startswith(inside):
            raise StagingError(f'"{name}" would be written outside the run\'s files')
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def directory(self, name: str) -> str:
        """
        Path of a folder among the run's files, made.

        Raises
        ------
        StagingError
            When it would lie elsewhere.
        """
        return os.path.dirname(self.target(os.path.join(name, "x")))

    def stage_in(self, folder: str, name: str) -> None:
        """
        Puts an input into a working directory.

        What the run made is hard-linked; what belongs to the user is linked by
        name, so that a task that deletes or replaces it only loses its link.
        """
        target = os.path.join(folder, name)
        self.make_room(folder, name)
        try:
            # A hard link survives when another task publishes a newer file of that name.
            os.link(os.path.join(self.files, name), target, follow_symlinks=False)
        except FileNotFoundError:
            source = self.find(name)
            os.symlink(os.path.abspath(source), target)
        except OSError:  # another device, or a folder
            os.symlink(os.path.join(self.files, name), target)

    def make_room(self, folder: str, name: str) -> None:
        """Makes the folder of something that is to be in a working directory."""
        if "/" in name:
            os.makedirs(os.path.join(folder, os.path.dirname(name)), exist_ok=True)

    def publish(self, folder: str, name: str, *, stays: bool) -> None:
        """
        Put an output into the run's files, whole or not at all.

        Parameters
        ----------
        stays
            The working directory goes on to be used: what lies there must not be the same file.

        Raises
        ------
        StagingError
            When the task did not make it.
        """
        source = os.path.join(folder, name)
        if not os.path.exists(source):
            raise StagingError(f'output "{name}" was not made')
        check_kind(source, f'output "{shown(name)}"')
        if stays:
            copy(source, self.target(name))
        else:
            # The working directory is about to go: giving the file another name is cheaper than a
            # copy.
            copy_whole(source, self.target(name))


def to_publish(job: WireJob, folder: str) -> Sequence[str]:
    """
    Return the outputs that the worker publishes: none of a copy, which must have made all.

    Raises
    ------
    StagingError
        When a copy did not make one.
    """
    if not job.unpublished:
        return job.outputs
    for name in job.outputs:
        if not os.path.exists(os.path.join(folder, name)):
            raise StagingError(f'output "{name}" was not made')
    return ()


def link_in(path: str, folder: str, name: str) -> None:
    """
    Puts a file of a site's storage, which other tasks read too, into a working directory.

    There is room for it already.

    Raises
    ------
    StagingError
        When it is not there.
    """
    if not os.path.exists(path):
        raise StagingError(f'"{name}" is not in the storage any more')
    os.symlink(os.path.abspath(path), os.path.join(folder, name))


def copy(source: str, target: str) -> None:
    """
    Copies a file or a folder; into the target where that is a folder.

    Raises
    ------
    StagingError
        When it cannot.
    """
    check_kind(source, f'"{shown(source)}"')
    if os.path.isdir(target) and not os.path.isdir(source):
        target = os.path.join(target, os.path.basename(source))
    parent = os.path.dirname(target)
    if parent:
        os.makedirs(parent, exist_ok=True)
    try:
        if os.path.isdir(source):
            shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
        else:
            _in_one_step(source, target, _copy_file)
    except (OSError, shutil.Error) as error:
        raise StagingError(f"cannot copy {source} to {target}: {error}") from None


def copy_for(step: Copy, root: FileNamespace, folder: str) -> None:
    """
    Carry out a step that copies between the root and a task's working directory.

    Raises
    ------
    StagingError
        When it cannot be done.
    """
    source, target = step.source, step.target
    found = root.find(source) if step.source_at_root else os.path.join(folder, source)
    if not os.path.lexists(found):
        raise StagingError(f'"{source}" does not exist')
    if step.target_at_root:
        # A target that ends in a slash is a folder to copy into: a name below it has it made.
        goal = root.target(os.path.join(target, "x"))[:-2] if target.endswith("/") else None
        copy(found, goal or root.target(target))
    else:
        copy(found, os.path.join(folder, target))


def check_kind(path: str, what: str) -> None:
    """
    Check that a path is a plain file, or a folder of plain files, folders and links.

    Opening a named pipe to read it would block for ever, and a device may have no end.

    Parameters
    ----------
    path
        A link is followed; links within a folder are not, for they are copied as links.
    what
        Name of the file or folder in the error.

    Raises
    ------
    StagingError
        When the path is something else, or holds something else.
    """
    mode = os.stat(path).st_mode if os.path.exists(path) else stat.S_IFREG  # missing: see later
    if stat.S_ISREG(mode):
        return
    if not stat.S_ISDIR(mode):
        raise StagingError(f"{what} is {kind_of(mode)}, neither a plain file nor a folder")
    folders = [path]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not (entry.is_symlink() or entry.is_file(follow_symlinks=False)):
                    inner = shown(os.path.relpath(entry.path, path))
                    kind = kind_of(entry.stat(follow_symlinks=False).st_mode)
                    raise StagingError(f'{what} holds "{inner}", which is {kind}')


def shown(name: str) -> str:
    """Return a name in a form that fits into a message of one line."""
    name = name[:200]
    return name if name.isprintable() else ascii(name)[1:-1]


def kind_of(mode: int) -> str:
    """Return the kind of file for a mode, in words for a message."""
    return _KINDS.get(stat.S_IFMT(mode), "of an unknown kind")


_KINDS = {
    stat.S_IFREG: "a plain file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def copy_whole(source: str, target: str) -> None:
    """Give ``source`` the further name ``target``, replacing any file there in one step."""
    if os.path.isdir(source):
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
    else:
        _in_one_step(source, target, _link_file)


def _in_one_step(source: str, target: str, make: Callable[[str, str], None]) -> None:
    fresh = f"{target}.part-{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)
    try:
        make(source, fresh)
        os.rename(fresh, target)
    finally:
        # Gone already, unless it failed or both names were one file before.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh)


def _link_file(source: str, target: str) -> None:
    # A link to a file that may change or go: what is published must be the content.
    if os.path.islink(source):
        _copy_file(source, target)
        return
    try:
        os.link(source, target)
    except OSError:  # another device, or no hard links here
        _copy_file(source, target)


def _copy_file(source: str, target: str) -> None:
    _check_plain(source)
    shutil.copyfile(source, target)
    shutil.copymode(source, target)


def _check_plain(path: str) -> None:
    """Refuse a pipe or device: reading it may take for ever and block all others meanwhile."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, "is not a plain file", path)


_NAME = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def substitute(source: str, target: str, values: Mapping[str, str]) -> None:
    """
    Copy a text file, replacing ``$name`` and ``${name}`` where ``values`` has the name.

    Unknown names, line ends and bytes that are no UTF-8 stay as they are.

    Raises
    ------
    StagingError
        When the source cannot be read.
    """
    try:
        _check_plain(source)
        _check_plain(target)
        with open(source, encoding="utf-8", errors="surrogateescape", newline="") as file:
            text = file.read()
    except OSError as error:
        name = os.path.basename(source)
        raise StagingError(f'cannot read "{name}": {error.strerror}') from None
    made = _NAME.sub(lambda m: values.get(m[1] or m[2], m[0]), text)
    with open(target, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(made)


def gather(
    stage_in: Callable[[str, str], None], folder: str, files: Sequence[str]
) -> dict[str, str]:
    """
    Bring those of some files that are there into a working directory, and list them there.

    Parameters
    ----------
    stage_in
        Puts a file, by name, into a folder.

    Returns
    -------
    dict
        Variables that tell the programs which of the files are absent.
    """
    there: list[str] = []
    absent: list[str] = []
    for name in files:
        try:
            stage_in(folder, name)
            there.append(name)
        except AbsentFileError:
            absent.append(name)
    with open(os.path.join(folder, INPUTS_FILE), "w", encoding="utf-8") as file:
        file.writelines(f"{name}\n" for name in there)
    return gathering_variables(absent)
