"""What a throwaway cluster under Slurm requires of the machine, its folder and its settings."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from bursar.model.errors import InputError, SiteError
from bursar_devtools.testgrid.slurm_configuration import SlurmClusterSettings

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "sinfo")


PACKAGES = "slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins"
"""Debian's packages that hold them."""


LONGEST_SOCKET = 107
"""Bytes of a socket's path (unix(7))."""


_SOCKETS = ("run/munge.sock", "{node}/{node}_9999.4294967291")
"""In a cluster's folder. The second is of a job's script: with too long a name, no job starts."""


MOST_NODES = 500
"""Each is a daemon."""


_NAME = re.compile(r"[a-z][a-z0-9_]*")


def missing_programs() -> list[str]:
    """Programs of Slurm that are not on this machine."""
    return [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]


def check(folder: Path, settings: SlurmClusterSettings) -> None:
    """
    Looks at what is wanted before anything is made.

    Raises
    ------
    InputError
        When a value is out of range, or Slurm takes no such path.
    SiteError
        When programs are missing.
    """
    if not _NAME.fullmatch(settings.name):
        raise InputError(
            f"a cluster's name is lower-case letters, digits and _, got {settings.name!r}"
        )
    for name, least, most in (
        ("nodes", 1, MOST_NODES),
        ("cpus", 1, 4096),
        ("memory", 1, 10**8),
        ("latency", 0, 86_400),
    ):
        if not least <= getattr(settings, name) <= most:
            raise InputError(f"{name} must be {least} to {most}, got {getattr(settings, name)}")
    beyond = 1 + max(len(name.format(node=settings.node_names[-1])) for name in _SOCKETS)
    if len(os.fsencode(folder)) + beyond > LONGEST_SOCKET:
        raise InputError(
            f"the path is too long, at most {LONGEST_SOCKET - beyond} bytes",
            where=str(folder),
            hint="sockets lie in it; name a shorter one",
        )
    if odd := re.search(r"[^\w./+@~-]", str(folder)):
        raise InputError(f"Slurm's configuration takes no path with {odd[0]!r}", where=str(folder))
    if absent := missing_programs():
        raise SiteError(how_to_install(absent))


def how_to_install(programs: Sequence[str]) -> str:
    return (
        f"{', '.join(programs)}: not found; Debian and Ubuntu have Slurm in the packages {PACKAGES}"
    )


def search_path() -> str:
    """Daemons lie where plain users do not look."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
