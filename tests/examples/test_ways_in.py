"""Pages for those who have something: their commands are run as shown, on the files shown."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.documents import ShownCommand, ShownFile, carry_out, steps_of
from tests.formats.test_nextflow_trace import executed, trace

from bursar.slurm_shim.shim_folder import ShimFolder

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
SITE = '[site.{}]\nkind = "local"\nprocessors = {}\nunit_price = 0.001\nmemory = "{} GB"\n'
SITES = SITE.format("here", 20, 64)
PROGRAM = "#!/bin/sh\necho $0 $@\n"

NEEDED: Mapping[str, Mapping[str, str]] = {
    "sbatch-scripts": {"sites.toml": SITES, "fit": PROGRAM, "logs/there": ""},
    "hyperqueue": {"sites.toml": SITES, "fit": PROGRAM, "prepare": PROGRAM},
    "openjd": {"sites.toml": SITES, "bin/render": PROGRAM, "bin/encode": PROGRAM},
    "command-lists": {
        "grid.toml": SITES,
        "cloud.toml": SITES,
        "fit.py": "import sys; print(sys.argv)\n",
        "bin/convert": '#!/bin/sh\ncp "$1" "$2"\n',
        "a.jpg": "a",
        "b.jpg": "b",
    },
    "nextflow": {},
    "slurm-shim": {"fit.sh": "#!/bin/sh\nsleep 3\n"},
}
"""Files that a reader of the page has, by the page."""

LATE = re.compile(r" fit\.sh +\w+ +(R|PD) ")
"""Lines that depend on how far a queue is."""


@pytest.mark.ci
@pytest.mark.parametrize("page", NEEDED)
def test_each_command_of_the_page_prints_what_is_shown(page: str, tmp_path: Path) -> None:
    """Files that the page shows come first, as the reader has them."""
    for name, text in NEEDED[page].items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    if page == "nextflow":
        trace(tmp_path, executed(3)[0])
    steps = steps_of(GUIDES / f"{page}.md")
    files = [step for step in steps if isinstance(step, ShownFile)]
    commands = [
        ShownCommand(
            step.line,
            [
                line.replace("/home/ann", str(tmp_path))
                for line in step.printed
                if not LATE.search(line)
            ],
        )
        for step in steps
        if isinstance(step, ShownCommand)
    ]
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    try:
        assert carry_out([*files, *commands], tmp_path, home | {"PATH": path}) == len(commands) > 0
    finally:
        if page == "slurm-shim":
            ShimFolder(tmp_path / "bin-bursar").stop()


@pytest.mark.parametrize(
    "page",
    [p.stem for p in sorted(GUIDES.glob("*.md")) if p.read_text().startswith("# I have")],
)
def test_each_way_in_says_what_is_lost(page: str) -> None:
    text = (GUIDES / f"{page}.md").read_text()
    assert re.search(r"^(## )?What is lost", text, re.MULTILINE), page
    assert f"({page}.md)" in (GUIDES / "index.md").read_text(), page
