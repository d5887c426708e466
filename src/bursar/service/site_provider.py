"""The site of a service: this machine, with one site for each local account, or a cluster."""

import stat
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bursar.dispatch.linux_processes import workers_of
from bursar.model.errors import InputError
from bursar.service.config import ServiceConfig
from bursar.service.engine.instance_homes import InstanceHomes
from bursar.service.restart_state import ServiceIdentity
from bursar.sites.local import LocalSite
from bursar.sites.protocol import Site
from bursar.worker.accounts import ResourceLimits, find_account
from bursar.worker.detached_workers import (
    ControlGroups,
    DetachedStarter,
    WorkerSpec,
    open_control_groups,
)
from bursar.worker.launch import LocalWorkers
from bursar.worker.workspace import prepare_workspace

PILOTS = "pilots"
"""Name of the folder, in the service's folder, with files of pilots."""

COMPLAINTS = "workers.log"
"""Name of the file, in the service's folder, with error output of workers on this machine."""


def make_site_provider(
    config: ServiceConfig, identity: ServiceIdentity, notify: Callable[[str], None]
) -> Callable[[str], Site]:
    """
    Return a function from a local account to the site for the account's workers.

    The empty account is the service's own.

    Parameters
    ----------
    notify
        Called with one line for people on each notable event.

    Raises
    ------
    InputError
        When the limits of tasks are too low for workers, or every account of this machine can
        read the key of sealed tasks.
    """
    if config.site.batch is not None:
        # Its model of queues is compiled code, which takes time and memory that others can save.
        from bursar.sites.batch import BatchSite

        folder = config.folder / PILOTS
        cluster = BatchSite(config.site, run=identity.run, folder=folder, lasting=True)
        return lambda account: cluster
    if config.sealed is not None:
        _check_mode(config.sealed.key)
    rules = config.tasks
    try:
        limits = ResourceLimits(
            memory=rules.memory,
            file_size=rules.file_size,
            open_files=rules.open_files,
            processes=rules.processes,
        )
    except ValueError as error:
        raise InputError(str(error), where="tasks") from None
    groups = open_control_groups(notify) if rules.cgroups else None
    known: dict[str, Site] = {}

    def site(account: str) -> Site:
        # Made on demand and kept: an account that does not exist fails only its own users.
        if account not in known:
            terms = _terms(config, account, limits, groups)
            starter = DetachedStarter(terms, living=workers_of(identity.run))
            known[account] = LocalSite(
                config.site, workers=partial(LocalWorkers, starter=starter), run=identity.run
            )
        return known[account]

    return site


def _check_mode(key: Path) -> None:
    """Refuse a key file that all accounts can read: workers of other accounts are sent the key."""
    try:
        mode = key.stat().st_mode
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(key)) from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise InputError(
            "everybody on this machine can read or change the key of sealed tasks",
            where=str(key),
            hint=f"chmod 600 {key}",
        )


def _terms(
    config: ServiceConfig, account: str, limits: ResourceLimits, groups: ControlGroups | None
) -> WorkerSpec:
    return WorkerSpec(
        account=find_account(account) if account else None,
        limits=limits,
        groups=groups,
        seal_key=str(config.sealed.key) if config.sealed is not None else "",
        python=config.tasks.python or sys.executable,
        errors=str(config.folder / COMPLAINTS),
    )


class AccountInstanceHomes(InstanceHomes):
    """
    Homes whose folders belong to the account under which a user's tasks run.

    Parameters
    ----------
    folder
        Path below which the homes lie.
    account
        Returns the local account of a user; empty: the service's own.
    """

    def __init__(self, folder: Path, account: Callable[[str], str]) -> None:
        super().__init__(folder)
        self._account = account

    def make(self, name: str, user: str) -> None:
        """
        Make a home for a user, unless the home exists.

        Raises
        ------
        OSError
        """
        account = self._account(user)
        self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        prepare_workspace(str(self.path(name)), find_account(account).owner if account else None)
