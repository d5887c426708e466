"""
Command lines that start a program in a container, and that remove a container.

Pure: what a machine has is passed in. Docker and Podman start containers that are no children of
the worker, so each bears a name that says whose it is, by which others remove it.
"""

import csv
import fnmatch
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bursar.model.surroundings import Container, parse_bind

LABEL = "bursar"
"""Label of all containers that workers start."""

SEPARATE = ("podman", "docker")
"""Runtimes whose containers do not end with the process that started them."""

_OWN_MEANING = re.compile(
    r"(PATH|HOME|TMPDIR|SSL_.*|LD_.*|GO.*|XDG_.*|DOCKER_.*|PODMAN_.*|_?CONTAINERS?_.*|BUILDAH_.*|"
    r"STORAGE_.*|REGISTRY_.*)"
).fullmatch
"""Variables by which a runtime itself is set up: they are not passed through its environment."""

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def kind_of(runtime: str) -> str:
    """Return which of the known runtimes a program is, by the name of its file."""
    return os.path.basename(runtime)


def image_for(kind: str, step: Container) -> str:
    """
    Return the name of a container's image as a runtime takes the name.

    ``docker://python`` is Docker Hub's wherever it runs; for ``python`` Podman looks where its
    configuration says.
    """
    image = step.image
    if kind == "apptainer":
        return image if step.is_file or "://" in image else f"docker://{image}"
    name = image.removeprefix("docker://")
    if kind == "podman" and name != image:
        first, slash, _ = name.partition("/")
        if not slash:
            return f"docker.io/library/{name}"
        if "." not in first and ":" not in first and first != "localhost":
            return f"docker.io/{name}"
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlace:
    """
    Parts of this machine that a container is to have.

    Parameters
    ----------
    name
        Name of the container, by which it is removed.
    folder
        Working directory, writable under its own path.
    read
        Files and folders that can be read under their own paths, by what is there: links lead to
        them.
    own
        Variables that the program gets.
    secrets
        Names among ``own`` whose values may stand in no command line.
    memory
        Bytes that the container may use; 0: no limit.
    user
        User and group number of the worker.
    devices
        Names of the GPUs that the task holds; None: all of the machine.
    gpus
        Vendor of the machine's GPUs, ``"nvidia"`` or ``"amd"``; empty: the container has none.
    """

    name: str
    folder: str
    read: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    secrets: frozenset[str] = frozenset()
    memory: int = 0
    user: tuple[int, int] = (0, 0)
    devices: Sequence[str] | None = None
    gpus: str = ""


def enter_container(
    runtime: str, container: Container, argv: Sequence[str], place: ContainerPlace
) -> tuple[tuple[str, ...], dict[str, str]]:
    """
    Return the command that starts a program in a container, and variables for that command.

    Values of variables travel through the environment of the runtime, since every user can read
    command lines; only those that the runtime would take for its own setting stand in the command,
    and no secret one does.

    Parameters
    ----------
    runtime
        Path of the runtime.
    container
        Its image as this runtime takes the name.

    Raises
    ------
    ValueError
        When a secret has the name of a setting of the runtime.
    """
    if kind_of(runtime) == "apptainer":
        return _by_apptainer(runtime, container, argv, place)
    return _separately(runtime, container, argv, place)


def _by_apptainer(
    runtime: str, container: Container, argv: Sequence[str], place: ContainerPlace
) -> tuple[tuple[str, ...], dict[str, str]]:
    # Its home is the working directory, where programs may write.
    words = [runtime, "exec", "--cleanenv", "--home", place.folder, "--pwd", place.folder]
    if place.gpus:
        words.append("--rocm" if place.gpus == "amd" else "--nv")
    for mount in _mounts(container, place):
        words += ["--mount", mount]
    variables = {f"APPTAINERENV_{name}": value for name, value in place.own.items()}
    return (*words, *container.options, container.image, *argv), variables


def _separately(
    runtime: str, container: Container, argv: Sequence[str], place: ContainerPlace
) -> tuple[tuple[str, ...], dict[str, str]]:
    kind = kind_of(runtime)
    words = [runtime, "run", "--rm", "--interactive", "--name", place.name, "--label", LABEL]
    if kind == "podman":
        # Podman without root maps its user to root in the container, which is the same user. Where
        # files have labels (SELinux), the working directory could not be read otherwise.
        words += ["--user", "0:0", "--security-opt", "label=disable"]
    else:
        words += ["--user", f"{place.user[0]}:{place.user[1]}"]
    for mount in _mounts(container, place):
        words += ["--mount", mount]
    words += ["--workdir", place.folder]
    if place.memory:
        # The container is no descendant of the worker, which cannot look at its memory.
        words += ["--memory", f"{place.memory}b", "--memory-swap", f"{place.memory}b"]
    words += _gpu_words(kind, place)
    variables = {}
    for name, value in {"HOME": place.folder, **place.own}.items():
        if name in _VISIBLE and place.gpus == "nvidia":
            continue  # within the container devices have numbers of their own
        if not _OWN_MEANING(name):
            variables[name] = value
            words += ["--env", name]
        elif name in place.secrets:
            raise ValueError(f'a secret "{name}" would set up {kind} itself')
        else:
            words += ["--env", f"{name}={value}"]
    # An entry point of the image would get the command as its arguments.
    words += ["--entrypoint", argv[0]]
    return (*words, *container.options, container.image, *argv[1:]), variables


