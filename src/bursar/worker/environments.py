"""
Makes ready what programs are to run in: images, environments of conda and uv, modules.

What takes long is done once for the machine or the user, under a lock, and kept: images with their
runtime or in the user's cache, environments in the user's cache by a digest of what they hold.

As a program (``python -m bursar.worker.environments STEP RESULT``) for workers, which must not wait
themselves: the result is written into a file, and what went wrong, too.
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from bursar.dispatch.folders import cache_folder, remove_tree, write_atomically
from bursar.locking import LockHeldElsewhere, take_lock
from bursar.model.errors import BursarError, InputError
from bursar.model.surroundings import (
    CondaEnvironment,
    Container,
    Modules,
    Surrounding,
    UvEnvironment,
    check_words,
    runtimes_for,
)
from bursar.worker.containers import (
    LABEL,
    SEPARATE,
    image_for,
    kind_of,
    left_behind,
    removal,
)

Tell = Callable[[str], None]
"""Is told what takes long."""

_DONE = ".bursar-made"
"""File in an environment that is complete: what it was made of."""

_RETRY_INTERVAL = 0.1  # seconds between two looks whether another process has made it
_PATIENCE = 60.0  # seconds for a runtime to answer what it has

_OF_SHELL = frozenset(("_", "SHLVL", "PWD", "OLDPWD"))
"""Variables that say something about the asking shell and not about the environment."""

_CONDAS = ("conda", "mamba", "micromamba")

_OTHER_FILES = re.compile(
    r"^\s*(-\s+)?((-r|-c|-e|--requirement|--constraint|--editable)\b|\.{1,2}/|file:)"
).match
"""A line of requirements that stands for a file or folder beside the file."""

_TELLING = re.compile("error|fatal|cannot|unable", re.IGNORECASE).search

_LOAD = """\
PATH=$1; into=$2; shift 2
type module > /dev/null 2>&1 || for start in "$MODULESHOME/init/bash" \
/usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash; do
  test -r "$start" && . "$start" && break
done
type module > /dev/null 2>&1 || exit 3
env -0 > "$into/before" || exit 4
module load "$@" >&2 || exit 5
env -0 > "$into/after"
"""
"""Has a login shell, in which modules are set up, load some and say what that changes. The profile
may set PATH anew, which is undone."""


class NotReady(BursarError):
    """A container or environment is not there and cannot be made; the message is one line."""


class ReadySurrounding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    What a program needs in order to run in a container or an environment of this machine.

    Parameters
    ----------
    variables
        Variables to set; None: to take away.
    runtime
        Path of the container's runtime; empty: no container.
    image
        Image, as the runtime takes the name.
    problem
        Why there is none, one line; empty: it is ready.
    """

    variables: dict[str, str | None] = {}
    runtime: str = ""
    image: str = ""
    problem: str = ""


def make_ready(
    step: Surrounding, folder: str, environment: Mapping[str, str], tell: Tell
) -> ReadySurrounding:
    """
    Make ready what a step states; it may take minutes the first time.

    Parameters
    ----------
    folder
        Working directory, in which the step's files are.
    environment
        Variables of this machine, as programs get them.

    Raises
    ------
    NotReady
        When it is not there and cannot be made.
    """
    try:
        check_words(step)
        match step:
            case Container():
                return _container(step, folder, environment, tell)
            case CondaEnvironment():
                return _conda(step, folder, environment, tell)
            case UvEnvironment():
                return _uv(step, folder, environment, tell)
            case Modules():
                return _modules(step, environment)
    except InputError as error:
        raise NotReady(error.message) from None
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        raise NotReady(f"{step.what}: {error}") from None


# Containers.


