"""Environments of conda and uv, and modules: made once, entered by variables, refused in a line."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worker.test_worker import ONCE, one, task

from bursar.model.surroundings import CondaEnvironment, Container, Modules, UvEnvironment
from bursar.model.task import Exec, File, Shell, Status
from bursar.worker.environments import (
    NotReady,
    ReadySurrounding,
    changes,
    make_ready,
    refuse_other_files,
)

CONDA = """\
#!/bin/sh
# Takes what conda documents: env create --prefix P --file F; run (--prefix P | --name N) COMMAND
echo "$@" >> {log}
case "$1 $2" in
"env create")
  test "$3 $5" = "--prefix --file" || exit 2
  grep -q absent "$6" && {{ echo "PackagesNotFoundError: absent" >&2; exit 1; }}
  grep -q slow "$6" && sleep 60
  sleep 0.2; mkdir -p "$4/bin"; printf '#!/bin/sh\\necho from conda\\n' > "$4/bin/tool"
  chmod +x "$4/bin/tool";;
"run --prefix") P=$3; shift 3;;
"run --name")
  test "$3" = known || {{ echo "EnvironmentLocationNotFound: not there" >&2; exit 1; }}
  P={known}; shift 3;;
*) exit 2;;
esac
test -z "$P" && exit 0
echo "a script of the environment speaks"
CONDA_PREFIX=$P PATH=$P/bin:$PATH exec "$@"
"""

PROFILE = """\
PATH=/nowhere:$PATH
module() {
  shift
  for name; do
    test "$name" = absent && { echo "ERROR: Unable to locate a modulefile" >&2; return 1; }
    PATH=$HOME/modules/$name:$PATH LOADEDMODULES=$LOADEDMODULES:$name; unset UNWANTED
    export PATH LOADEDMODULES
  done
}
"""


@pytest.fixture
def machine(tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with stand-ins for conda and for the command of modules."""
    home: Path = tmp_path_factory.mktemp("home")
    (home / "bin").mkdir()
    program(home / "bin" / "conda", CONDA.format(log=home / "log", known=home / "known"))
    program(home / "known" / "bin" / "tool", "#!/bin/sh\necho from known\n")
    program(home / "modules" / "gcc" / "gcc", "#!/bin/sh\necho from a module\n")
    (home / ".bash_profile").write_text(PROFILE)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{home}/bin:{os.environ['PATH']}")
    return home


