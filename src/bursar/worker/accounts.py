"""Local accounts that tasks run as."""

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass

from bursar.dispatch.linux import close_memory
from bursar.model.errors import SiteError

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
