"""What the kernel holds workers to."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bursar.model.errors import SiteError
from bursar.worker.accounts import (
    LEAST_FILES,
    LEAST_MEMORY,
    ResourceLimits,
    environment_of,
    find_account,
)
from bursar.worker.detached_workers import ControlGroups, open_control_groups


def limits_of(limits: ResourceLimits, names: list[str]) -> list[str]:
    """What a process that holds itself to them says of itself."""
    which = ", ".join(f"r.getrlimit(r.{name})" for name in names)
    program = (
        "import resource as r, sys, msgspec;"
        "from bursar.worker.accounts import ResourceLimits;"
        "msgspec.json.decode(sys.argv[1], type=ResourceLimits).impose();"
        f"print(*({which},), sep=';')"
    )
    told = msgspec.json.encode(limits).decode()
    said = subprocess.run(
        [sys.executable, "-c", program, told], stdout=subprocess.PIPE, text=True, check=True
    )
    return said.stdout.strip().split(";")


def test_limits_hold() -> None:
    """
    Each of them, whether the system would let one widen it again or not; and no core files.
    """
    limits = ResourceLimits(
        memory=LEAST_MEMORY, file_size=1000, open_files=LEAST_FILES, processes=100
    )
    names = ["RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_CORE"]

    assert limits_of(limits, names) == [
        f"({value}, {value})" for value in (LEAST_MEMORY, 1000, LEAST_FILES, 100, 0)
    ]


def test_limits_are_only_ever_narrowed() -> None:
    """
    Where the system allows less than the service would, that stands.
    """
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = limits_of(ResourceLimits(open_files=most + 1000), ["RLIMIT_NOFILE"])

    assert said == [f"({most}, {most})"]


@pytest.mark.parametrize(
    "limits", [{"memory": 1000}, {"open_files": 3}, {"processes": 0}, {"file_size": 0}]
)
def test_limits_that_no_worker_could_live_with_are_refused(limits: dict[str, int]) -> None:
    """
    Else workers would die one after the other, and nobody would know why.
    """
    with pytest.raises(ValueError, match="must be at least"):
        ResourceLimits(**limits)


def fake_groups(folder: Path, path: str, controllers: str) -> Path:
    """What ``/proc/self`` and a mounted hierarchy look like; returns the former."""
    info, mount = folder / "self", folder / "cgroup"
    info.mkdir()
    (info / "cgroup").write_text(f"1:cpu:/old\n0::{path}\n")
    (info / "mountinfo").write_text(
        f"30 23 0:26 / {folder}/old rw - cgroup cgroup rw,cpu\n"
        f"31 23 0:27 / {mount} rw,nosuid - cgroup2 cgroup2 rw\n"
    )
    group = mount / path.lstrip("/")
    group.mkdir(parents=True)
    (group / "cgroup.controllers").write_text(controllers)
    return info


@pytest.mark.parametrize("path", ["/system.slice/bursar.service", "/bursar.service/supervisor"])
def test_groups_are_made_below_what_was_given_to_the_service(tmp_path: Path, path: str) -> None:
    """
    It goes into a group of its own first; after a restart it is there already.
    """
    said: list[str] = []
    info = fake_groups(tmp_path, path, "cpuset cpu io memory pids\n")
    base = tmp_path / "cgroup" / path.strip("/").removesuffix("/supervisor")
    (base / "cgroup.controllers").write_text("cpu memory pids")

    groups = open_control_groups(said.append, memory=1000, info=info)

    assert said == []
    assert (base / "supervisor" / "cgroup.procs").read_text() == str(os.getpid())
    assert (base / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert groups is not None
    groups.enter("a/../b", 3, 42)
    group = base / "lease-a____b"
    assert (group / "cpu.max").read_text() == "300000 100000"
    assert (group / "memory.max").read_text() == "3000"
    assert (group / "cgroup.procs").read_text() == "42"
    groups.enter("a/../b", 3, 43)
    groups.leave("another")


@pytest.mark.parametrize(
    ("controllers", "mounted", "reason"),
    [
        ("hugetlb", True, "does not have the controllers cpu, memory, pids"),
        ("", False, "version 2"),
    ],
)
def test_without_groups_there_is_a_word_and_no_groups(
    tmp_path: Path, controllers: str, mounted: bool, reason: str
) -> None:
    """
    One line says why, and workers run without.
    """
    said: list[str] = []
    info = fake_groups(tmp_path, "/x", controllers)
    if not mounted:
        (info / "mountinfo").write_text("")

    assert open_control_groups(said.append, info=info) is None
    assert len(said) == 1
    assert reason in said[0]


def test_a_group_that_does_not_go_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A folder of plain files stands for a group in which a process does not end.
    """
    monkeypatch.setattr("bursar.worker.detached_workers._PATIENCE", 0.0)
    groups = ControlGroups(tmp_path)
    groups.enter("a", 1, 42)

    with pytest.raises(OSError, match="not empty"):
        groups.leave("a")
    assert (tmp_path / "lease-a" / "cgroup.kill").read_text() == "1"


def test_accounts_that_tasks_cannot_run_as() -> None:
    """
    Nobody of that name, the superuser, or somebody else's where one is not the superuser.
    """
    with pytest.raises(SiteError, match='no local user "no-such-user"'):
        find_account("no-such-user")
    with pytest.raises(SiteError, match="may do everything"):
        find_account("root")


def test_only_root_may_start_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Said at the start, not with the first task.
    """
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(SiteError, match="only a service that root started"):
        find_account("nobody")


def test_an_environment_holds_nothing_of_the_service() -> None:
    """
    Secrets and odd paths of the service stay with it.
    """
    mine = {"BURSAR_SERVICE__X": "secret", "AWS_KEY": "secret", "LANG": "C.UTF-8", "PATH": "/odd"}
    nobody = find_account("nobody") if os.geteuid() == 0 else None

    for account in (None, nobody):
        found = environment_of(account, mine)
        assert "secret" not in found.values()
        assert found["LANG"] == "C.UTF-8"
        assert {"HOME", "USER", "LOGNAME", "PATH", "SHELL"} <= found.keys()
    if nobody is not None:
        assert (found["USER"], found["HOME"]) == ("nobody", nobody.home)
        assert "/odd" not in found["PATH"]
