"""Programs in containers: what they see, what they are given, and how they end for certain."""

import csv
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worker.container_runtimes import StandIn, real_runtime
from tests.worker.test_worker import ONCE, one, task

from bursar.dispatch.wire import Welcome
from bursar.model.surroundings import Container, ContainerPolicy
from bursar.model.task import Exec, File, Inherit, OnError, Secret, Shell, StandardInput, Status
from bursar.worker.attempt_context import AttemptContext
from bursar.worker.containers import (
    _OWN_MEANING,
    ContainerPlace,
    enter_container,
    image_for,
    left_behind,
    linked_paths,
    owner_mark,
    removal,
)
from bursar.worker.environments import remove_left_behind
from bursar.worker.staging import StagingError

KINDS = ("apptainer", "podman", "docker")

TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12)
NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,10}", fullmatch=True)


@given(
    kind=st.sampled_from(KINDS),
    argv=st.lists(TEXT, min_size=1, max_size=4),
    own=st.dictionaries(NAMES, TEXT, max_size=4),
    read=st.dictionaries(TEXT.map("/r/{}".format), TEXT.map("/s/{}".format), max_size=3),
    secrets=st.booleans(),
)
def test_a_command_holds_the_program_the_mounts_and_no_secret(
    kind: str, argv: list[str], own: dict[str, str], read: dict[str, str], secrets: bool
) -> None:
    """
    Each value reaches the program through the environment, or is told apart from a secret.

    Values are made recognisable, since a short one may stand in a path by chance.
    """
    own = {name: f"value-of-{number}-{value}" for number, (name, value) in enumerate(own.items())}
    place = ContainerPlace(
        name="bursar-1",
        folder="/w",
        read=read,
        own=own,
        secrets=frozenset(own) if secrets else frozenset(),
    )
    container = Container("image", binds=("/a:/b:ro",))
    # Names by which a runtime itself is set up.
    if secrets and kind != "apptainer" and any(_OWN_MEANING(name) for name in own):
        with pytest.raises(ValueError, match=r'a secret ".*" would set up'):
            enter_container(f"/usr/bin/{kind}", container, argv, place)
        return
    words, variables = enter_container(f"/usr/bin/{kind}", container, argv, place)

    line = "\0".join(words)
    for name, value in own.items():
        if secrets:
            assert value not in line
        if kind == "apptainer":
            assert variables[f"APPTAINERENV_{name}"] == value
        else:
            assert variables.get(name) == value or f"{name}={value}" in words
    end = words[words.index("image") + 1 :]
    assert end == tuple(argv if kind == "apptainer" else argv[1:])
    if kind != "apptainer":
        assert words[words.index("--entrypoint") + 1] == argv[0]
    mounts = [next(csv.reader([words[i + 1]])) for i, w in enumerate(words[:-1]) if w == "--mount"]
    for target, source in read.items():
        assert ["type=bind", f"source={source}", f"destination={target}", "ro"] in mounts
    assert ["type=bind", "source=/w", "destination=/w"] in mounts
    assert ["type=bind", "source=/a", "destination=/b", "ro"] in mounts


@pytest.mark.parametrize(
    ("kind", "image", "name"),
    [
        ("docker", "docker://python:3.12", "python:3.12"),
        ("docker", "python:3.12", "python:3.12"),
        ("podman", "docker://python:3.12", "docker.io/library/python:3.12"),
        ("podman", "docker://me/tool", "docker.io/me/tool"),
        ("podman", "docker://quay.io/me/tool", "quay.io/me/tool"),
        ("podman", "docker://localhost/tool", "localhost/tool"),
        ("podman", "tool", "tool"),
        ("apptainer", "python:3.12", "docker://python:3.12"),
        ("apptainer", "library://tool", "library://tool"),
        ("apptainer", "images/tool.sif", "images/tool.sif"),
    ],
)
def test_one_name_of_an_image_serves_all_runtimes(kind: str, image: str, name: str) -> None:
    assert image_for(kind, Container(image)) == name


@pytest.mark.parametrize(
    ("kind", "devices", "words"),
    [
        ("docker", ["0", "2"], ["--gpus", '"device=0,2"']),
        ("docker", None, ["--gpus", "all"]),
        ("podman", ["2"], ["--device", "nvidia.com/gpu=2"]),
        ("apptainer", ["2"], ["--nv"]),
    ],
)
def test_a_container_has_the_gpus_of_its_task(
    kind: str, devices: list[str] | None, words: list[str]
) -> None:
    """Numbers of the machine mean nothing in a container that sees only some of its GPUs."""
    own = {"CUDA_VISIBLE_DEVICES": "0,2"}
    place = ContainerPlace(name="n", folder="/w", own=own, devices=devices, gpus="nvidia")
    found, variables = enter_container(f"/bin/{kind}", Container("i"), ["p"], place)

    at = found.index(words[0])
    assert list(found[at : at + len(words)]) == words
    assert ("APPTAINERENV_CUDA_VISIBLE_DEVICES" in variables) == (kind == "apptainer")
    assert "CUDA_VISIBLE_DEVICES" not in variables


