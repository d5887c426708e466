"""The file with the weights of a user's projects: ``~/.config/bursar/projects.toml``."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from bursar.formats.decoding import TomlTable, decode
from bursar.formats.file_text import read_toml

VARIABLE = "BURSAR_PROJECTS"
"""Environment variable that names another file."""


class ProjectTable(TomlTable, frozen=True):
    """A project of the user's own runs: what a group of users is at a service."""

    weight: Annotated[
        float,
        Meta(description="Share of a machine beside other projects that run there.", gt=0, le=1e6),
    ] = 1.0


class ProjectsFile(TomlTable, frozen=True):
    """The file as a whole."""

    projects: Annotated[dict[str, ProjectTable], Meta(description="Projects by name.")] = (
        msgspec.field(default_factory=dict)
    )


def projects_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file, which need not exist."""
    if value := environment.get(VARIABLE, ""):
        return Path(value).expanduser()
    folder = environment.get("XDG_CONFIG_HOME", "") or "~/.config"
    return Path(folder).expanduser() / "bursar" / "projects.toml"


def project_weight(name: str, environment: Mapping[str, str] = os.environ) -> float:
    """
    Return the weight of a project; 1 where the file, or the project in it, is missing.

    Parameters
    ----------
    name
        Name of the project; empty: none, and no file is read.

    Raises
    ------
    InputError
        When the file cannot be read, or holds something else.
    """
    path = projects_file(environment)
    if not name or not path.exists():
        return 1.0
    projects = read_toml(path, lambda document: decode(document, ProjectsFile)).projects
    return projects[name].weight if name in projects else 1.0
