"""What contracts of runs may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.command import CommandFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[CommandFolder]:
    """Give an empty folder for commands, and end what they leave."""
    folder = CommandFolder(tmp_path)
    yield folder
    folder.close()
