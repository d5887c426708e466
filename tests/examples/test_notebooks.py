"""The notebooks of the documentation run, and are kept with what they print."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def outputs(notebook: Any) -> list[list[str]]:
    """Return the kinds of output of each cell with code."""
    return [
        sorted({one["output_type"] for one in cell["outputs"]})
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) == 3


# The kernel's sockets belong to a loop of their own, whose end pytest's warnings would count.
@pytest.mark.ci
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_and_is_kept_with_its_output(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cell fails, and each has output of the kinds that the file shows."""
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat (the extra docs)")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient (the extra docs)")
    pytest.importorskip("ipykernel", reason="needs ipykernel (the extra docs)")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    notebook = nbformat.read(file, 4)
    shown = outputs(notebook)
    nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    assert outputs(notebook) == shown
    assert not any("error" in kinds for kinds in shown)
