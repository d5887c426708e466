"""The reference of the Python library says what the docstrings say."""

from tools.python_reference import PAGE, page, sections

import bursar


def test_the_page_is_what_the_docstrings_say() -> None:
    assert PAGE.read_text() == page(), "write it anew: python tools/python_reference.py"


def test_the_page_has_every_public_name() -> None:
    made = page()

    assert all(f"`bursar.{name}`" in made for name in bursar.__all__)


def test_sections_become_lists() -> None:
    """Several names share a text; roles become code."""
    text = "Say.\n\nParameters\n----------\na, b\n    Two :class:`bursar.Task`\n    lines.\n"
    text += "c\n    One."

    assert list(sections(text)) == [
        "Say.\n",
        "Parameters:\n",
        "- `a`, `b`: Two `bursar.Task` lines.\n- `c`: One.\n",
    ]
