"""How much memory a worker's tasks may use together, and how much of a machine's is available."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

GROUP = Path("/proc/self/cgroup")
"""File in which Linux states the control groups of a process."""

GROUPS = Path("/sys/fs/cgroup")
"""Where control groups of version 2 are mounted."""


MEMORY = Path("/proc/meminfo")
"""File in which Linux states the memory that is available."""


def memory_limit(group: Path = GROUP, groups: Path = GROUPS) -> tuple[int | None, str]:
    """
    Return the bytes of this machine or, where it is less, of the process's control group.

    The bytes are None where the system states neither. The name of the control group, empty for the
    machine, says which processes share them.
    """
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        found = 0
    limits = [(found, "")] if found > 0 else []
    for folder in control_groups(group, groups):
        # The outermost has none; "max" is no number.
        with contextlib.suppress(OSError, ValueError):
            limits.append((int((folder / "memory.max").read_text()), str(folder)))
    return min(limits, default=(None, ""))


def control_groups(group: Path = GROUP, groups: Path = GROUPS) -> Iterator[Path]:
    """Yield the folders of the control groups of this process, the innermost first."""
    try:
        # Lines are "number:controllers:path"; version 2 has the number 0 and no controllers.
        paths = [line[3:] for line in group.read_text().splitlines() if line.startswith("0::")]
    except OSError:
        return
    for path in paths:
        place = groups / path.lstrip("/")
        # The limit of an outer group holds for the inner ones, too.
        for folder in (place, *place.parents):
            yield folder
            if folder == groups:
                break


def available_memory(meminfo: Path = MEMORY) -> int | None:
    """Return the memory that programs may still take, bytes; None where Linux does not say."""
    try:
        text = meminfo.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        name, _, amount = line.partition(":")
        number, _, unit = amount.strip().partition(" ")
        if name == "MemAvailable" and number.isdecimal() and unit == "kB":
            return int(number) * 1024
    return None