def test_links_lead_somewhere_in_a_container(tmp_path: Path) -> None:
    """A chain of links needs what its first hop leads to, mounted under that hop's path."""
    work, far = tmp_path / "work", tmp_path / "far"
    work.mkdir()
    far.mkdir()
    (far / "data").write_text("x")
    (tmp_path / "hop").symlink_to(far / "data")
    (work / "in").symlink_to(tmp_path / "hop")
    (work / "within").symlink_to("in")
    (work / "plain").write_text("y")

    links = [str(work / name) for name in ("in", "within", "plain", "absent")]
    assert linked_paths(links, str(work)) == {str(tmp_path / "hop"): str(far / "data")}
    many = []
    for number in range(70):
        (far / f"{number}").write_text("")
        (work / f"l{number}").symlink_to(far / f"{number}")
        many.append(str(work / f"l{number}"))
    assert linked_paths(many, str(work)) == {str(far): str(far)}


def test_only_containers_of_dead_workers_of_this_namespace_are_left_behind() -> None:
    mine = owner_mark(os.getpid())
    namespace = mine.split("-")[1]
    dead = f"bursar-{namespace}-{os.getpid()}-1-0-1-1"  # the number, used again since

    names = [
        f"{mine}0-1-1",
        dead,
        "bursar-1-2-3-4-5-6",
        "other",
        f"bursar-{namespace}-999999999-1-0",
    ]
    assert left_behind(names) == [dead, f"bursar-{namespace}-999999999-1-0"]


# Real programs: stand-ins everywhere, the real runtimes where they work.


