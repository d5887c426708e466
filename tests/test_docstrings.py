"""Docstring entries say what the signature does not."""

from pathlib import Path

import pytest
from tools.check_docstrings import PUBLISHED, empty_entries, without

ROOT = Path(__file__).parents[1]

ROOMS = (
    "api",
    "broker",
    "classad",
    "cli",
    "cluster",
    "dispatch",
    "formats",
    "history",
    "market",
    "model",
    "planning",
    "provisioning",
    "remote",
    "replicas",
    "report",
    "sealing",
    "service",
    "simulation",
    "sites",
    "store",
    "worker",
)
"""Rooms whose entries have been gone through."""

CHECKED = sorted(path for room in ROOMS for path in (ROOT / "src" / "bursar" / room).rglob("*.py"))

SOURCE = '''
class Example:
    """
    Say something.

    Parameters
    ----------
    site
        Name of the site.
    """

    site: str

def wait(processors: int, patience: float) -> bool:
    """
    Wait.

    Parameters
    ----------
    processors
        Number of processors.
    patience
        Seconds to wait, at most.

    Raises
    ------
    ValueError
        Where none are left.
    """

def name_of(site: str) -> str:
    """
    Return a name.

    Parameters
    ----------
    site
        The site.

    Returns
    -------
    str
        Name.
    """
'''


def test_no_entry_restates_the_signature() -> None:
    """An entry of a docstring is there for a unit, a range, a meaning, an error or a source."""
    assert len(CHECKED) > 150
    assert all((ROOT / "src" / "bursar" / room).is_dir() for room in ROOMS)

    found = [
        f"{path.relative_to(ROOT)}:{entry.first}: {entry.text}"
        for path in CHECKED
        if not path.as_posix().endswith(PUBLISHED)
        for entry in empty_entries(path.read_text(encoding="utf-8"))
    ]

    assert found == []


def test_an_empty_entry_is_found_and_removed_with_its_section() -> None:
    found = empty_entries(SOURCE)

    assert [(entry.section, entry.text) for entry in found] == [
        ("Parameters", "Name of the site."),
        ("Parameters", "Number of processors."),
        ("Parameters", "The site."),
        ("Returns", "Name."),
    ]
    left = without(SOURCE, found)
    assert empty_entries(left) == []
    assert left.count("Parameters") == 1
    assert "Returns" not in left
    assert "Seconds to wait, at most." in left
    assert '    """\n    Return a name.\n    """\n' in left


@pytest.mark.parametrize(
    "text",
    ["Seconds.", "Number of processors. Positive.", "Processors; None: all.", "Slots as in [1]_."],
)
def test_a_word_more_is_enough(text: str) -> None:
    source = SOURCE.replace("Number of processors.", text)

    assert text not in [entry.text for entry in empty_entries(source)]
