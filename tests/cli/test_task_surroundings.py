"""Containers, environments and modules of tasks, by the real command from file to result."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.container_runtimes import StandIn
from tests.worker.test_environments import machine as machine
from tests.worker.test_environments import wheel as wheel


@pytest.fixture
def docker(machine: Path) -> Iterator[StandIn]:
    """A stand-in for Docker that has no image yet."""
    found = StandIn(machine, "docker")
    yield found
    found.close()


@pytest.mark.ci
def test_a_sweep_over_images_pulls_each_once_before_it_begins(folder: Any, docker: StandIn) -> None:
    folder.write(
        "c.toml",
        """
        [campaign]
        name = "c"
        [parameters]
        version = ["1", "2"]
        seed = [1, 2]
        [task]
        retries = 0
        container = { image = "docker://box:{version}", runtime = "docker" }
        command = "echo in $(pwd) {version}.{seed} > {outputs}"
        outputs = ["{version}.{seed}"]
        """,
    )
    ran = folder.bursar("run", "c.toml")
    assert docker.lines("pulls") == ["box:1", "box:2"]
    assert 'pulling "box:1" with docker\npulling "box:2" with docker' in ran.stderr
    assert "4 of 4 succeeded" in ran.stdout
    assert "1.2" in (folder.run / "files" / "1.2").read_text()
    assert len([line for line in docker.lines("commands") if line.startswith("run ")]) == 4

    again = folder.bursar("run", "c.toml")
    assert "4 of 4" in again.stdout + again.stderr
    assert len([line for line in docker.lines("commands") if line.startswith("run ")]) == 4

    text = (folder.path / "c.toml").read_text().replace("box:{version}", "box:1")
    folder.write("c.toml", text)
    folder.bursar("run", "c.toml")
    # Those of version 2 are in another image now, and their results are others.
    assert len([line for line in docker.lines("commands") if line.startswith("run ")]) == 6


def test_each_kind_of_environment_runs(folder: Any, machine: Path, wheel: Path) -> None:
    """The defaults of [task] hold unless a task states its own, or none."""
    (folder.path / "environment.yml").write_text("dependencies: [x]\n")
    folder.write(
        "c.toml",
        f"""
        [campaign]
        name = "c"
        [task]
        conda = "environment.yml"
        modules = ["gcc"]
        [tasks.conda]
        command = "tool && gcc"
        [tasks.uv]
        command = ["greet"]
        uv = ["greeting @ {wheel.as_uri()}"]
        [tasks.known]
        command = ["tool"]
        conda = "known"
        modules = []
        [tasks.none]
        command = "command -v tool gcc || echo nothing"
        conda = "none"
        modules = []
        """,
    )
    folder.bursar("run", "c.toml")
    said = {name: folder.bursar("logs", folder.run.name, name).stdout for name in NAMES}
    assert said == {
        "conda": "from conda\nfrom a module\n",
        "uv": "from uv\n",
        "known": "from known\n",
        "none": "nothing\n",
    }


NAMES = ("conda", "uv", "known", "none")


def test_a_changed_file_of_an_environment_makes_its_tasks_run_again(
    folder: Any, machine: Path
) -> None:
    (folder.path / "e.yml").write_text("dependencies: [x]\n")
    folder.write(
        "c.toml", '[tasks.t]\ncommand = "tool > {outputs}"\noutputs = ["o"]\nconda = "e.yml"'
    )
    folder.bursar("run", "c.toml")
    (folder.path / "e.yml").write_text("dependencies: [y]\n")
    again = folder.bursar("run", "c.toml", "--explain")
    assert "input e.yml changed: t" in again.stderr


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            'container = {image = "absent:1", runtime = "docker"}',
            'docker cannot pull "absent:1": Error response from daemon',
        ),
        ('container = "x:1"\nconda = "e"', "expected container or conda, not both"),
        ('container = {image = "x.sif", runtime = "docker"}', 'docker knows no image "x.sif"'),
        ('container = {image = "x", binds = ["data"]}', "expected SOURCE, SOURCE:TARGET"),
        ('container = {image = "x", runtime = "lxc"}', 'tasks.t.container.runtime: expected "appt'),
        ('container = "--privileged"', "tasks.t.container: expected the name of an image"),
        ('container = "images/x.sif"', 'no task makes "images/x.sif"'),
        ('conda = "e.yml"', 'no task makes "e.yml"'),
        ('conda = "nowhere"', "conda has no environment to be entered for the conda environment"),
        ('conda = "./e"', "expected an absolute path of an environment"),
        ('uv = {packages = ["a"], project = "."}', "expected one of requirements, project and"),
        ('uv = "../p"', "tasks.t.uv: "),
        ('modules = ["absent"]', "cannot load the module absent: ERROR: Unable to locate"),
        ('modules = ["-f"]', "expected the name of a module"),
        ('container = "{nothing}"', "tasks.t.container: "),
    ],
)
def test_what_is_wrong_or_missing_is_one_line_before_anything_begins(
    folder: Any, docker: StandIn, setting: str, message: str
) -> None:
    folder.write("c.toml", f'[tasks.t]\ncommand = "true"\n{setting}\n')
    refused = folder.bursar("run", "c.toml", status=2)

    assert message in refused.stderr, refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (folder.path / "runs").exists()


ONE = """
[task]
retries = 0
[tasks.t]
command = ["{command}"]
container = {{ image = "{image}", runtime = "docker" }}
"""


def test_a_run_may_begin_without_what_is_missing(folder: Any, docker: StandIn) -> None:
    """The failure then says what could not be had."""
    folder.write("c.toml", ONE.format(command="true", image="absent"))
    ran = folder.bursar("run", "c.toml", "--anyway", status=1)
    assert 'docker cannot pull "absent": Error response from daemon' in ran.stdout + ran.stderr


def test_a_program_that_an_image_lacks_is_explained(folder: Any, docker: StandIn) -> None:
    folder.write("c.toml", ONE.format(command="no-such", image="box:1"))
    ran = folder.bursar("run", "c.toml", status=1)
    said = " ".join((ran.stdout + ran.stderr).split())
    assert '127: the image "box:1" has no such program' in said