def _container(
    step: Container, folder: str, environment: Mapping[str, str], tell: Tell
) -> ReadySurrounding:
    kinds = runtimes_for(step)
    runtime = _found(kinds, environment)
    if runtime is None:
        raise NotReady(f"there is no {' or '.join(kinds)} on PATH to run {step.what}")
    kind, image = kind_of(runtime), image_for(kind_of(runtime), step)
    if step.is_file:
        if not os.path.exists(os.path.join(folder, image)):
            raise NotReady(f"{step.what} does not exist")
        return ReadySurrounding(runtime=runtime, image=image)
    if kind in SEPARATE:
        remove_left_behind(runtime, environment)
        if not _has_image(runtime, image, environment):
            # Images belong to a machine, and the cache may be shared by several.
            with _locked(f"pull-{platform.node()}-{_digest(kind, image)}", environment, tell):
                if not _has_image(runtime, image, environment):
                    tell(f'pulling "{image}" with {kind}')
                    _run([runtime, "pull", image], f'{kind} cannot pull "{image}"', environment)
        return ReadySurrounding(runtime=runtime, image=image)
    file = _cache(environment) / "images" / f"{_digest(image)}.sif"
    if not file.exists():
        with _locked(f"image-{_digest(image)}", environment, tell):
            if not file.exists():
                tell(f'pulling "{image}" with {kind}')
                file.parent.mkdir(parents=True, exist_ok=True)
                part = f"{file}.part"
                words = [runtime, "pull", "--force", part, image]
                _run(words, f'{kind} cannot pull "{image}"', environment)
                os.rename(part, file)
    return ReadySurrounding(runtime=runtime, image=str(file))


def _has_image(runtime: str, image: str, environment: Mapping[str, str]) -> bool:
    asked = _asked([runtime, "image", "inspect", "--format", "{{.Id}}", image], environment)
    return asked.returncode == 0


