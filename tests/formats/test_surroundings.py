"""Containers, environments and modules of campaign files: what is written and what it becomes."""

import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bursar.formats.campaign_file import campaign_schema, read_campaign_toml
from bursar.model.errors import InputError
from bursar.model.surroundings import (
    CondaEnvironment,
    Container,
    Modules,
    Surrounding,
    UvEnvironment,
    forbidden,
)


def tasks_of(folder: Path, text: str) -> list[Any]:
    """Read a campaign, which its schema must allow, too."""
    path = folder / "c.toml"
    path.write_text(text)
    jsonschema.validate(tomllib.loads(text), campaign_schema())
    return list(read_campaign_toml(path).workflow.tasks)


def around(task: Any) -> list[Any]:
    """What a task's program runs in."""
    return [step for step in task.steps if isinstance(step, Surrounding)]


@pytest.mark.parametrize(
    ("setting", "steps", "inputs"),
    [
        ('container = "docker://python:3.12"', [Container("docker://python:3.12")], []),
        ('container = "./images//a.sif"', [Container("images/a.sif")], ["images/a.sif"]),
        ('container = "/opt/a.sif"', [Container("/opt/a.sif")], []),
        (
            'container = {image = "i", runtime = "podman", options = ["--pid=host"], gpu = true,'
            ' binds = ["/a:/b:ro"]}',
            [Container("i", "podman", ("--pid=host",), ("/a:/b:ro",), True)],
            [],
        ),
        (
            'conda = "environment.yml"',
            [CondaEnvironment(file="environment.yml")],
            ["environment.yml"],
        ),
        ('conda = "base"', [CondaEnvironment(name="base")], []),
        ('conda = "/opt/env"', [CondaEnvironment(prefix="/opt/env")], []),
        ('uv = "requirements.txt"', [UvEnvironment("requirements.txt")], ["requirements.txt"]),
        ('uv = "."', [UvEnvironment(project=".")], ["pyproject.toml"]),
        (
            'uv = "p/pyproject.toml"',
            [UvEnvironment(project="p")],
            ["p/pyproject.toml", "p/uv.lock"],
        ),
        ('uv = ["a==1", "b"]', [UvEnvironment(packages=("a==1", "b"))], []),
        (
            'uv = {packages = ["a"], python = "3.12"}',
            [UvEnvironment(packages=("a",), python="3.12")],
            [],
        ),
        ('modules = ["gcc/12", "mpi"]', [Modules(("gcc/12", "mpi"))], []),
        (
            'container = "i"\nmodules = ["apptainer"]',
            [Modules(("apptainer",)), Container("i")],
            [],
        ),
        ('container = "none"\nmodules = []', [], []),
    ],
)
def test_what_is_written_becomes_steps_and_inputs(
    tmp_path: Path, setting: str, steps: list[Any], inputs: list[str]
) -> None:
    """Of a project, files that are there are inputs; the first has to be there."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "uv.lock").touch()
    (task,) = tasks_of(tmp_path, f'[tasks.t]\ncommand = "true"\n{setting}\n')

    assert around(task) == steps
    assert [file.name for file in task.inputs] == inputs


def test_a_file_among_the_inputs_is_one_input(tmp_path: Path) -> None:
    text = '[tasks.t]\ncommand = "cat {inputs}"\ninputs = ["e.yml"]\nconda = "e.yml"\n'
    (task,) = tasks_of(tmp_path, text)
    assert [file.name for file in task.inputs] == ["e.yml"]


def test_parameters_stand_in_images_packages_and_modules(tmp_path: Path) -> None:
    text = """
        [parameters]
        v = [1, 2]
        [task]
        command = "true"
        modules = ["gcc/{v}"]
        container = { image = "i:{v}", options = ["--tag={v}"], binds = ["/d/{v}:/d"] }
    """
    first, second = tasks_of(tmp_path, text)
    assert around(second) == [
        Modules(("gcc/2",)),
        Container("i:2", options=("--tag=2",), binds=("/d/2:/d",)),
    ]
    assert around(first)[0] == Modules(("gcc/1",))


def test_a_task_s_own_takes_the_place_of_the_one_of_all(tmp_path: Path) -> None:
    text = """
        [task]
        command = "true"
        container = "all"
        modules = ["m"]
        [tasks.as_all]
        [tasks.other]
        uv = ["a"]
        [tasks.none]
        container = "none"
        modules = []
    """
    as_all, other, none = tasks_of(tmp_path, text)
    assert around(as_all) == [Modules(("m",)), Container("all")]
    assert around(other) == [Modules(("m",)), UvEnvironment(packages=("a",))]
    assert around(none) == []


@pytest.mark.parametrize(
    "setting",
    [
        'container = "a"\nuv = ["b"]',
        'conda = "a"\nuv = ["b"]',
        'container = {runtime = "docker"}',
        'container = {image = "a", runtime = "lxc"}',
        "container = 3",
        'modules = ["-x"]',
        'uv = {requirements = "a.txt", packages = ["b"]}',
        'uv = {python = "3"}',
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(tmp_path: Path, setting: str) -> None:
    text = f'[tasks.t]\ncommand = "true"\n{setting}\n'
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(InputError):
        read_campaign_toml(path)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tomllib.loads(text), campaign_schema())


@pytest.mark.parametrize(
    ("container", "without_mounts"),
    [
        (Container("i"), True),
        (Container("i", gpu=True), True),
        (Container("i", binds=("/:/host",)), False),
        (Container("i", options=("--volume=/:/host",)), False),
        (Container("/"), False),
    ],
)
def test_an_administrator_forbids_mounts_or_all(container: Container, without_mounts: bool) -> None:
    """An absolute path as image could be any folder of the machine."""
    assert forbidden(container, "allowed") == ""
    assert (forbidden(container, "without-mounts") == "") == without_mounts
    assert forbidden(container, "forbidden") == "containers are not allowed here"
