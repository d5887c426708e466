"""Resource limits of processes (``getrlimit``)."""

import resource

import msgspec

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
