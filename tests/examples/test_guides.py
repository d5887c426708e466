"""What the guides show is what Bursar reads."""

import os
import re
import shlex
from pathlib import Path

import pytest

import bursar

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md")) + sorted((ROOT / "examples").rglob("*.md"))
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


def blocks(kind: str) -> list[tuple[str, str]]:
    """Page and text of each fenced block of a kind in the guides."""
    return [
        (page.stem, text)
        for page in GUIDES
        for text in re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), re.M | re.S)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every link to a file of the project leads to one."""
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize(
    ("page", "text"), [(p, t) for p, t in blocks("toml") if t.startswith("[campaign]")]
)
def test_whole_campaigns_in_the_guides_are_read(page: str, text: str, tmp_path: Path) -> None:
    """A reader who copies one gets tasks, not an error."""
    (tmp_path / "lib").mkdir()
    for name in ("A301.dat", "A302.dat", "wing.sh", "text.txt", "model.py", "lib/fit.py"):
        (tmp_path / name).touch()
    file = tmp_path / "campaign.toml"
    file.write_text(text)

    assert len(bursar.read_campaign(file).workflow.tasks) > 1


def test_the_first_campaign_in_the_guide_is_the_example() -> None:
    """The guide prints the file that it tells the reader to run."""
    shown = next(text for page, text in blocks("toml") if page == "first-campaign")

    assert shown == (ROOT / "examples" / "first.toml").read_text()


@pytest.mark.parametrize(("page", "text"), blocks("python"))
def test_python_in_the_guides_compiles(page: str, text: str) -> None:
    """And the names it takes from bursar exist."""
    compile(text, page, "exec")
    for name in re.findall(r"\bbursar\.([A-Za-z]\w*)(?!\.)\b", text):
        if not text.count(f"from bursar.{name}") and name not in ("dispatch", "formats"):
            assert hasattr(bursar, name), name


def test_commands_in_the_guides_exist() -> None:
    """Each command line shown has a command and options that are there."""
    from typer.main import get_command

    from bursar.cli.main import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    for page, text in blocks(""):
        for line in text.splitlines():
            if not line.startswith("bursar "):
                continue
            words = shlex.split(re.split(r"\s{3,}", line)[0])
            assert words[1] in commands, (page, line)
            command = commands[words[1]]
            if hasattr(command, "commands"):
                named = "" if words[2:3] == [] or words[2].startswith("-") else words[2]
                does_without = not named and command.invoke_without_command
                assert named in command.commands or does_without, (page, line)
                command = command.commands.get(named, command)
            known = {o for p in command.params for o in p.opts}
            ours = words[2 : words.index("--")] if "--" in words else words[2:]
            options = {word for word in ours if word.startswith("--")}
            assert options <= known, (page, line)
            for word in words[2:]:
                if word.startswith("examples/"):
                    assert os.path.exists(ROOT / word), (page, line)