@pytest.fixture(params=[*KINDS, "real podman", "real docker"])
def runtime(
    request: pytest.FixtureRequest, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A runtime that has an image."""
    folder = tmp_path_factory.mktemp("rt")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    real, _, kind = request.param.rpartition(" ")
    if real:
        found: Any = real_runtime(kind, folder)
        if found is None:
            pytest.skip(f"no {kind} works here")
    else:
        found = StandIn(folder, kind)
        found.add_image()
        monkeypatch.setenv("PATH", f"{found.bin}{os.pathsep}{os.environ['PATH']}")
    yield found
    found.close()


def container(runtime: Any, **more: Any) -> Container:
    return Container(runtime.image, runtime=runtime.kind, **more)


def test_a_program_in_a_container_has_folder_inputs_variables_and_input(
    room: Any, runtime: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HANDED_IN", "1")
    monkeypatch.setenv("KEPT_OUT", "1")
    (tmp_path / "real").write_text("linked\n")
    (room.path / "campaign" / "in.txt").symlink_to(tmp_path / "real")
    outcome = one(
        room,
        container(runtime),
        Inherit(("HANDED_*", "PATH")),
        StandardInput(text="typed\n"),
        Shell("cat; cat in.txt; echo $OWN $HANDED_IN $KEPT_OUT $BURSAR_TASK; id -u; echo $HOME"),
        Exec(("sh", "-c", "echo made > out; exit 0", "ignored")),
        inputs=(File("in.txt"),),
        outputs=(File("out"),),
        environment={"OWN": "mine and 'quoted'"},
    )

    assert (outcome.status, outcome.reason) == (Status.SUCCEEDED, ""), outcome.stderr
    *lines, home = outcome.stdout.decode().splitlines()
    assert lines == ["typed", "linked", "mine and 'quoted' 1 0", str(os.getuid())]
    assert home.startswith(str(room.path))
    assert (room.path / "files" / "out").read_text() == "made\n"


def test_the_end_of_a_container_is_the_end_of_its_program(room: Any, runtime: Any) -> None:
    outcome = one(room, container(runtime), Shell("echo said; echo told >&2; exit 3"))
    assert (outcome.status, outcome.exit_code) == (Status.FAILED, 3)
    assert outcome.stdout == b"said\n"
    # Before it, one line says that an image is pulled.
    assert outcome.stderr.endswith(b"told\n")


LOOK = """
test ${#TOKEN} = 13 || exit 1
for line in /proc/[0-9]*/cmdline; do
  case "$(cat $line | tr '\\0' ' ')" in *$TOKEN*) exit 2;; esac
done
echo "$TOKEN"
"""


def test_a_secret_is_in_the_container_and_in_no_command_line(room: Any, runtime: Any) -> None:
    """The program itself looks for its value in the command lines of the machine."""
    steps = (Secret(("TOKEN",)), container(runtime), Shell(LOOK))
    values = {"TOKEN": "hush-8d1-hush"}
    (outcome,) = room.carry_out([task(*steps)], processors=1, retry=ONCE, secrets=values)
    assert (outcome.status, outcome.stdout) == (Status.SUCCEEDED, b"***\n"), outcome


def test_a_limit_ends_the_container_whatever_it_ignores(room: Any, runtime: Any) -> None:
    outcome = one(
        room,
        container(runtime),
        Shell("trap '' TERM; while :; do sleep 0.1; done"),
        wall_limit=2.0,
    )
    assert outcome.status is Status.TIMED_OUT
    assert outcome.reason == "killed at its wall-time limit of 2 s"
    if runtime.kind != "apptainer":
        assert runtime.running() == []


def test_a_task_never_runs_outside_of_what_it_states(room: Any) -> None:
    """Not even one that ignores errors."""
    outcome = one(room, OnError(True), Container("x", runtime="docker"), Shell("echo ran"))
    assert outcome.status is Status.FAILED
    assert outcome.stdout == b""


@pytest.mark.ci
def test_an_image_is_pulled_once_for_many_tasks(
    room: Any, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several workers' tasks that begin at once wait for one of them."""
    found = StandIn(tmp_path_factory.mktemp("rt"), "docker")
    monkeypatch.setenv("XDG_CACHE_HOME", str(found.state / "cache"))
    monkeypatch.setenv("PATH", f"{found.bin}{os.pathsep}{os.environ['PATH']}")
    step = Container("docker://box:2", runtime="docker")
    tasks = [task(step, Shell("echo ran"), id=f"t{n}") for n in range(4)]
    outcomes = room.carry_out(tasks, processors=4)
    found.close()

    assert [outcome.stdout for outcome in outcomes] == [b"ran\n"] * 4
    assert found.lines("pulls") == ["box:2"]


def test_an_image_that_cannot_be_had_fails_its_task_in_one_line(
    room: Any, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = StandIn(tmp_path_factory.mktemp("rt"), "docker")
    monkeypatch.setenv("XDG_CACHE_HOME", str(found.state / "cache"))
    monkeypatch.setenv("PATH", f"{found.bin}{os.pathsep}{os.environ['PATH']}")
    outcome = one(room, Container("absent:1", runtime="docker"), Shell("echo ran"))
    found.close()

    assert outcome.status is Status.FAILED
    assert outcome.reason == (
        'docker cannot pull "absent:1": Error response from daemon: manifest for absent:1 not found'
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_container_does_not_outlive_its_worker(
    room: Any, runtime: Any, until: Any, tmp_path: Path, number: int
) -> None:
    """Whether the worker is told to end, or killed at once and cleared up after."""
    if runtime.kind == "apptainer":
        pytest.skip("its containers are children of the worker like other programs")
    step = Shell("trap '' TERM; touch started; while :; do sleep 0.1; done")

    async def end(dispatcher: Any, workers: Any) -> None:
        await until(lambda: runtime.running() and list(tmp_path.glob("work/.*/started")))
        os.kill(int(runtime.running()[0].split("-")[2]), number)
        await until(lambda: room.told)

    room.carry_out([task(container(runtime), step)], processors=1, retry=ONCE, meanwhile=end)
    if number == signal.SIGKILL:  # what the next worker does before its first container
        remove_left_behind(str(shutil.which(runtime.kind)), os.environ)
    assert runtime.running() == []


def test_a_container_that_is_cleared_up_late_is_found_by_its_name(runtime: Any) -> None:
    """Nobody was left to end it: the next worker on the machine does, and spares all others."""
    if runtime.kind == "apptainer":
        pytest.skip("its containers are children of the worker like other programs")
    namespace = owner_mark(os.getpid()).split("-")[1]
    names = [f"bursar-{namespace}-999999999-1-0-1-1", f"{owner_mark(os.getpid())}0-1-1"]
    program = str(shutil.which(runtime.kind))
    started = []
    for name in names:
        place = ContainerPlace(name=name, folder=os.getcwd())
        words, _ = enter_container(program, container(runtime), ["sleep", "100"], place)
        started.append(subprocess.Popen(words, stdin=subprocess.DEVNULL))
    try:
        give_up = time.monotonic() + 30
        while sorted(runtime.running()) != sorted(names):
            assert time.monotonic() < give_up
            time.sleep(0.05)
        remove_left_behind(program, os.environ)
        assert runtime.running() == names[1:]
    finally:
        subprocess.run(removal(program, names), check=False, capture_output=True)
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize("policy", ["forbidden", "without-mounts", "allowed"])
def test_a_worker_keeps_to_what_its_service_allows(tmp_path: Path, policy: ContainerPolicy) -> None:
    """The service cannot look into sealed tasks."""
    at = str(tmp_path)
    place = AttemptContext(Welcome("r", at, at, at, at, 100, containers=policy), "w")
    try:
        if policy == "allowed":
            place.check_container(Container("i", binds=("/:/host",)))
        else:
            with pytest.raises(StagingError, match="are not allowed here"):
                place.check_container(Container("i", binds=("/:/host",)))
    finally:
        place.close()
