"""
What programs of a task run in: a container, an environment of conda or uv, environment modules.

These are steps of a task, which say what programs after them run in. It has to be made ready on
each machine first.
"""

import os
from typing import Literal, get_args

import msgspec

from bursar.model.errors import InputError

Runtime = Literal["apptainer", "podman", "docker"]
"""Container runtimes; where a container names none, the first of them that a machine has is used.
"""

RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)


class Container(msgspec.Struct, frozen=True, tag="container", omit_defaults=True):
    """
    From here on, programs run in a container.

    Parameters
    ----------
    image
        Name of the image, ``docker://NAME`` or ``NAME``; another URI that Apptainer knows; or the
        path of an image file for Apptainer, absolute or in the working directory.
    runtime
        One of :data:`RUNTIMES`; empty: the first of them that the machine has.
    options
        Further options for the runtime, before the image.
    binds
        Folders and files of the machine in the container, ``SOURCE``, ``SOURCE:TARGET`` or
        ``SOURCE:TARGET:ro``, absolute paths.
    gpu
        Whether the container has GPUs; None: those that the task holds.
    """

    image: str
    runtime: Runtime | Literal[""] = ""
    options: tuple[str, ...] = ()
    binds: tuple[str, ...] = ()
    gpu: bool | None = None

    @property
    def is_file(self) -> bool:
        """Whether the image is a file, or the folder of an unpacked one, and not a name."""
        named = "://" in self.image or not self.image.endswith((".sif", ".simg"))
        return self.image.startswith("/") or not named

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files in the working directory that it is made of."""
        return (self.image,) if self.is_file and not self.image.startswith("/") else ()

    @property
    def what(self) -> str:
        """Image or file as words."""
        return f'the image "{self.image}"'


class CondaEnvironment(msgspec.Struct, frozen=True, tag="conda", omit_defaults=True):
    """
    From here on, programs run in an environment of conda, mamba or micromamba; one is stated.

    Parameters
    ----------
    name
        Name of an environment that exists.
    prefix
        Absolute path of an environment that exists.
    file
        File in the working directory that says what is in the environment, ``.yml`` or ``.yaml``,
        or an explicit list of packages, ``.txt``.
    """

    name: str = ""
    prefix: str = ""
    file: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files in the working directory that it is made of."""
        return (self.file,) if self.file else ()

    @property
    def what(self) -> str:
        """Environment as words."""
        return f'the conda environment "{self.name or self.prefix or self.file}"'


class UvEnvironment(msgspec.Struct, frozen=True, tag="uv", omit_defaults=True):
    """
    From here on, programs run in a Python environment that uv makes; one content is stated.

    Parameters
    ----------
    requirements
        File in the working directory that lists requirements.
    project
        Folder in the working directory with ``pyproject.toml``, whose dependencies are installed;
        ``"."``: the working directory itself.
    packages
        Requirements.
    python
        Version or path of the interpreter; empty: as uv chooses.
    """

    requirements: str = ""
    project: str = ""
    packages: tuple[str, ...] = ()
    python: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files in the working directory that it is made of; the first must exist."""
        if self.project:
            names = ("pyproject.toml", "uv.lock", ".python-version")
            return tuple(os.path.normpath(f"{self.project}/{name}") for name in names)
        return (self.requirements,) if self.requirements else ()

    @property
    def what(self) -> str:
        """Requirements as words."""
        source = self.requirements or self.project or ", ".join(self.packages)
        return f'the Python environment of "{source[:100]}"'


class Modules(msgspec.Struct, frozen=True, tag="modules"):
    """From here on, programs have environment modules loaded, in this order."""

    names: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files in the working directory that they are made of."""
        return ()

    @property
    def what(self) -> str:
        """Modules as words."""
        return f"the module{'s' * (len(self.names) > 1)} {', '.join(self.names)}"


Surrounding = Container | CondaEnvironment | UvEnvironment | Modules
"""Step that has to be made ready on a machine before programs can run in what it states."""


ContainerPolicy = Literal["allowed", "without-mounts", "forbidden"]
"""Which containers tasks may ask for: any, those without binds and options of their own, none."""


def forbidden(step: Container, policy: ContainerPolicy) -> str:
    """Return why a machine's administrator does not allow a container; empty: it is allowed."""
    if policy == "forbidden":
        return "containers are not allowed here"
    if policy == "without-mounts" and (step.binds or step.options):
        return "containers with binds or options are not allowed here"
    if policy == "without-mounts" and step.image.startswith("/"):
        return "containers of folders and files of the machine are not allowed here"
    return ""


def check_words(step: Surrounding) -> None:
    """
    Refuse what a command would take for an option, or cannot be carried out by the runtime.

    Raises
    ------
    InputError
        Naming the word.
    """
    match step:
        case Container(image, _, _, binds):
            words: tuple[str, ...] = (image,)
            runtimes_for(step)
            for bind in binds:
                parse_bind(bind)
        case CondaEnvironment(name, prefix, file):
            words = (name or prefix or file,)
        case UvEnvironment(requirements, project, packages):
            words = packages or (requirements or project,)
        case Modules(names):
            words = names
    for word in words:
        if not word or word.startswith("-") or not word.isprintable() or word != word.strip():
            raise InputError(f'expected the name of {_KINDS[type(step)]}, got "{word[:80]}"')


_KINDS = {
    Container: "an image",
    CondaEnvironment: "an environment or of a file",
    UvEnvironment: "a package, or of a file or folder",
    Modules: "a module",
}


def runtimes_for(step: Container) -> tuple[Runtime, ...]:
    """
    Return the runtimes that can start a container; the first that a machine has is used.

    Raises
    ------
    InputError
        When the runtime that is stated cannot.
    """
    scheme, found, _ = step.image.partition("://")
    for_all = not step.is_file and (not found or scheme == "docker")
    able: tuple[Runtime, ...] = RUNTIMES if for_all else ("apptainer",)
    if not step.runtime:
        return able
    if step.runtime not in able:
        raise InputError(
            f'{step.runtime} knows no image "{step.image}", which is for apptainer',
            hint="docker://NAME is an image for all runtimes",
        )
    return (step.runtime,)


def parse_bind(text: str) -> tuple[str, str, bool]:
    """
    Return source, target and whether a bind is writable.

    Raises
    ------
    InputError
        When the text is none.
    """
    parts = text.split(":")
    source, target = parts[0], parts[1] if len(parts) > 1 else parts[0]
    options = parts[2] if len(parts) > 2 else "rw"
    absolute = source.startswith("/") and target.startswith("/")
    if len(parts) > 3 or not absolute or options not in ("ro", "rw") or not text.isprintable():
        raise InputError(
            f'expected SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro, absolute paths, got "{text[:80]}"'
        )
    return source, target, options == "rw"