def program(path: Path, text: str) -> None:
    """Write a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def ready(step: Any, folder: Path) -> ReadySurrounding:
    """Make something ready as the begin of a run does."""
    return make_ready(step, str(folder), os.environ, lambda line: None)


@given(
    before=st.dictionaries(st.sampled_from("ABCD"), st.text(max_size=2)),
    after=st.dictionaries(st.sampled_from("ABCD"), st.text(max_size=2)),
)
def test_changes_turn_one_environment_into_the_other(
    before: dict[str, str], after: dict[str, str]
) -> None:
    merged = {**before, **changes(before, after)}
    assert {name: value for name, value in merged.items() if value is not None} == after


def test_an_environment_of_conda_is_made_once_and_kept(room: Any, machine: Path) -> None:
    (room.path / "campaign" / "environment.yml").write_text("dependencies: [x]\n")
    step = CondaEnvironment(file="environment.yml")
    tasks = [
        task(step, Exec(("tool",)), id=f"t{n}", inputs=(File("environment.yml"),)) for n in range(4)
    ]
    outcomes = room.carry_out(tasks, processors=4, retry=ONCE)

    assert [outcome.stdout for outcome in outcomes] == [b"from conda\n"] * 4
    said = (machine / "log").read_text().splitlines()
    assert len([line for line in said if line.startswith("env create")]) == 1
    (prefix,) = (machine / ".cache" / "bursar" / "environments").glob("conda-*")
    assert (prefix / ".bursar-made").exists()


def test_other_content_is_another_environment(machine: Path, tmp_path: Path) -> None:
    """And one that was not finished is made again."""
    file = tmp_path / "e.yml"
    file.write_text("dependencies: [x]\n")
    step = CondaEnvironment(file="e.yml")
    first = ready(step, tmp_path).variables["CONDA_PREFIX"]
    assert ready(step, tmp_path).variables["CONDA_PREFIX"] == first
    file.write_text("dependencies: [y]\n")
    assert ready(step, tmp_path).variables["CONDA_PREFIX"] != first
    file.write_text("dependencies: [x]\n")
    (Path(str(first)) / ".bursar-made").unlink()
    (Path(str(first)) / "half").touch()
    assert ready(step, tmp_path).variables["CONDA_PREFIX"] == first
    assert not (Path(str(first)) / "half").exists()


def test_two_processes_make_one_environment(machine: Path, tmp_path: Path) -> None:
    (tmp_path / "e.yml").write_text("dependencies: [z]\n")
    code = (
        "import os; from bursar.worker.environments import make_ready; "
        "from bursar.model.surroundings import CondaEnvironment; "
        "make_ready(CondaEnvironment(file='e.yml'), '.', os.environ, print)"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    told = b"".join(process.communicate()[0] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert told.count(b"making the conda environment") == 1


def test_a_limit_that_ends_the_making_says_so(room: Any, machine: Path) -> None:
    """A user would look for the fault in the task's own program."""
    (room.path / "campaign" / "e.yml").write_text("dependencies: [slow]\n")
    step = CondaEnvironment(file="e.yml")
    outcome = one(room, step, Exec(("tool",)), inputs=(File("e.yml"),), wall_limit=1.0)

    assert outcome.status is Status.TIMED_OUT
    assert outcome.reason == (
        'killed at its wall-time limit of 1 s, while the conda environment "e.yml" was made ready'
    )


def test_an_environment_that_exists_is_entered(room: Any, machine: Path) -> None:
    assert one(room, CondaEnvironment(name="known"), Exec(("tool",))).stdout == b"from known\n"


