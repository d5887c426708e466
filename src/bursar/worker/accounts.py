"""Local accounts that tasks run as, and resource limits of their processes (``getrlimit``)."""

import os
import pwd
import resource
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from bursar.dispatch.linux_processes import close_memory
from bursar.model.errors import SiteError

# Local accounts that tasks run as.

PATH = "/usr/local/bin:/usr/bin:/bin"
"""Search path of programs for tasks of another account."""

_KEPT = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnixAccount:
    """
    A local user.

    Parameters
    ----------
    name
        Login name.
    uid, gid, groups
        Numeric ids of the user, of its primary group and of all its groups.
    home
        Home folder.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @property
    def owner(self) -> tuple[int, int]:
        """Ids of the user and group that own the account's files."""
        return self.uid, self.gid


def find_account(name: str) -> UnixAccount:
    """
    Return the account of a name.

    Raises
    ------
    SiteError
        When there is no such account; when the account is root's, as whom no task runs; or when
        this process may not start others as that user.
    """
    try:
        found = pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise SiteError(f'there is no local user "{name}"') from None
    if found.pw_uid == 0:
        raise SiteError(f'tasks do not run as "{name}", which may do everything')
    if os.geteuid() not in (0, found.pw_uid):
        raise SiteError(f'only a service that root started can run tasks as "{name}"')
    groups = tuple(os.getgrouplist(name, found.pw_gid))
    return UnixAccount(
        name=name, uid=found.pw_uid, gid=found.pw_gid, groups=groups, home=found.pw_dir
    )


def switch_to_account(account: UnixAccount) -> None:
    """
    Switch this process to an account for good, and keep that account from tracing the process.

    The kernel closes the memory of a process that changes its user, at once: there is no moment
    at which processes of the account may trace it, unlike a program that is started as that
    user.

    Raises
    ------
    OSError
        When this process is not permitted to switch.
    """
    # Groups before the user: without root's rights they could not be changed any more.
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    close_memory()  # also where fs.suid_dumpable says otherwise


def environment_of(account: UnixAccount | None, mine: Mapping[str, str]) -> dict[str, str]:
    """
    Return the environment of a user's processes, without the service's own variables.

    Parameters
    ----------
    account
        None: the user that this process runs as.
    mine
        Variables of this process.
    """
    if account is None:
        found = pwd.getpwuid(os.geteuid())
        name, home = found.pw_name, found.pw_dir
    else:
        name, home = account.name, account.home
    kept = {key: mine[key] for key in _KEPT if key in mine}
    # Root's PATH may name folders that the account cannot enter.
    path = mine.get("PATH", PATH) if account is None else PATH
    return {**kept, "PATH": path, "HOME": home, "USER": name, "LOGNAME": name, "SHELL": "/bin/sh"}


# Resource limits of processes (``getrlimit``).

LEAST_MEMORY = 512 * 1024 * 1024
"""Bytes of address space that a worker itself needs, with room for what it reads."""

LEAST_FILES = 256
"""Files that a worker has open."""

LEAST_PROCESSES = 16
"""Processes of a worker, its threads and the tasks that it cannot do without."""


class ResourceLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Resource limits of each process, workers included; None keeps the system's limit.

    Core files are always off.

    Parameters
    ----------
    memory
        Address space, bytes.
    file_size
        Largest file that may be written, bytes.
    open_files
        Number of files open at one time.
    processes
        Number of processes of one local user, all workers and tasks together.

    Raises
    ------
    ValueError
        When a worker could not run within a limit.
    """

    memory: int | None = None
    file_size: int | None = None
    open_files: int | None = None
    processes: int | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("memory", LEAST_MEMORY),
            ("file_size", 1),
            ("open_files", LEAST_FILES),
            ("processes", LEAST_PROCESSES),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")

    def impose(self) -> None:
        """
        Limit this process and all processes started from now on.

        A worker limits itself: to limit another user's process takes a capability that services
        in containers do not have. Limits that are narrower already stay.
        """
        _narrow(resource.RLIMIT_CORE, 0)
        _narrow(resource.RLIMIT_AS, self.memory)
        _narrow(resource.RLIMIT_FSIZE, self.file_size)
        _narrow(resource.RLIMIT_NOFILE, self.open_files)
        _narrow(resource.RLIMIT_NPROC, self.processes)


def _narrow(which: int, value: int | None) -> None:
    if value is None:
        return
    _, most = resource.getrlimit(which)
    if most != resource.RLIM_INFINITY:
        value = min(value, most)
    resource.setrlimit(which, (value, value))
