"""
Build hook: puts the manual page of each command into the wheel, made from the commands' own help.

Installers copy ``share/man/man1`` beside ``bin``, where man finds it by ``PATH``.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NEEDS = ["msgspec>=0.18.6", "typer>=0.29"]
"""What the command line has to import to tell its help."""


class ManualPages(BuildHookInterface[Any]):
    """Writes the pages before a wheel is packed; an editable one has none."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """Return what the hook needs beyond the build system's own."""
        return NEEDS

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the pages, and add them to what the wheel holds."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()
        pages = Path(self._folder.name)
        done = subprocess.run(
            [sys.executable, "-m", "bursar", "man", "--write", str(pages)],
            env={**os.environ, "PYTHONPATH": str(Path(self.root) / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the manual pages cannot be written: {done.stderr.strip()}")
        for page in sorted((pages / "man1").iterdir()):
            build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the pages, which are in the wheel now."""
        if self._folder is not None:
            self._folder.cleanup()