def test_a_task_has_its_modules_and_the_environment_that_they_bring(
    room: Any, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile of a login shell changes PATH; what the task has is as before, and the module."""
    monkeypatch.setenv("UNWANTED", "1")
    outcome = one(
        room,
        Modules(("gcc",)),
        CondaEnvironment(name="known"),
        Shell("gcc; tool; echo ${UNWANTED-unset} $LOADEDMODULES; echo $PATH"),
    )
    *lines, path = outcome.stdout.decode().splitlines()
    assert lines == ["from a module", "from known", "unset :gcc"], outcome
    assert path.startswith(f"{machine}/known/bin:{machine}/modules/gcc:")
    assert "/nowhere" not in path


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (
            Modules(("gcc", "absent")),
            "cannot load the modules gcc, absent: ERROR: Unable",
        ),
        (CondaEnvironment(name="no"), "conda has no environment to be entered for the conda env"),
        (CondaEnvironment(file="absent.yml"), '"absent.yml": No such file or directory'),
        (CondaEnvironment(file="bad.yml"), "conda cannot make the conda environment"),
        (UvEnvironment(requirements="more.txt"), '"more.txt", line 2: "-r other.txt" leads to'),
        (Container("x.sif", runtime="podman"), 'podman knows no image "x.sif"'),
        (Container("--privileged"), "expected the name of an image"),
        (UvEnvironment(packages=("--index-url=x",)), "expected the name of a package"),
    ],
)
def test_what_cannot_be_made_ready_is_said_in_one_line(
    machine: Path, tmp_path: Path, step: Any, reason: str
) -> None:
    (tmp_path / "bad.yml").write_text("dependencies: [absent]\n")
    (tmp_path / "more.txt").write_text("numpy\n-r other.txt\n")
    with pytest.raises(NotReady) as error:
        ready(step, tmp_path)
    if isinstance(step, UvEnvironment) and "no uv on PATH" in str(error.value):
        pytest.skip("uv is not installed")
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_on_path_is_said_with_the_names(tmp_path: Path) -> None:
    empty = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    for step, names in (
        (Container("x"), "apptainer or podman or docker"),
        (Container("oras://x"), "apptainer"),
        (CondaEnvironment(name="x"), "conda or mamba or micromamba"),
        (UvEnvironment(packages=("x",)), "uv"),
        (Modules(("x",)), "bash"),
    ):
        with pytest.raises(NotReady, match=f"there is no {names} on PATH"):
            make_ready(step, str(tmp_path), empty, lambda line: None)


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        (b"numpy>=2", False),
        (b"-r other.txt", True),
        (b"  - -r other.txt", True),
        (b"-e .", True),
        (b"./package", True),
        (b"name @ https://example.org/x.whl", False),
        (b"  - pip", False),
        (b"--index-url https://example.org", False),
    ],
)
def test_lines_that_lead_to_other_files_are_found(line: bytes, refused: bool) -> None:
    """A change of another file would not make another environment."""
    if not refused:
        refuse_other_files(line, "f")
        return
    with pytest.raises(NotReady, match='"f", line 1'):
        refuse_other_files(line, "f")


# The real uv, and the real modules.


@pytest.fixture
def wheel(tmp_path: Path, machine: Path) -> Path:
    """A package whose program says so, without a network; skips where there is no uv."""
    beside = Path(sys.executable).parent
    if shutil.which("uv", path=f"{beside}:{os.environ['PATH']}") is None:
        pytest.skip("uv is not installed")
    path = tmp_path / "greeting-1.0-py3-none-any.whl"
    entries = {
        "greeting.py": "def main():\n    print('from uv')\n",
        "greeting-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        "greeting-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
        "greeting-1.0.dist-info/entry_points.txt": "[console_scripts]\ngreet = greeting:main\n",
        "greeting-1.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in entries.items():
            archive.writestr(name, text)
    return path


def test_uv_makes_an_environment_of_each_kind_of_content(room: Any, wheel: Path) -> None:
    folder = room.path / "campaign"
    (folder / "requirements.txt").write_text(f"greeting @ {wheel.as_uri()}\n")
    (folder / "proj").mkdir()
    (folder / "proj" / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.8"\n'
        f'dependencies = ["greeting @ {wheel.as_uri()}"]\n'
    )
    steps = (
        UvEnvironment(requirements="requirements.txt", python=sys.executable),
        UvEnvironment(project="proj", python=sys.executable),
        UvEnvironment(packages=(f"greeting @ {wheel.as_uri()}",), python=sys.executable),
    )
    tasks = []
    for step in steps:
        files = tuple(File(name) for name in step.files if (folder / name).exists())
        programs = (Exec(("greet",)), Exec(("python", "-c", CHECK)))
        tasks.append(task(step, *programs, id=f"t{len(tasks)}", inputs=files))
    outcomes = room.carry_out(tasks, processors=1, retry=ONCE)
    assert [outcome.stdout for outcome in outcomes] == [b"from uv\nmine\n"] * 3, outcomes


CHECK = "import sys, os; print('mine' if sys.prefix == os.environ['VIRTUAL_ENV'] else sys.prefix)"


def test_the_real_modules_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("modulecmd") is None and "MODULESHOME" not in os.environ:
        pytest.skip("environment modules are not installed")
    files = tmp_path / "files"
    files.mkdir()
    (files / "tool").write_text(f"#%Module\nprepend-path PATH {tmp_path}\nsetenv TOOL loaded\n")
    monkeypatch.setenv("MODULEPATH", str(files))
    monkeypatch.setenv("HOME", str(tmp_path))
    found = ready(Modules(("tool",)), tmp_path).variables

    assert found["TOOL"] == "loaded"
    assert str(found["PATH"]).split(":")[0] == str(tmp_path)
    assert str(found["PATH"]).endswith(os.environ["PATH"])
    with pytest.raises(NotReady, match="cannot load the module absent: "):
        ready(Modules(("absent",)), tmp_path)
