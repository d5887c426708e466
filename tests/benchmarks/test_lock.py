"""The lock file pins what pyproject.toml asks for; an audit without data is no pass."""

import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bursar.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = (ROOT, ROOT / "packages" / "papers", ROOT / "packages" / "devtools")
OURS = {"bursar", "bursar-papers", "bursar-devtools"}
LINE = re.compile(
    r"^([A-Za-z0-9._-]+)==(\S+)(?: ; (.*?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
    re.M,
)
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def pinned(python: str) -> dict[str, str]:
    """Return version by name for a Python on Linux."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
    }
    found: dict[str, str] = {}
    for name, version, marker, _ in LINE.findall((ROOT / "requirements.lock").read_text()):
        one = Requirement(f"{name}=={version}" + (f" ; {marker}" if marker else ""))
        if one.marker is None or one.marker.evaluate(environment):
            assert canonicalize_name(name) not in found, name
            found[canonicalize_name(name)] = version
    return found


def asked_by(folder: Path, *, every_extra: bool = False) -> list[str]:
    """Return what a distribution asks for, with extra "dev" or all, but for our own others."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    extras = project["project"].get("optional-dependencies", {})
    asked = [
        *project["project"]["dependencies"],
        *(text for name in extras if every_extra or name == "dev" for text in extras[name]),
        *project["build-system"]["requires"],
    ]
    return [text for text in asked if Requirement(text).name not in OURS]


def test_each_distribution_asks_for_the_others_of_its_own_version() -> None:
    """They are developed together, and a mixture has never been tested."""
    versions = {
        folder: tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for folder in PROJECTS
    }
    assert {project["name"] for project in versions.values()} == OURS
    assert {project["version"] for project in versions.values()} == {VERSION}
    for folder, project in versions.items():
        pins = {
            one.name: str(one.specifier)
            for one in map(Requirement, project["dependencies"])
            if one.name in OURS
        }
        assert set(pins.values()) <= {f"=={VERSION}"}, folder
        assert ("bursar" in pins) == (project["name"] != "bursar"), folder


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_file_is_within_the_projects_bounds(python: str) -> None:
    """Everything that the project, its tests and its build ask for is pinned, once."""
    wanted = [text for project in PROJECTS for text in asked_by(project)]
    assert len(wanted) > 50
    versions = pinned(python)
    for text in wanted:
        asked = Requirement(text)
        name = canonicalize_name(asked.name)
        assert name in versions, f"{text}: run make lock"
        assert asked.specifier.contains(versions[name]), (text, versions[name])


def test_the_demo_uses_part_of_the_same_versions() -> None:
    """What the product, its charts and its build ask for, by the same hashes."""
    whole, demo = (
        {(name, version): hashes for name, version, _, hashes in LINE.findall(text)}
        for text in (
            (ROOT / file).read_text() for file in ("requirements.lock", "requirements-demo.lock")
        )
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["charts"],
        *project["build-system"]["requires"],
        "editables",
    ]
    names = {canonicalize_name(Requirement(text).name) for text in asked}

    assert demo.items() <= whole.items(), "run make lock"
    assert names <= {canonicalize_name(name) for name, _ in demo}
    assert len(demo) < len(whole) / 2


def test_every_dependency_has_a_lower_bound() -> None:
    """Also those that are not pinned, as the one that changes code at random."""
    for text in (text for one in PROJECTS for text in asked_by(one, every_extra=True)):
        assert any(one.operator in (">=", "==") for one in Requirement(text).specifier), text


def test_every_pin_has_hashes() -> None:
    """pip's --require-hashes would refuse a line without one."""
    text = (ROOT / "requirements.lock").read_text()
    pins = re.findall(r"^\S+==", text, re.MULTILINE)
    assert len(pins) == len(LINE.findall(text)) > 100
    assert "--index-url" not in text
    assert "file:" not in text


def verdict(said: str) -> tuple[int, list[str]]:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "tools" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    status, lines = module.verdict(said)
    return status, lines


GOOD = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "not found on PyPI"}
FAULTY = {
    "name": "c",
    "version": "2",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"], "aliases": [], "description": ""}],
}


@pytest.mark.parametrize(
    ("said", "status", "words"),
    [
        (json.dumps({"dependencies": [GOOD]}), 0, "no known faults in 1 packages"),
        (json.dumps({"dependencies": [GOOD, FAULTY]}), 1, "c 2: PYSEC-1, mended in 3"),
        (json.dumps({"dependencies": [SKIPPED, FAULTY]}), 1, "c 2: PYSEC-1"),
        (json.dumps({"dependencies": [GOOD, SKIPPED]}), 3, "NOT AUDITED: no data for 1 of 2"),
        (json.dumps({"dependencies": []}), 3, "NOT AUDITED"),
        ("", 3, "NOT AUDITED: pip-audit gave no answer"),
        ("[]", 3, "NOT AUDITED"),
    ],
)
def test_an_audit_passes_only_with_data_on_everything(said: str, status: int, words: str) -> None:
    """Faults are named; what could not be looked up is said in one loud line, and is no pass."""
    found, lines = verdict(said)
    assert found == status
    assert words in lines[0]
    assert len(lines) == 1
