"""What is shipped: the wheel, its manual pages, and the drafts for other package managers."""

import email
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bursar.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built here."""
    if find_spec("hatchling") is None:
        pytest.skip("needs hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_has_a_manual_page_for_each_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        pages = {name for name in packed.namelist() if "/share/man/man1/" in name}
        run = packed.read(next(page for page in pages if page.endswith("/bursar-run.1")))
    named = {page.rpartition("/")[2] for page in pages}

    assert {f"bursar-{entry.name}.1" for entry in COMMANDS} | {"bursar.1"} <= named
    assert "bursar-history-import.1" in named
    assert run.startswith(b'.TH "BURSAR-RUN" "1"')


def test_the_wheel_is_found_and_light(wheel: Path) -> None:
    """It has what its pages and grammars need, and nothing of tests or tools."""
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        told = packed.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    tops = {name.partition("/")[0].partition("-")[0] for name in names}

    assert tops == {"bursar"}
    assert {"bursar/py.typed", "bursar/classad/classad.lark", "bursar/page/assets/index.html"} <= (
        set(names)
    )
    metadata = email.message_from_string(told)
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    needed = [one for one in metadata.get_all("Requires-Dist", []) if "extra ==" not in one]
    assert len(needed) == len(PROJECT["dependencies"])


def test_the_wheel_runs_where_it_is_unpacked(wheel: Path, tmp_path: Path) -> None:
    """Nothing that the command line needs is left in the source tree."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", "import bursar; print(bursar.__file__)\n"
         "import sys; sys.argv = ['bursar', 'plan', 'first.toml']\n"
         "from bursar.cli.main import main; main()"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert str(tmp_path) in done.stdout
    assert done.stderr.startswith("bursar: first.toml: ")
    assert done.returncode == 2


def bounds(lines: list[str]) -> dict[str, str]:
    """Least version of each package, by its name without marks."""
    found = {}
    for line in lines:
        match = re.match(r"([\w-]+) ?>=([\w.]+)$", line)
        assert match, line
        found[match[1].replace("_", "-")] = match[2]
    return found


def test_the_conda_recipe_needs_what_the_project_needs() -> None:
    text = (ROOT / "packaging/conda-forge/recipe.yaml").read_text()
    (run,) = re.findall(r"  run:\n((?:    - .*\n)+)", text)
    needed = [line.strip("- ") for line in run.splitlines()]
    needed.remove("__linux")
    needed.remove(f"python {PROJECT['requires-python']}")

    assert bounds(needed) == bounds(PROJECT["dependencies"])
    assert f'version: "{PROJECT["version"]}"' in text


def test_the_spack_package_needs_what_the_project_needs() -> None:
    text = (ROOT / "packaging/spack/package.py").read_text()
    needed = dict(re.findall(r'depends_on\("py-([\w-]+)@([\w.]+):"(?:, type=\("build", "run"\))?\)',
                             text))  # fmt: skip

    assert needed == bounds(PROJECT["dependencies"])
    assert f'version("{PROJECT["version"]}"' in text
    for extra in re.findall(r'variant\("(\w+)"', text):
        for name, least in bounds(PROJECT["optional-dependencies"][extra]).items():
            assert f'depends_on("py-{name}@{least}:", when="+{extra}")' in text