def _gpu_words(kind: str, place: ContainerPlace) -> list[str]:
    if not place.gpus:
        return []
    if place.gpus == "amd":  # which of them are the task's, a variable says
        return ["--device", "/dev/kfd", "--device", "/dev/dri"]
    if kind == "podman":
        names = ["all"] if place.devices is None else place.devices
        return [word for name in names for word in ("--device", f"nvidia.com/gpu={name}")]
    # Docker reads a line of CSV, in which a list has to be quoted.
    return ["--gpus", "all" if place.devices is None else f'"device={",".join(place.devices)}"']


def _mounts(container: Container, place: ContainerPlace) -> Iterable[str]:
    for target, source in place.read.items():
        yield _mount(source, target, writable=False)
    yield _mount(place.folder, place.folder, writable=True)
    for bind in container.binds:
        source, target, writable = parse_bind(bind)
        yield _mount(source, target, writable=writable)


def _mount(source: str, target: str, *, writable: bool) -> str:
    """Return a mount as a line of CSV, so that paths may hold any character but line ends."""
    text = io.StringIO()
    fields = ["type=bind", f"source={source}", f"destination={target}"]
    csv.writer(text, lineterminator="").writerow(fields if writable else [*fields, "ro"])
    return text.getvalue()


def handed_in(environment: Mapping[str, str], patterns: Sequence[str] | None) -> dict[str, str]:
    """
    Return those of the machine's variables that a program in a container inherits.

    Parameters
    ----------
    patterns
        What the task inherits; None: not stated, and a container gets none.
    """
    return {
        name: value
        for name, value in environment.items()
        # Such as PATH, which says nothing within the container.
        if not _OWN_MEANING(name)
        and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns or ())
    }


def gpu_vendor(devices: str = "/dev") -> str:
    """Return the vendor of this machine's GPUs, ``"nvidia"`` also where it has none."""
    has_amd = os.path.exists(f"{devices}/kfd") and not os.path.exists(f"{devices}/nvidiactl")
    return "amd" if has_amd else "nvidia"


def linked_paths(links: Iterable[str], folder: str, most: int = 64) -> dict[str, str]:
    """
    Return what has to be mounted for links to lead somewhere: by its path, what is there.

    Parameters
    ----------
    links
        Paths, most of which are links.
    folder
        Folder that is mounted anyway.
    most
        With more, the folders around them are returned in their place.
    """
    found: dict[str, str] = {}
    for link in links:
        at = link
        for _ in range(40):  # as many as the kernel follows
            if not os.path.islink(at):
                break
            at = os.path.normpath(os.path.join(os.path.dirname(at), os.readlink(at)))
            if not at.startswith(f"{folder}/"):
                # Mounted as what it leads to in the end, wherever that is.
                found[at] = os.path.realpath(at)
                break
    if len(found) <= most:
        return found
    around = {os.path.dirname(path): os.path.realpath(os.path.dirname(path)) for path in found}
    far = {
        path: real
        for path, real in found.items()
        if os.path.dirname(real) != around[os.path.dirname(path)]
    }
    return {**around, **far}


# Containers that a killed worker left behind.


def owner_mark(pid: int) -> str:
    """
    Return what the names of a process's containers begin with.

    The number alone would not do: another process may have it later, or have it in another
    namespace of processes.
    """
    namespace = re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))
    with open(f"/proc/{pid}/stat", "rb") as file:
        # From the last parenthesis: the program's name before it may hold spaces and parentheses.
        start = file.read().rpartition(b")")[2].split()[19].decode()
    return f"bursar-{namespace}-{pid}-{start}-"


def left_behind(names: Iterable[str]) -> list[str]:
    """Return those containers whose worker was one of this namespace and is gone."""
    found = []
    for name in names:
        mark = re.match(r"bursar-(\d+)-(\d+)-(\d+)-", name)
        if mark is None:
            continue
        try:
            gone = owner_mark(int(mark[2])) != mark[0]
        except OSError:
            gone = True
        if gone and mark[1] == re.sub(r"\D", "", os.readlink("/proc/self/ns/pid")):
            found.append(name)
    return found


def removal(runtime: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the command that ends and removes containers; one that is gone is no failure."""
    # Podman waits for them to end by themselves otherwise, and where one is gone removes no other.
    at_once = ("--ignore", "--time", "0") if kind_of(runtime) == "podman" else ()
    return (runtime, "rm", "--force", *at_once, *names)
