"""What contracts of runs may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.command import CommandFolder


@pytest.fixture
def folder(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CommandFolder]:
    """Give an empty folder for commands, and end what they leave."""
    # What another test has run must not tell run times.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.delenv("BURSAR_HISTORY", raising=False)
    folder = CommandFolder(tmp_path)
    yield folder
    folder.close()
