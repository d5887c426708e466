"""The user's own settings: weights of projects, and what the history keeps."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

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


class HistoryTable(TomlTable, frozen=True):
    """Rules for what the user's history keeps of ended tasks."""

    parameters: Annotated[
        Literal["plain", "hash"],
        Meta(description="Whether values of parameters are kept as they are, or as digests only."),
    ] = "plain"
    keep: Annotated[
        int, Meta(description="Observations of each kind of task, the newest.", ge=1, le=10**9)
    ] = 100_000
    keep_days: (
        Annotated[
            float,
            Meta(description="Days after which observations are forgotten; without, never.", gt=0),
        ]
        | None
    ) = None


class ProjectsFile(TomlTable, frozen=True):
    """The file as a whole."""

    projects: Annotated[dict[str, ProjectTable], Meta(description="Projects by name.")] = (
        msgspec.field(default_factory=dict)
    )
    history: Annotated[HistoryTable, Meta(description="What the history keeps.")] = HistoryTable()


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
    if not name:
        return 1.0
    projects = _read(environment).projects
    return projects[name].weight if name in projects else 1.0


def history_settings(environment: Mapping[str, str] = os.environ) -> HistoryTable:
    """
    Return what the user's history keeps; the defaults where the file does not exist.

    Raises
    ------
    InputError
        When the file cannot be read, or holds something else.
    """
    return _read(environment).history


def _read(environment: Mapping[str, str]) -> ProjectsFile:
    path = projects_file(environment)
    if not path.exists():
        return ProjectsFile()
    return read_toml(path, lambda document: decode(document, ProjectsFile))
