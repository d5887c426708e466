"""A small file system of its own, for tests of full disks."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """
    Mount a file system in memory, and give its folder.

    The folder lies outside of those that pytest clears: a test that was killed leaves a mounted
    file system, which pytest cannot remove and would stop at.

    Parameters
    ----------
    size
        As ``mount`` wants it, such as ``"1m"``.
    """
    with tempfile.TemporaryDirectory(prefix="bursar-disk-", ignore_cleanup_errors=True) as name:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", name]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("this machine does not let us mount a small disk")
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


def resize(disk: Path, size: str) -> None:
    """Give a mounted small disk another size."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
