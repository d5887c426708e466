"""Files below a folder in which other processes still work."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class LiveFile(NamedTuple):
    """A file as it was at one moment: `mode` holds its permission bits."""

    path: Path
    mode: int
    content: bytes


def files_below(folder: Path) -> Iterator[LiveFile]:
    """
    Yield each regular file below a folder.

    Files and folders that another process removes during the walk are passed over, where
    `Path.rglob` raises `FileNotFoundError`.
    """
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            try:
                mode = path.stat().st_mode
                if stat.S_ISREG(mode):
                    yield LiveFile(path, stat.S_IMODE(mode), path.read_bytes())
            except FileNotFoundError:
                continue
