"""Help of all commands: sentences, groups, and the reference page that is made of them."""

import importlib.util
import re
from pathlib import Path
from typing import Any

from bursar.cli.main import COMMANDS, PURPOSES

TOOL = Path(__file__).resolve().parents[2] / "tools" / "help_texts.py"

NO_BEGINNING = {
    "Of",
    "By",
    "As",
    "Such",
    "Whose",
    "It",
    "Where",
    "Also",
    "Few",
    "Only",
    "Most",
    "So",
}
"""Words that begin no first sentence: what is talked about would have to be guessed."""


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("help_texts", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_and_option_says_in_sentences_what_is_meant() -> None:
    """No text is absent, none begins with a word that leaves the subject out, each ends."""
    texts = list(tool().help_texts())

    assert len(texts) > 600
    for command, name, text in texts:
        place = f"{command} {name}: {text}"
        assert text, place
        assert text[0].isupper(), place
        assert text.split()[0].strip(",.:") not in NO_BEGINNING, place
        assert text.endswith((".", ")", '"')), place
        # Taken for markup, and left out where the help is printed.
        assert not re.search(r"\[[a-z]", text), place


def test_every_command_has_one_purpose() -> None:
    """A command in no group would be missing in the help."""
    names = [name for group in PURPOSES.values() for name in group.split()]

    assert sorted(names) == sorted(entry.name for entry in COMMANDS)


def test_the_help_lists_commands_by_purpose(folder: Any) -> None:
    shown = folder.bursar("--help").stdout
    places = [shown.index(f"{purpose}:\n") for purpose in PURPOSES]

    assert places == sorted(places)
    assert places[0] < shown.index("\n  run ") < places[1] < shown.index("\n  logs ") < places[2]


def test_the_reference_page_is_that_of_the_help() -> None:
    """Made anew by ``python tools/help_texts.py --write``."""
    made = tool()
    assert made.PAGE.read_text() == made.page()