def remove_left_behind(runtime: str, environment: Mapping[str, str]) -> None:
    """Remove containers of this user's whose worker was killed before it could do so."""
    words = [runtime, "ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}}"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        names = left_behind(_asked(words, environment).stdout.split())
        if names:
            _asked(removal(runtime, names), environment)


# Conda.


def _conda(
    step: CondaEnvironment, folder: str, environment: Mapping[str, str], tell: Tell
) -> ReadySurrounding:
    tool = _found(_CONDAS, environment)
    for variable in ("CONDA_EXE", "MAMBA_EXE"):
        # A shell's function may be all there is of it on PATH.
        tool = tool or (shutil.which(environment.get(variable) or "") or None)
    if tool is None:
        raise NotReady(f"there is no {' or '.join(_CONDAS)} on PATH for {step.what}")
    if step.file:
        content = _content(folder, step.file)
        refuse_other_files(content, step.file)

        def make(path: Path) -> None:
            tell(f"making {step.what} with {kind_of(tool)}")
            _run(
                _creation(tool, path, os.path.join(folder, step.file)),
                f"{kind_of(tool)} cannot make {step.what}",
                {**environment, "CONDA_ALWAYS_YES": "true"},
            )

        prefix = _made("conda", (content,), make, environment, tell)
        where = ["--prefix", str(prefix)]
    else:
        where = ["--prefix", step.prefix] if step.prefix else ["--name", step.name]
    failed = f"{kind_of(tool)} has no environment to be entered for {step.what}"
    told = _run([tool, "run", *where, "env", "-0"], failed, environment)
    return ReadySurrounding(variables=changes(environment, _parsed(told)))


def _creation(tool: str, path: Path, file: str) -> list[str]:
    if file.endswith(".txt") or kind_of(tool) == "micromamba":
        return [tool, "create", "--yes", "--prefix", str(path), "--file", file]
    return [tool, "env", "create", "--prefix", str(path), "--file", file]


# uv.


def _uv(
    step: UvEnvironment, folder: str, environment: Mapping[str, str], tell: Tell
) -> ReadySurrounding:
    uv = _found(("uv",), environment)
    if uv is None:
        raise NotReady(f"there is no uv on PATH for {step.what}")
    names = step.files
    contents = [
        _content(folder, name)
        for name in names
        if name == names[0] or os.path.exists(os.path.join(folder, name))
    ]
    if step.requirements:
        refuse_other_files(contents[0], step.requirements)
    python = ["--python", step.python] if step.python else []
    failed = f"uv cannot make {step.what}"

    def make(path: Path) -> None:
        tell(f"making {step.what} with uv")
        _run([uv, "venv", "--quiet", *python, str(path)], failed, environment)
        if step.project:
            files = [os.path.join(folder, name) for name in names]
            _synchronise([uv, "sync", "--quiet", *python], path, files, failed, environment)
            return
        wanted = step.packages
        if step.requirements:
            wanted = ("-r", os.path.join(folder, step.requirements))
        if wanted:
            at = ["--python", str(path / "bin" / "python")]
            _run([uv, "pip", "install", "--quiet", *at, *wanted], failed, environment)

    source = "project" if step.project else "requirements" if step.requirements else "packages"
    holds: list[str | bytes] = [source, step.python, *step.packages, *contents]
    path = _made("uv", holds, make, environment, tell, probe="bin/python")
    return ReadySurrounding(
        variables={
            "VIRTUAL_ENV": str(path),
            "PATH": f"{path}/bin{os.pathsep}{environment.get('PATH', os.defpath)}",
            "PYTHONHOME": None,
        }
    )


def _synchronise(
    sync: Sequence[str],
    path: Path,
    files: Sequence[str],
    failed: str,
    environment: Mapping[str, str],
) -> None:
    """Install what a project depends on, by copies of the files that say so."""
    with tempfile.TemporaryDirectory(dir=path) as project:
        for file in files:
            if os.path.exists(file):
                shutil.copy(file, project)
        locked = ["--frozen"] if os.path.exists(f"{project}/uv.lock") else []
        words = [*sync, "--no-install-project", *locked, "--project", project]
        _run(words, failed, {**environment, "UV_PROJECT_ENVIRONMENT": str(path)}, project)


def refuse_other_files(content: bytes, name: str) -> None:
    """
    Refuse a list of requirements that leads to other files, whose change nobody would notice.

    Raises
    ------
    NotReady
        Naming the line.
    """
    for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
        if _OTHER_FILES(line):
            raise NotReady(
                f'"{name}", line {number}: "{line.strip()[:80]}" leads to another file; '
                "state all requirements in one"
            )


# Modules.


def _modules(step: Modules, environment: Mapping[str, str]) -> ReadySurrounding:
    what = step.what
    bash = _found(("bash",), environment)
    if bash is None:
        raise NotReady(f"there is no bash on PATH to load {what}")
    path = environment.get("PATH", os.defpath)
    with tempfile.TemporaryDirectory() as into:
        done = _asked([bash, "-lc", _LOAD, "bash", path, into, *step.names], environment)
        if done.returncode == 3:
            raise NotReady(f'there is no command "module" to load {what}')
        before, after = Path(into, "before"), Path(into, "after")
        if done.returncode != 0 or not after.exists():
            raise NotReady(f"cannot load {what}: {_telling_line(done.stderr)}")
        was, loaded = _parsed(before.read_text()), _parsed(after.read_text())
    # Old versions say by their words only that a module is not there.
    if was.get("LOADEDMODULES") == loaded.get("LOADEDMODULES") and "ERROR" in done.stderr:
        raise NotReady(f"cannot load {what}: {_telling_line(done.stderr)}")
    return ReadySurrounding(variables=changes(was, loaded))


# What all have in common.


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return what turns one set of variables into another: values, None for those to take away."""
    found: dict[str, str | None] = {
        name: value
        for name, value in after.items()
        if name not in _OF_SHELL and before.get(name) != value
    }
    found.update({name: None for name in before if name not in after and name not in _OF_SHELL})
    return found


def _parsed(text: str) -> dict[str, str]:
    """Return the variables that ``env -0`` has printed; lines before them do not count."""
    found = {}
    for entry in text.split("\0"):
        name, sign, value = entry.partition("=")
        if sign:
            found[name.rpartition("\n")[2]] = value
    return found


def _made(
    kind: str,
    holds: Sequence[str | bytes],
    make: Callable[[Path], None],
    environment: Mapping[str, str],
    tell: Tell,
    probe: str = "",
) -> Path:
    """
    Return the folder of an environment, which is made where nobody has made it before.

    Parameters
    ----------
    holds
        All that decides what is in the environment.
    probe
        File that must be there, for example since links in the environment may lead nowhere.
    """
    digest = _digest(kind, platform.machine(), *holds)
    path = _cache(environment) / "environments" / f"{kind}-{digest}"
    if _is_made(path, probe):
        return path
    with _locked(f"{kind}-{digest}", environment, tell):
        if _is_made(path, probe):
            return path
        remove_tree(str(path))  # of a process that was killed while it made it
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            make(path)
        except BaseException:
            remove_tree(str(path))
            raise
        write_atomically(path / _DONE, b"".join(_bytes(part) + b"\n" for part in holds))
    return path


def _is_made(path: Path, probe: str) -> bool:
    return (path / _DONE).exists() and (path / probe).exists()


@contextlib.contextmanager
def _locked(name: str, environment: Mapping[str, str], tell: Tell) -> Iterator[None]:
    folder = _cache(environment) / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    said = False
    while True:
        try:
            lock = take_lock(folder / f"{name}.lock")
            break
        except LockHeldElsewhere as error:
            if not said:
                tell(f"waiting for {error.holder}, which makes it ready")
                said = True
            time.sleep(_RETRY_INTERVAL)
    try:
        yield
    finally:
        os.close(lock)


def _cache(environment: Mapping[str, str]) -> Path:
    folder = cache_folder(environment)
    if folder is None:
        raise NotReady("there is no folder for a cache: neither HOME nor XDG_CACHE_HOME is set")
    return folder


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        # With the length, or two lists could make one text.
        digest.update(b"%d " % len(_bytes(part)) + _bytes(part))
    return digest.hexdigest()[:24]


def _bytes(part: str | bytes) -> bytes:
    return part.encode() if isinstance(part, str) else part


def _content(folder: str, name: str) -> bytes:
    path = os.path.join(folder, name)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise NotReady(f'"{name}": {error.strerror}') from None


def _found(names: Sequence[str], environment: Mapping[str, str]) -> str | None:
    path = environment.get("PATH", os.defpath)
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


def _asked(
    words: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        env=dict(environment),
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=_PATIENCE,
    )


def _run(
    words: Sequence[str], failed: str, environment: Mapping[str, str], folder: str | None = None
) -> str:
    """Run a command that may take long, and return what it prints; raise NotReady if it fails."""
    done = subprocess.run(
        words,
        env=dict(environment),
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        raise NotReady(f"{failed}: {_telling_line(done.stderr or done.stdout)}")
    return done.stdout


def _telling_line(text: str) -> str:
    """Return the line that says most about a failure: the last that speaks of an error."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    telling = [
        line for line in lines if re.search("error|fatal|cannot|unable", line, re.IGNORECASE)
    ]
    return (telling or lines or ["no reason is given"])[-1][:300]


def main() -> None:
    """Make ready what the first argument states, and write the result into the second's file."""
    step = msgspec.json.decode(sys.argv[1], type=Surrounding)
    try:
        ready = make_ready(step, os.getcwd(), os.environ, lambda line: print(line, file=sys.stderr))
    except NotReady as error:
        ready = ReadySurrounding(problem=str(error))
    write_atomically(Path(sys.argv[2]), msgspec.json.encode(ready))
    if ready.problem:
        sys.exit(ready.problem)


if __name__ == "__main__":
    main()
